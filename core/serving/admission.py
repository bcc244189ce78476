"""How many requests are worked on at once, and how many wait."""

import asyncio
import math
import time
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


class Admission:
    """Places for requests, of which some work and others wait in the order in which they came; used with
    ``async with``.

    Args:
        limits: says how many places there are.

    Attributes:
        waiting: requests that wait.
        working: requests that are worked on.
    """

    def __init__(self, limits: Limits) -> None:
        self.waiting = self.working = 0
        self._limits = limits
        self._places = asyncio.Semaphore(limits.in_flight)
        self._seconds = 1.0  # that a request takes lately
        self._started: dict[asyncio.Task[object] | None, float] = {}

    def check(self) -> None:
        """Make sure that there is a place.

        Raises:
            Refusal: there is none, with the seconds after which there may be one.
        """
        if self._places.locked() and self.waiting >= self._limits.queue:
            wait = math.ceil(self._seconds * (self.waiting + 1) / self._limits.in_flight)
            message = f"{self.working} requests are worked on and {self.waiting} wait: come again later"
            raise Refusal(503, "overloaded", message, min(max(1, wait), _LONGEST_WAIT))

    async def __aenter__(self) -> Self:
        self.check()
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        self._started[asyncio.current_task()] = time.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        took = time.monotonic() - self._started.pop(asyncio.current_task())
        self._seconds += (took - self._seconds) / 10
        self.working -= 1
        self._places.release()
