"""Micro-batching: concurrent single calls become one batched call."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


# Runs work that uses all cores. Two such pieces of work at once take several times as long as one after the other; and
# torch gives each thread that computes its own team of threads, which wait busily for a while after their work.
CORES = ThreadPoolExecutor(1, thread_name_prefix="cores")

# Seconds for which the first item of a batch waits for others that are handed in at the same moment.
_MOMENT = 0.002
# Seconds without an item after which a batcher's thread ends: until then it holds what the function belongs to.
_IDLE = 10.0


class Batcher(Generic[Item, Result]):
    """Runs ``function`` over whatever items wait, in one worker thread, so that concurrent callers share a batch.

    Nobody waits for a batch to fill: while one batch runs, the next one gathers.

    Args:
        function: maps a non-empty list of items to as many results; an exception it raises reaches every caller
            of that batch, one that stands in the place of a result its caller alone.
        limit: the most items a batch may hold.
        on: the executor that runs the function, by default this batcher's own thread; while it is busy with other work,
            the next batch gathers.
    """

    def __init__(
        self,
        function: Callable[[list[Item]], Sequence[Result | Exception]],
        limit: int,
        on: Executor | None = None,
    ) -> None:
        self._function = function
        self._limit = limit
        self._on = on
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None

    def submit(self, item: Item) -> "Future[Result]":
        """Hand in one item; the future resolves with its result."""
        future: Future[Result] = Future()
        self._queue.put((item, future))
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(target=self._run, name="batcher", daemon=True)
                self._worker.start()
        return future

    def _gather(self, first: tuple[Item, "Future[Result]"]) -> list[tuple[Item, "Future[Result]"]]:
        batch = [first]
        while len(batch) < self._limit:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]

    def _run(self) -> None:
        while True:
            try:
                first = self._queue.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._worker = None
                        return
                continue
            time.sleep(_MOMENT)
            if self._on is None:
                self._answer(first)
            else:
                self._on.submit(self._answer, first).result()
            del first

    def _answer(self, first: tuple[Item, "Future[Result]"]) -> None:
        batch = self._gather(first)
        if not batch:
            return
        try:
            results = self._function([item for item, _ in batch])
        except BaseException as error:  # noqa: BLE001 - handed to the callers, who raise it
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
