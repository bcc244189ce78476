"""A discrete-event simulation of an evaluation: questions under way, their chains of calls, a driver, a server.

A question is a list of stages: the calls of a stage are made together, and a stage begins when the one before has
ended. A stage begins with a search where there is one. A call needs the driver before and after it, and one of the
slots of a server's replica between. The driver is one event loop, which does a bit of each call in turn, so that calls
that come together get ready together: processor sharing. A call that fails is made again after the wait that
``ServedLM`` draws.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol, TypeVar

RETRIES = 3
Then = Callable[[], None]
Routing = Literal["fewest", "random"]


class _Replica(Protocol):
    @property
    def calls(self) -> int:
        """Those that are there, waiting or served."""


AnyReplica = TypeVar("AnyReplica", bound=_Replica)


def routed(replicas: Sequence[AnyReplica], routing: Routing, source: random.Random) -> AnyReplica:
    """The replica that a call goes to: that with the fewest calls, or one that is drawn."""
    return source.choice(replicas) if routing == "random" else min(replicas, key=lambda replica: replica.calls)


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        in_flight: questions under way at once.
        driver: seconds of the driver that a call takes.
        service: the seconds that a call takes of a replica that already serves so many others.
        slots: calls that a replica takes at once; the others wait at it.
        replicas: of the server.
        routing: which of them a call goes to: that with the fewest calls, or one that is drawn.
        failures: the share of the calls that fail.
        search: seconds of one search; each stage begins with one.
        searchers: searches at once.
    """

    in_flight: int
    driver: float
    service: Callable[[int], float]
    slots: int = 2**31
    replicas: int = 1
    routing: Routing = "fewest"
    failures: float = 0.0
    search: float = 0.0
    searchers: int = 1


@dataclass(frozen=True)
class Outcome:
    """What a simulated evaluation took.

    Attributes:
        seconds: from the first question to the last answer.
        calls: made, with those that failed.
        unanswered: questions of which a call failed once more than it is made again.
        busy: the share of the time in which driver, search and the slots of the replicas were taken.
    """

    seconds: float
    calls: int
    unanswered: int
    busy: dict[str, float]


class _Clock:
    """Events in the order of their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._number = count()

    def after(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), then))

    def run(self) -> None:
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()


class _Station:
    """Places that are taken in the order of arrival.

    Args:
        clock: of the simulation.
        places: at once.
        seconds: that a place is taken, by the number of those taken already.
    """

    def __init__(self, clock: _Clock, places: int, seconds: Callable[[int], float]) -> None:
        self._clock, self._places, self._seconds = clock, places, seconds
        self._taken = 0
        self._waiting: deque[Then] = deque()
        self.work = 0.0

    @property
    def calls(self) -> int:
        """Those that are there, waiting or served."""
        return self._taken + len(self._waiting)

    def visit(self, then: Then) -> None:
        self._waiting.append(then)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._taken < self._places:
            seconds, then = self._seconds(self._taken), self._waiting.popleft()
            self._taken += 1
            self.work += seconds

            def leave(then: Then = then) -> None:
                self._taken -= 1
                then()
                self._fill()

            self._clock.after(seconds, leave)


class _Driver:
    """One processor that all visitors share; each needs as much of it.

    Args:
        clock: of the simulation.
        seconds: that a visit takes of it.
    """

    def __init__(self, clock: _Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        # What each visitor has got since the start, and how much of it each leaves with, by arrival.
        self._got, self._at = 0.0, 0.0
        self._visitors: deque[tuple[float, Then]] = deque()
        self._plan = 0
        self.work = 0.0

    def visit(self, then: Then) -> None:
        self._catch_up()
        self._visitors.append((self._got + self._seconds, then))
        self.work += self._seconds
        self._next()

    def _catch_up(self) -> None:
        if self._visitors:
            self._got += (self._clock.now - self._at) / len(self._visitors)
        self._at = self._clock.now

    def _next(self) -> None:
        self._plan += 1
        if not self._visitors:
            return
        plan = self._plan

        def leave() -> None:
            if plan == self._plan:  # nobody has come since
                self._catch_up()
                _, then = self._visitors.popleft()
                self._next()
                then()

        self._clock.after(max(0.0, self._visitors[0][0] - self._got) * len(self._visitors), leave)


class _Run:
    def __init__(self, setting: Setting, questions: Iterator[Sequence[int]], seed: int) -> None:
        self.setting, self.questions = setting, questions
        self.random = random.Random(seed)
        self.clock = clock = _Clock()
        # Half of the driver's time is spent before a call, half after it.
        self.driver = _Driver(clock, setting.driver / 2)
        self.search = _Station(clock, setting.searchers, lambda _: setting.search)
        self.replicas = [_Station(clock, setting.slots, setting.service) for _ in range(setting.replicas)]
        self.calls = self.unanswered = 0

    def next_question(self) -> None:
        if (stages := next(self.questions, None)) is not None:
            self.stage(iter(stages))

    def stage(self, stages: Iterator[int]) -> None:
        width = next(stages, None)
        if width is None:
            self.next_question()
            return
        open_calls = width

        def ended() -> None:
            nonlocal open_calls
            open_calls -= 1
            if not open_calls:
                self.stage(stages)

        def ask() -> None:
            for _ in range(width):
                self.call(ended)

        if self.setting.search:
            self.search.visit(ask)
        else:
            ask()

    def call(self, ended: Then, failed: int = 0) -> None:
        def answered() -> None:
            self.calls += 1
            if self.random.random() >= self.setting.failures:
                self.driver.visit(ended)
            elif failed < RETRIES:
                wait = self.random.uniform(0, 2**failed)
                self.clock.after(wait, lambda: self.call(ended, failed + 1))
            else:
                self.unanswered += 1
                self.next_question()

        self.driver.visit(lambda: routed(self.replicas, self.setting.routing, self.random).visit(answered))


def simulate(setting: Setting, questions: Sequence[Sequence[int]], number: int = 0, seed: int = 7) -> Outcome:
    """What an evaluation takes.

    Args:
        setting: of driver and server.
        questions: the widths of each question's stages.
        number: questions to ask, these again and again; 0 for each of them once.
        seed: of failures and waits.

    Example:
        >>> simulate(Setting(in_flight=1, driver=0.0, service=lambda others: 0.1), [[1, 2], [1]]).seconds
        0.30000000000000004
    """
    number = number or len(questions)
    run = _Run(setting, (questions[place % len(questions)] for place in range(number)), seed)
    for _ in range(min(setting.in_flight, number)):
        run.next_question()
    run.clock.run()
    seconds = run.clock.now
    widest = setting.in_flight * max(max(stages) for stages in questions if stages)
    slots = min(setting.slots * setting.replicas, widest)
    busy = {
        "driver": run.driver.work / seconds,
        "search": run.search.work / (setting.searchers * seconds),
        "server": sum(replica.work for replica in run.replicas) / (slots * seconds),
    }
    return Outcome(seconds, run.calls, run.unanswered, busy)
