"""Micro-batching: concurrent single calls become one batched call."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

First = TypeVar("First")
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
    """Runs ``function`` over whatever items wait, in worker threads, so that concurrent callers share a batch.

    Nobody waits for a batch to fill: while as many run as may, the next one gathers.

    Args:
        function: maps a non-empty list of items to as many results; an exception it raises reaches every caller
            of that batch, one that stands in the place of a result its caller alone.
        limit: the most items a batch may hold.
        on: the executor that runs the function, by default this batcher's own threads; while it is busy with other
            work, the next batch gathers.
        at_once: batches that may run at the same time.
    """

    def __init__(
        self,
        function: Callable[[list[Item]], Sequence[Result | Exception]],
        limit: int,
        on: Executor | None = None,
        at_once: int = 1,
    ) -> None:
        self._function = function
        self._limit = limit
        self._on = on
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]]] = queue.SimpleQueue()
        self._lock, self._gathering = threading.Lock(), threading.Lock()
        self._at_once = at_once
        self._workers: set[threading.Thread] = set()

    def submit(self, item: Item) -> "Future[Result]":
        """Hand in one item; the future resolves with its result."""
        future: Future[Result] = Future()
        self._queue.put((item, future))
        with self._lock:
            if len(self._workers) < self._at_once:
                worker = threading.Thread(target=self._run, name="batcher", daemon=True)
                self._workers.add(worker)
                worker.start()
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
            with self._gathering:  # or those that come at the same moment would make a batch each
                try:
                    first = self._queue.get(timeout=_IDLE)
                except queue.Empty:
                    with self._lock:
                        if self._queue.empty():
                            self._workers.discard(threading.current_thread())
                            return
                    continue
                time.sleep(_MOMENT)
                batch = [] if self._on else self._gather(first)
            if self._on:
                self._on.submit(lambda first: self._answer(self._gather(first)), first).result()
            else:
                self._answer(batch)
            del first, batch

    def _answer(self, batch: list[tuple[Item, "Future[Result]"]]) -> None:
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


def after(begun: Sequence["Future[First]"], work: Callable[[list[First]], "Future[Result]"]) -> "Future[Result]":
    """Go on with work that was begun, once all of it is done; no thread waits for it.

    Args:
        begun: one piece or more. If one fails, so does what comes after.
        work: begins what comes after, from the results.
    """
    ended: Future[Result] = Future()
    left = itertools.count(len(begun) - 1, -1)

    def tell(last: "Future[Result]") -> None:
        if error := last.exception():
            ended.set_exception(error)
        else:
            ended.set_result(last.result())

    def go_on(_: "Future[First]") -> None:
        if next(left):
            return
        try:
            last = work([one.result() for one in begun])
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            ended.set_exception(error)
        else:
            last.add_done_callback(tell)

    for one in begun:
        one.add_done_callback(go_on)
    return ended
