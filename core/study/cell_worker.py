"""What runs in a worker's process while a study is compiled: whole compiles, one after the other."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report
from hoptimizer.compiling import compile_variant
from hoptimizer.config import make_config
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.executors.task import Node, Refusal
from hoptimizer.executors.worker import AsksModels, check_data, refusal_of
from hoptimizer.models.slots import divide_limits
from hoptimizer.tracking.settings import is_empty

Told = tuple[str, int, int, str]
"""What a :data:`~hoptimizer.common.progress.Report` is called with."""


@dataclass(frozen=True)
class Order:
    """A compile that a worker is to make.

    Attributes:
        values: the config as plain data, its keys included.
        data: digest of the data set that the worker must have.
        node: what else its machine must have.
        options: of :func:`~hoptimizer.compiling.compile_variant`.
    """

    values: dict[str, Any]
    data: str
    node: Node
    options: dict[str, Any]


class CellWorker(AsksModels):
    """Compiles the cells of a study, from this machine's data, weights and indexes, into the store of their config.

    Args:
        answers: what keeps the answers of language models, as an actor's handle; ``None`` where this machine does.
    """

    def __init__(self, answers: Any = None) -> None:  # noqa: ANN401 - a handle of Ray's, which has no type
        super().__init__(answers)
        self._told: deque[Told] = deque()

    async def start(self, workers: int) -> None:
        """Divide what limits the calls under way at once; all else each order says.

        Args:
            workers: how many compile at once.
        """
        divide_limits(workers)

    async def answer(self, order: Order) -> Refusal | None:
        """Compile a variant, whose run is in the store then.

        Args:
            order: what to compile.

        Returns:
            why it can't be compiled, or ``None``.
        """
        self._told.clear()
        try:
            await asyncio.to_thread(_compile, order, lambda *told: self._told.append(told))
        except Exception as error:
            if refusal := refusal_of(error):
                return refusal
            raise
        return None

    async def progress(self) -> list[Told]:
        """What was told of the compile's progress and not asked for yet."""
        return [self._told.popleft() for _ in range(len(self._told))]


def _compile(order: Order, report: Report) -> None:
    if told := order.node.lacking():
        raise UserError(told)
    config = make_config(order.values)
    check_data(load(config.data), order.data)
    if is_empty(config.tracking.uri):
        raise UserError(
            "tracking.uri: the driver's file of runs is not here; give a server's, where workers have other disks"
        )
    compile_variant(config, report=report, **order.options)
