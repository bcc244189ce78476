"""How many requests are worked on at once, and how many wait."""

import asyncio
import math
import time
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hoptimizer.serving.refusals import Refusal

_LONGEST_WAIT = 60  # seconds that a client is told to wait, at most


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Attributes:
        in_flight: requests that are worked on at once.
        queue: requests that wait for those, at most; what comes beyond is refused.
        timeout: seconds for a request from when it came, waiting included.
        longest: characters of a question or query.
        body: bytes of a request.

    Example:
        >>> from hoptimizer.serving.admission import Limits
        >>> Limits(in_flight=8).queue
        1000
    """

    in_flight: int = 64
    queue: int = 1000
    timeout: float = 300.0
    longest: int = 4_000
    body: int = 1_000_000


client: ContextVar[bytes | None] = ContextVar("client", default=None)
"""Whose request is worked on: a digest of its key, or ``None`` where no keys are asked for."""

_Line = deque[asyncio.Future[None]]


class Admission:
    """Places for requests, of which some work and others wait; used with ``async with``.

    The requests of one client wait in the order in which they came, and clients take turns (fair queueing: Demers,
    Keshav and Shenker, 1989): nobody who asks a lot at once keeps the others waiting. Where no request more can wait,
    the client with the most of them gives up its last one for a client with fewer.

    Args:
        limits: says how many places there are.

    Attributes:
        working: requests that are worked on.
    """

    def __init__(self, limits: Limits) -> None:
        self.working = 0
        self._limits = limits
        self._lines: dict[bytes | None, _Line] = {}  # in the order of their turns
        self._seconds = 1.0  # that a request takes lately
        self._started: dict[asyncio.Task[object] | None, float] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._lines.values()))

    def check(self) -> None:
        """Make sure that there is a place.

        Raises:
            Refusal: there is none, with the seconds after which there may be one.
        """
        if self._is_full and not self._longest():
            raise self._refusal()

    @property
    def _is_full(self) -> bool:
        return self.working >= self._limits.in_flight and self.waiting >= self._limits.queue

    def _longest(self) -> "_Line | None":
        """The longest line, where that of this request's client would not be longer if it took a place of it."""
        longest = max(self._lines.values(), key=len, default=_Line())
        mine = self._lines.get(client.get(), ())
        return longest if client.get() is not None and len(longest) > len(mine) + 1 else None

    def _refusal(self) -> Refusal:
        wait = math.ceil(self._seconds * (self.waiting + 1) / self._limits.in_flight)
        message = f"{self.working} requests are worked on and {self.waiting} wait: come again later"
        return Refusal(503, "overloaded", message, min(max(1, wait), _LONGEST_WAIT))

    async def __aenter__(self) -> Self:
        self.check()
        if self.working < self._limits.in_flight:
            self.working += 1
        else:
            await self._turn()
        self._started[asyncio.current_task()] = time.monotonic()
        return self

    async def _turn(self) -> None:
        """Wait for the place of a request that ends."""
        if self._is_full and (longest := self._longest()):
            _tell(longest.pop(), self._refusal())
        turn = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(client.get(), _Line())
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in line:
                line.remove(turn)
                if not line:
                    del self._lines[client.get()]
            elif not turn.cancelled() and not turn.exception():  # the place came at the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a place to a request of the client whose turn it is, or to nobody."""
        while self._lines:
            whose = next(iter(self._lines))
            line = self._lines.pop(whose)
            turn = line.popleft()
            if line:
                self._lines[whose] = line
            if _tell(turn):
                return
        self.working -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        took = time.monotonic() - self._started.pop(asyncio.current_task())
        self._seconds += (took - self._seconds) / 10
        self._pass_on()


def _tell(turn: "asyncio.Future[None]", refusal: Refusal | None = None) -> bool:
    """Let a request that waits go on, or end; false where it was given up just now."""
    if turn.done():
        return False
    if refusal:
        turn.set_exception(refusal)
    else:
        turn.set_result(None)
    return True
