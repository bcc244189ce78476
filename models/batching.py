"""Micro-batching: concurrent single calls become one batched call."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Runs ``function`` over whatever items wait, in one worker thread, so that concurrent callers share a batch.

    Nobody waits for a batch to fill: while one batch runs, the next one gathers.

    Args:
        function: maps a non-empty list of items to as many results; an exception it raises reaches every caller
            of that batch.
        limit: the most items a batch may hold.
    """

    def __init__(self, function: Callable[[list[Item]], Sequence[Result]], limit: int) -> None:
        self._function = function
        self._limit = limit
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

    def _gather(self) -> list[tuple[Item, "Future[Result]"]]:
        batch = [self._queue.get()]
        while len(batch) < self._limit:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _run(self) -> None:
        while True:
            batch = [(item, future) for item, future in self._gather() if future.set_running_or_notify_cancel()]
            if not batch:
                continue
            try:
                results = self._function([item for item, _ in batch])
            except BaseException as error:  # noqa: BLE001 - handed to the callers, who raise it
                for _, future in batch:
                    future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result)
