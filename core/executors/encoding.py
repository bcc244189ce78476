"""Indexes whose passages are encoded by the workers of a Ray cluster."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from hoptimizer.common.concurrency import beside, entered
from hoptimizer.executors.connection import connected
from hoptimizer.executors.passage_worker import Encoded, EncodingTask, PassageWorker
from hoptimizer.executors.pool import Pool, Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.retrieval.encoders.windows import WINDOW, Each, Elsewhere, EncodedWindow
from hoptimizer.retrieval.options import RetrieverOptions

# Windows at each worker: one under way, and one that it goes on with while that one's vectors are written.
_SHARE = 2


def encoders_on(executor: RayExecutor) -> Elsewhere:
    """What encodes the passages of a corpus by the workers of a cluster; vectors come back in the corpus' order.

    Args:
        executor: the config's ``executor`` section.

    Example:
        >>> from hoptimizer.executors.encoding import encoders_on
        >>> from hoptimizer.executors.settings import RayExecutor
        >>> from hoptimizer.retrieval import Corpus, DenseSettings, Passage, build_retriever
        >>> corpus = Corpus([Passage("oslo", "Oslo", "A city in Norway.")])  # one window: it is encoded here
        >>> elsewhere = encoders_on(RayExecutor(name="ray", address="local", tasks=2))
        >>> build_retriever(DenseSettings(), corpus, elsewhere=elsewhere).search(["A city?"], 1)[0][0].id
        'oslo'
    """

    @contextlib.contextmanager
    def encoders(settings: RetrieverOptions, digest: str, passages: int) -> Iterator[Each]:
        with connected(executor) as ray, Workers(ray, executor, PassageWorker) as workers, beside() as loop:
            size = min(executor.tasks, math.ceil(passages / WINDOW))
            task = EncodingTask(settings.model_dump(), digest)
            pool: Pool[Encoded] = Pool(workers, size, (task,), _SHARE)

            async def encode(texts: list[str]) -> Encoded:
                async with workers.head.needed():
                    return await pool.ask(texts)

            def each(windows: Iterable[list[str]]) -> Iterator[EncodedWindow[Any]]:
                under_way: deque[Future[Encoded]] = deque()
                try:
                    for window in windows:
                        under_way.append(asyncio.run_coroutine_threadsafe(encode(window), loop))
                        if len(under_way) > _SHARE * size:
                            yield _tensors(under_way.popleft().result())
                    while under_way:
                        yield _tensors(under_way.popleft().result())
                finally:
                    for one in under_way:
                        one.cancel()

            with entered(pool, loop):
                yield each

    return encoders


def _tensors(encoded: Encoded) -> EncodedWindow[Any]:
    """What an encoder of this process gives; Ray's arrays are read-only, and gone with its memory."""
    batches = [
        (rows, [torch.tensor(one) for one in vectors] if isinstance(vectors, list) else torch.tensor(vectors))
        for rows, vectors in encoded.batches
    ]
    return EncodedWindow(batches, encoded.cut)
