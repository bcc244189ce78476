"""The cells of a study that compile, each by a worker of a Ray cluster."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hoptimizer.common.progress import Report
from hoptimizer.executors.head import LostHeadError
from hoptimizer.executors.pool import Pool, Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.task import call_limits
from hoptimizer.executors.together import Tell, as_they_end
from hoptimizer.study.cell_worker import CellWorker, Order

Outcome = tuple[int, Exception | None]
"""The place of an order, and the exception that it ended with, if it did."""

# Seconds after which a worker is asked how far it is.
_LOOK = 1.0


def compile_on_cluster(orders: Sequence[Order], reports: Sequence[Report], settings: RayExecutor) -> Iterator[Outcome]:
    """Have variants compiled: as many at once as there are workers, and as a model's ``max_concurrency`` has calls for,
    which they divide among them. Their runs are in the store as they end.

    Args:
        orders: what to compile.
        reports: are told of the progress of each.
        settings: the config's ``executor`` section.

    Yields:
        what each came to, as they end; others are compiled while the caller does something with it.

    Raises:
        UserError: the cluster can't be had.
        ServiceError: its head is gone.
    """

    async def compiled(workers: Workers, tell: Tell[Outcome]) -> None:
        size = min(settings.tasks, len(orders), *(most for order in orders for most in call_limits(order.values)))
        pool: Pool[None] = Pool(workers, size, (size,), share=1)

        async def follow(report: Report, worker: Any) -> None:  # noqa: ANN401 - a handle of Ray's, which has no type
            # That a worker is gone is said where its work is waited for.
            with suppress(workers.ray.exceptions.RayError):
                while True:
                    await asyncio.sleep(_LOOK)
                    for told in await worker.progress.remote():
                        report(*told)

        async def one(number: int, order: Order) -> None:
            failure = None
            try:
                await pool.ask(order, partial(follow, reports[number]))
            except LostHeadError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a cell dies of, the others have their turn
                failure = error
            tell((number, failure))

        async with workers.head.needed(), pool:
            await asyncio.gather(*(one(number, order) for number, order in enumerate(orders)))

    yield from as_they_end(settings, CellWorker, compiled)
