"""Batches of concurrent calls, and what holds on to what when none come."""

import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from hoptimizer.common import batching
from hoptimizer.common.batching import CORES, Batcher, after


class Doubler:
    """What a retriever or a small model is to its batcher."""

    def __init__(self, on=None):
        self.batcher = Batcher(self.doubled, limit=8, on=on)

    def doubled(self, numbers):
        return [2 * number for number in numbers]


def test_a_batcher_without_work_holds_nothing_and_works_again(monkeypatch):
    monkeypatch.setattr(batching, "_IDLE", 0.05)
    for on in (None, CORES):
        doubler = Doubler(on)
        assert [doubler.batcher.submit(number).result() for number in (1, 2)] == [2, 4]
        [thread] = doubler.batcher._workers
        thread.join(10)
        assert not thread.is_alive()
        assert doubler.batcher.submit(3).result() == 6
        [thread] = doubler.batcher._workers
        thread.join(10)
        gone = weakref.ref(doubler)
        del doubler
        gc.collect()
        assert gone() is None


def test_items_that_come_as_the_thread_ends_are_answered(monkeypatch):
    monkeypatch.setattr(batching, "_IDLE", 0.0)
    doubler = Doubler()
    results = []

    def ask():
        results.extend(doubler.batcher.submit(number).result(10) for number in range(50))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([2 * number for number in range(50)] * 4)


def test_as_many_batches_run_at_the_same_time_as_may():
    together = threading.Barrier(3, timeout=10)

    def meeting(numbers):
        together.wait()
        return numbers

    batcher = Batcher(meeting, limit=1, at_once=3)
    futures = [batcher.submit(number) for number in range(6)]
    assert [future.result(20) for future in futures] == list(range(6))


def test_work_goes_on_once_all_that_it_follows_is_done_and_fails_with_it():
    doubling = Doubler().batcher
    one, other = Future(), Future()
    ended = after([one, other], lambda numbers: doubling.submit(sum(numbers)))
    other.set_result(2)
    assert not ended.done()
    one.set_result(1)
    assert ended.result(10) == 6
    failed = Future()
    failed.set_exception(OSError("gone"))
    for begun, work in (([one, failed], doubling.submit), ([one], lambda _: failed), ([one], lambda _: 1 / 0)):
        with pytest.raises((OSError, ZeroDivisionError)):
            after(begun, work).result(10)
