"""The records of one question, and work that runs together without their order depending on which call is first."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from hoptimizer.programs.record import StepRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A step's record, and what DSPy traced of it."""

    record: StepRecord
    trace: list[Any]


class Trail:
    """Collects the records of one question.

    Work that runs together writes into branches. A branch stands where it was opened, so that the order is that of the
    algorithm: DSPy makes demonstrations from a trace in its order, and compiling twice must give the same ones.

    Args:
        deeper: levels of sub-questions that this trail lies below the one it branches from.
    """

    def __init__(self, deeper: int = 0) -> None:
        self.deeper = deeper
        self._parts: list[Entry | Trail] = []

    def add(self, record: StepRecord, trace: list[Any] | None = None) -> None:
        """Take in a step that finished."""
        self._parts.append(Entry(record, trace or []))

    def attach(self, trail: "Trail") -> None:
        """Let a trail stand here. One that stands in several places is read at the first of them alone."""
        self._parts.append(trail)

    def entries(self) -> list[Entry]:
        """Everything that was collected, each record at its depth."""
        return list(self._walk(0, set()))

    def _walk(self, depth: int, seen: set[int]) -> Iterator[Entry]:
        depth += self.deeper
        for part in self._parts:
            if isinstance(part, Entry):
                yield replace(part, record=replace(part.record, depth=part.record.depth + depth)) if depth else part
            elif id(part) not in seen:
                seen.add(id(part))
                yield from part._walk(depth, seen)

    @property
    def calls(self) -> int:
        """Language model calls so far."""
        return sum(entry.record.calls for entry in self.entries())


_current: contextvars.ContextVar[Trail] = contextvars.ContextVar("trail")


def current() -> Trail:
    """The trail that steps write into here."""
    return _current.get()


@contextmanager
def recording(trail: Trail) -> Iterator[Trail]:
    """Within it, steps write into ``trail``."""
    token = _current.set(trail)
    try:
        yield trail
    finally:
        _current.reset(token)


async def _record(trail: Trail, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with recording(trail):
        return await work()


async def together(works: Iterable[Callable[[], Coroutine[Any, Any, T]]], deeper: int = 0) -> list[T]:
    """Run what does not depend on one another at once.

    Args:
        works: functions whose coroutines take steps. Where one fails, the others are stopped and its exception rises.
        deeper: levels of sub-questions that they lie below the caller.

    Returns:
        their results in the order given.
    """
    tasks = []
    for work in works:
        trail = Trail(deeper)
        current().attach(trail)
        tasks.append(asyncio.create_task(_record(trail, work)))
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await _stop(tasks)
        raise


class Once:
    """Work that several branches of one question need, done once. To be used with ``async with``.

    Only work that waits for nothing shared may be shared: then no two can wait for each other.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, tuple[asyncio.Task[Any], Trail]] = {}

    async def __call__(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work of that key, which starts with the first who asks for it."""
        if key not in self._tasks:
            trail = Trail()
            self._tasks[key] = (asyncio.create_task(_record(trail, work)), trail)
        task, trail = self._tasks[key]
        current().attach(trail)
        # One branch that is stopped must not stop what others wait for.
        return await asyncio.shield(task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await _stop([task for task, _ in self._tasks.values()])


async def _stop(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
