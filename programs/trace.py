"""The records of one question, in the order of its algorithm, also where work runs at the same time."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from hoptimizer.common.concurrency import all_of
from hoptimizer.programs.record import StepRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step's record, and what DSPy traced of the step."""

    record: StepRecord
    trace: list[Any]


class StepTrace:
    """Collects the records of one question.

    Pieces of work that run at the same time write into branches. A branch stands where it was opened, so that the order
    is that of the algorithm: DSPy makes demonstrations from a trace in its order, and compiling twice must give the
    same ones.

    Args:
        deeper: how many levels of sub-questions this trace lies below the one that it branches from.
    """

    def __init__(self, deeper: int = 0) -> None:
        self.deeper = deeper
        self._parts: list[TracedStep | StepTrace] = []

    def add(self, record: StepRecord, trace: list[Any] | None = None) -> None:
        """Add a step that has ended."""
        self._parts.append(TracedStep(record, trace or []))
        if listener := _listener.get():
            listener(replace(record, depth=record.depth + _depth.get()))

    def attach(self, trace: "StepTrace") -> None:
        """Let a branch begin here. One that is attached in several places is read at the first of them alone."""
        self._parts.append(trace)

    def entries(self) -> list[TracedStep]:
        """Everything that was collected, each record at its depth."""
        return list(self._walk(0, set()))

    def _walk(self, depth: int, seen: set[int]) -> Iterator[TracedStep]:
        depth += self.deeper
        for part in self._parts:
            if isinstance(part, TracedStep):
                yield replace(part, record=replace(part.record, depth=part.record.depth + depth)) if depth else part
            elif id(part) not in seen:
                seen.add(id(part))
                yield from part._walk(depth, seen)

    @property
    def calls(self) -> int:
        """Language model calls so far."""
        return sum(entry.record.calls for entry in self.entries())


_current: contextvars.ContextVar[StepTrace] = contextvars.ContextVar("trail")
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)
Listener = Callable[[StepRecord], None]
_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar("listener", default=None)


def current() -> StepTrace:
    """The trace that steps write into here."""
    return _current.get()


@contextmanager
def _set(variable: contextvars.ContextVar[T], value: T) -> Iterator[T]:
    """Within it, a variable has a value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextmanager
def recording(trace: StepTrace) -> Iterator[StepTrace]:
    """Within it, steps write into ``trace``."""
    with _set(_current, trace), _set(_depth, _depth.get() + trace.deeper):
        yield trace


def heard_steps(listener: Listener | None) -> AbstractContextManager[object]:
    """Within it, a listener, if there is one, is told of each step as it ends, whatever the order of the algorithm."""
    return _set(_listener, listener)


_asked: contextvars.ContextVar[tuple[str, str | None]] = contextvars.ContextVar("question", default=("", None))


def asked_question() -> str:
    """The question that the program was asked, whatever its steps are."""
    return _asked.get()[0]


def main_page() -> str | None:
    """The id or title of the page that the question is asked about; ``None`` where it is not asked about one."""
    return _asked.get()[1]


def asking(question: str, page: str | None) -> AbstractContextManager[object]:
    """Within it, a question is asked, maybe about a page."""
    return _set(_asked, (question, page))


async def _record(trace: StepTrace, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with recording(trace):
        return await work()


async def gather_steps(works: Iterable[Callable[[], Coroutine[Any, Any, T]]], deeper: int = 0) -> list[T]:
    """Run pieces of work that do not depend on one another at the same time.

    Args:
        works: functions whose coroutines take steps. Where one fails, the others are stopped and its exception rises.
        deeper: how many levels of sub-questions they lie below the caller.

    Returns:
        Their results in the order given. Their records are in that order too, whichever ends first.

    Example:
        >>> from functools import partial
        >>> from hoptimizer.programs import Program, gather_steps
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> class Both(Program):
        ...     async def solve(self, question):
        ...         parts = question.split(" and ")
        ...         first, second = await gather_steps(partial(self.retrieve, part) for part in parts)
        ...         return "", first + second
        >>> prediction = Both(BM25Retriever(corpus), k=1)(question="Vistula and Curie")
        >>> [passage.id for passage in prediction.passages]
        ['warsaw', 'curie']
    """
    recorded = []
    for work in works:
        trace = StepTrace(deeper)
        current().attach(trace)
        recorded.append(_record(trace, work))
    return await all_of(recorded)


class SharedTasks:
    """Does work that several branches of one question need once; it is used with ``async with``.

    Only work that does not itself wait for shared work may be shared, so that no two pieces can wait for each other.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, tuple[asyncio.Task[Any], StepTrace]] = {}

    async def __call__(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work of that key, which starts when it is first asked for."""
        if key not in self._tasks:
            trace = StepTrace()
            self._tasks[key] = (asyncio.create_task(_record(trace, work)), trace)
        task, trace = self._tasks[key]
        current().attach(trace)
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
