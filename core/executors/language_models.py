"""``local/`` language models that the workers of a Ray cluster hold, whoever asks them in this process."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from hoptimizer.common.concurrency import beside, entered
from hoptimizer.executors.connection import connected
from hoptimizer.executors.lm_worker import LMWorker, Untakable
from hoptimizer.executors.pool import Pool, Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.task import Node
from hoptimizer.models.engine.calls import Call, answered_by
from hoptimizer.models.engine.request import Completion


@contextlib.contextmanager
def language_models_on(executor: RayExecutor, names: Sequence[str], at_once: int) -> Iterator[None]:
    """Within it, calls of ``local/`` models are answered by the workers of a cluster, each of which has them all.

    The process that asks keeps its cache, its budget and its traces; it loads no language model.

    Args:
        executor: the config's ``executor`` section.
        names: what the models are called; one that a compile makes comes later.
        at_once: calls under way at each worker, at most.

    Raises:
        UserError: the cluster can't be had.

    Example:
        >>> from hoptimizer.executors.language_models import language_models_on
        >>> from hoptimizer.executors.settings import RayExecutor
        >>> from hoptimizer.models import LMSettings, build_lm
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=4, cache=False))
        >>> with language_models_on(RayExecutor(name="ray", address="local", tasks=1), [lm.model], at_once=2):
        ...     spread = lm("The capital of Norway is")
        >>> spread == lm("The capital of Norway is")
        True
    """
    with connected(executor) as ray, Workers(ray, executor, LMWorker) as workers, beside() as loop:
        pool: Pool[Completion | Untakable] = Pool(workers, executor.tasks, (Node.for_models(names),), at_once)

        async def ask(call: Call) -> Completion:
            async with workers.head.needed():
                outcome = await pool.ask(call)
            if isinstance(outcome, Untakable):
                raise outcome.error
            return outcome

        def asks(call: Call) -> "Future[Completion]":
            return asyncio.run_coroutine_threadsafe(ask(call), loop)

        with entered(pool, loop), answered_by(asks):
            yield
