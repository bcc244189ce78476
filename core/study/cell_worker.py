"""What runs in a worker's process while a study is compiled: whole compiles, one after the other."""

import asyncio
from dataclasses import dataclass
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import silent
from hoptimizer.compiling import compile_variant
from hoptimizer.config import make_config
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.executors.task import Node, Refusal
from hoptimizer.executors.worker import AsksModels, check_data, refusal_of
from hoptimizer.models.slots import divide_limits
from hoptimizer.tracking.settings import is_empty


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

    @property
    def limits(self) -> list[int]:
        """The calls under way at once that the config allows, by language model."""
        return [lm["max_concurrency"] for lm in self.values["lm"].values() if lm["max_concurrency"]]


class CellWorker(AsksModels):
    """Compiles the cells of a study, from this machine's data, weights and indexes, into the store of their config."""

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
        try:
            await asyncio.to_thread(_compile, order)
        except Exception as error:
            if refusal := refusal_of(error):
                return refusal
            raise
        return None


def _compile(order: Order) -> None:
    if told := order.node.lacking():
        raise UserError(told)
    config = make_config(order.values)
    check_data(load(config.data), order.data)
    if is_empty(config.tracking.uri):
        raise UserError(
            "tracking.uri: the driver's file of runs is not here; give a server's, where workers have other disks"
        )
    compile_variant(config, report=silent, **order.options)
