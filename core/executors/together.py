"""Several programs that the workers of a Ray cluster are asked side by side, such as the cells of a study."""

import asyncio
import queue
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from hoptimizer.common.concurrency import beside
from hoptimizer.eval.runner import Evaluation
from hoptimizer.executors.answers import answering_workers
from hoptimizer.executors.connection import connected
from hoptimizer.executors.evaluation import Asked, aevaluate_on
from hoptimizer.executors.head import LostHeadError
from hoptimizer.executors.pool import Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.worker import AsksModels, Worker
from hoptimizer.scoring import running
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.variants import Scoring, state_of
from hoptimizer.workbench import Workbench

Outcome = tuple[int, Evaluation | Exception]
"""The place of what was asked, and what it came to or the exception that it ended with."""
T = TypeVar("T")
Tell = Callable[[T], None]


def answer_on_cluster(scorings: Sequence[Scoring], tracker: Tracker, settings: RayExecutor) -> Iterator[Outcome]:
    """Ask several programs their questions: as many at once as there are workers, each of which has one of them.

    Args:
        scorings: with any language models, since each worker is a process of its own.
        tracker: has the compiled variants among them.
        settings: the config's ``executor`` section.

    Yields:
        what each came to, as they end; others are asked while the caller does something with it.

    Raises:
        UserError: the cluster can't be had.
        ServiceError: its head is gone, where none of them could be asked any more.
    """
    states = {run_id: tracker.load_state(run_id) for run_id in {one.run_id for one in scorings} if run_id}

    async def answer(workers: Workers, tell: Tell[Outcome]) -> None:
        gate = asyncio.Semaphore(settings.tasks)
        tasks = max(1, settings.tasks // len(scorings))
        beside = min(len(scorings), settings.tasks // tasks)

        async def one(number: int, scoring: Scoring) -> None:
            async with gate:
                [outcome] = await asyncio.gather(
                    aevaluate_on(workers, _asked(scoring, states), tasks, beside), return_exceptions=True
                )
            if isinstance(outcome, LostHeadError) or not isinstance(outcome, Evaluation | Exception):
                raise outcome
            tell((number, outcome))

        await asyncio.gather(*(one(number, scoring) for number, scoring in enumerate(scorings)))

    yield from as_they_end(settings, Worker, answer)


def as_they_end(
    settings: RayExecutor, kind: type[AsksModels], work: Callable[[Workers, Tell[T]], Coroutine[Any, Any, None]]
) -> Iterator[T]:
    """What comes of work on a cluster, which goes on while the caller does something with a part of it.

    Args:
        settings: the config's ``executor`` section.
        kind: what runs in the workers' processes.
        work: is given workers of that kind, and what to tell each part.

    Raises:
        UserError: the cluster can't be had.
        Exception: the work's own.
    """
    ended: queue.SimpleQueue[T | None] = queue.SimpleQueue()
    with connected(settings) as ray, answering_workers(ray, settings, kind) as workers, beside() as loop:
        going = asyncio.run_coroutine_threadsafe(work(workers, ended.put), loop)
        going.add_done_callback(lambda _: ended.put(None))
        try:
            while (outcome := ended.get()) is not None:
                yield outcome
        finally:
            going.cancel()
        going.result()


def _asked(scoring: Scoring, states: dict[str, dict[str, object]]) -> Asked:
    bench = Workbench(scoring.config, scoring.report)
    stage = f"{scoring.config.program.name} {state_of(scoring.run_id)} on {scoring.split}"
    return Asked(
        bench,
        bench.data.split(scoring.split),
        scoring.run_id,
        states[scoring.run_id] if scoring.run_id else None,
        running(scoring.report, stage, scoring.config.objective),
    )
