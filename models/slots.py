"""How many calls a server gets at once."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet, WeakValueDictionary

from dspy.utils.exceptions import LMRateLimitError

# Set where the call that holds a slot was answered from a cache, which says nothing of its server. DSPy looks there in
# another thread, which sees the same event.
from_cache: ContextVar[threading.Event] = ContextVar("from_cache")

# DSPy's client opens so many connections; a call that waits for one would count that towards its timeout.
CONNECTIONS = 100
_shared: "WeakValueDictionary[tuple[str, str], Slots]" = WeakValueDictionary()
_sharing = threading.Lock()
# How many processes divide among them what is allowed at once, this one included.
_processes = [1]


def divide_limits(processes: int) -> None:
    """From now on, a limit that is set in this process is this one's share of it.

    Args:
        processes: how many set the same ones.
    """
    _processes[:] = [processes]


def slots_of(model: str, server: str) -> "Slots":
    """The slots of a model at a server: the same ones for all that call it in this process.

    Args:
        model: what it is called.
        server: where; empty for the provider's own.
    """
    with _sharing:
        if (slots := _shared.get((model, server))) is None:
            slots = _shared[model, server] = Slots()
        return slots


class Limit:
    """What somebody who calls a model allows at once; it holds for all others, too, until nobody has it any more.

    Args:
        number: calls.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Slots:
    """So many calls at once, over all threads and event loops, in the order in which they come.

    A call that the server refuses for coming too fast halves their number, and each that succeeds adds a part of one,
    so that the number grows by one while as many succeed as may be under way (additive increase, multiplicative
    decrease: Chiu and Jain, 1989); one that a cache answers changes nothing. Copies are the same slots: what they bound
    is a server.

    Args:
        number: the most calls at once, where no limit is set.
    """

    def __init__(self, number: int = CONNECTIONS) -> None:
        self._unlimited = number
        self._limits: WeakSet[Limit] = WeakSet()
        self._allowed = math.inf  # until a call is refused for coming too fast
        self._used = 0
        # Calls that were under way when the number was halved: that they are refused, too, is no news.
        self._older = 0
        self._of_clients: list[int] = []  # calls under way by each client
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @property
    def number(self) -> int:
        """The most calls at once: the least of the limits that were set."""
        return min((limit.number for limit in self._limits), default=self._unlimited)

    @property
    def allowed(self) -> int:
        """The calls that may be under way at once by now."""
        return int(min(self._allowed, self.number))

    def limited(self, number: int) -> Limit:
        """A limit that holds for as long as the caller keeps it.

        Args:
            number: the most calls at once, in all processes that divide their limits.
        """
        limit = Limit(max(1, number // _processes[0]))
        with self._lock:
            self._limits.add(limit)
        return limit

    def _take(self) -> "Future[None]":
        slot: Future[None] = Future()
        with self._lock:
            self._waiting.append(slot)
            self._fill()
        return slot

    def _fill(self) -> None:
        while self._waiting and self._used < self.allowed:
            slot = self._waiting.popleft()
            if slot.set_running_or_notify_cancel():
                self._used += 1
                slot.set_result(None)

    def _give_back(self, error: BaseException | None = None, *, succeeded: bool = False) -> None:
        with self._lock:
            self._used -= 1
            is_older, self._older = self._older > 0, max(0, self._older - 1)
            if isinstance(error, LMRateLimitError) and not is_older:
                self._allowed, self._older = max(1.0, min(self._allowed, self.number) / 2), self._used
            elif succeeded and self._allowed < self.number:
                self._allowed += 1 / self._allowed
            self._fill()

    @contextmanager
    def client(self) -> Iterator[int]:
        """The number of the first client that has a connection left for one call more."""
        with self._lock:
            number = next((n for n, calls in enumerate(self._of_clients) if calls < CONNECTIONS), len(self._of_clients))
            if number == len(self._of_clients):
                self._of_clients.append(0)
            self._of_clients[number] += 1
        try:
            yield number
        finally:
            with self._lock:
                self._of_clients[number] -= 1

    def __enter__(self) -> None:
        self._take().result()
        from_cache.set(threading.Event())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back(error, succeeded=error is None and not from_cache.get().is_set())

    async def __aenter__(self) -> None:
        slot = self._take()
        try:
            if not slot.done():  # to wait for one that was given takes two calls of the system
                await asyncio.wrap_future(slot)
        except asyncio.CancelledError:
            if not slot.cancel():  # it was given at the same moment
                self._give_back()
            raise
        from_cache.set(threading.Event())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back(error, succeeded=error is None and not from_cache.get().is_set())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Slots, (self.number,)
