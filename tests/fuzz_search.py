"""Feeding strange inputs, and telling clean errors from others."""

import contextlib
import io
import math
import re
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky, FlakyFailure
from hypothesis.strategies import SearchStrategy

from hoptimizer.common.errors import UserError

SECONDS = 10
"""Of the processor, that one input may take; by the clock, which other processes share, ten times as many."""

MEMORY = 2 << 30
"""Bytes that one input may take beyond what is in use before."""

LINE = 4_000
"""Characters that the line of a clean error may have."""


SHRINKING = 30
"""Seconds by the clock in which a smaller input is looked for that fails in the same way."""


@dataclass(frozen=True)
class Target:
    """What inputs are fed to.

    Attributes:
        name: for the command line.
        inputs: what is fed.
        open: makes what the inputs need in an empty folder, and gives what takes one of them. It raises a
            ``UserError`` where it refuses one; anything else that it raises is a failure.
    """

    name: str
    inputs: SearchStrategy
    open: Callable[[Path], AbstractContextManager[Callable[[Any], None]]]


@dataclass
class Finding:
    """A failure.

    Attributes:
        what: the error and where it rose.
        given: the smallest input found that fails so.
        count: how many inputs failed so.
    """

    what: str
    given: str
    count: int = 1


@dataclass
class Fuzzed:
    """What a search came to.

    Attributes:
        target: its name.
        accepted: inputs that were valid.
        refused: inputs that ended in a clean error.
        seconds: that it took.
        findings: its failures, each once.
    """

    target: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """How many were fed."""
        return self.accepted + self.refused + sum(finding.count for finding in self.findings.values())


class Unclean(Exception):
    """An input ended in something else than a result or a clean error."""


class TookTooLong(BaseException):
    """An input took more than :data:`SECONDS`; no ``Exception``, because code that catches those must not catch it."""


class _SmallEnough(BaseException):
    """Nothing smaller is looked for; hypothesis passes on what is no ``Exception``."""


@contextlib.contextmanager
def bounded():
    """Within it, too much time and too much memory are errors."""

    def stop(*_):
        raise TookTooLong(f"more than {SECONDS} seconds")

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, 10 * SECONDS)}
    before = {kind: signal.signal(kind, stop) for kind, _ in timers.values()}
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if status := Path("/proc/self/status") if Path("/proc/self/status").exists() else None:
        used = int(re.search(r"VmData:\s*(\d+) kB", status.read_text())[1]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, hard))
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        for kind, handler in before.items():
            signal.signal(kind, handler)


def feed(attempt, one):
    """Whether an input is accepted.

    Raises:
        Unclean: neither accepted nor refused by a clean error.
    """
    try:
        with bounded(), contextlib.redirect_stdout(io.StringIO()):
            attempt(one)
    except UserError as error:
        line = str(error)
        if len(line.splitlines()) != 1 or len(line) > LINE or line != line.encode("utf-8", "replace").decode():
            raise Unclean(f"no line of text at {_place(error)}: {line!r:.300}") from error
        return False
    except (Exception, TookTooLong) as error:
        raise Unclean(_described(error)) from error
    return True


def _described(error):
    return f"{type(error).__name__} at {_place(error)}: {' '.join(str(error).split())!r:.200}"


def _place(error):
    """Where an error rose: in our code, and in the library that it called."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "fuzz" not in Path(frame.filename).stem]
    own = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    places = [f"{'/'.join(Path(one.filename).parts[-2:])}:{one.lineno}" for one in (own[-1:] + frames[-1:])]
    return " in ".join(dict.fromkeys(places))


def search(target, minutes=None, rounds=None, examples=200, first_seed=0):
    """Feed a target.

    Args:
        target: a :class:`Target`.
        minutes: that it may take.
        rounds: of inputs, each with another seed; by default as many as there is time for.
        examples: inputs of a round.
        first_seed: of the first round.
    """
    found = Fuzzed(target.name)
    start = time.monotonic()

    def is_over():
        return minutes is not None and time.monotonic() - start > 60 * minutes

    with tempfile.TemporaryDirectory() as folder, target.open(Path(folder)) as attempt:
        number = first_seed
        while not is_over() and (rounds is None or number < first_seed + rounds):
            _round(target, attempt, found, examples, number, is_over)
            number += 1
    found.seconds = time.monotonic() - start
    return found


def _round(target, attempt, found, examples, number, is_over):
    """A round of inputs; what fails as others did before is counted alone."""
    known, new = set(found.findings), {}
    since = math.inf

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(target.inputs)
    def inputs(one):
        nonlocal since
        if is_over() and not new:
            return
        if time.monotonic() > since + SHRINKING:
            raise _SmallEnough
        try:
            accepted = feed(attempt, one)
        except Unclean as error:
            key = _key(error)
            if key in known:
                found.findings[key].count += 1
                return
            since = min(since, time.monotonic())
            # The last one is the smallest.
            new[key] = Finding(str(error), f"{one!r:.1000}")
            raise
        found.accepted += accepted
        found.refused += not accepted

    try:
        inputs()
    except (Unclean, Flaky, FlakyFailure, _SmallEnough):
        found.findings |= new


def _key(error):
    """What two failures have in common that are one."""
    return re.sub(r": ['\"].*", "", str(error), flags=re.DOTALL)
