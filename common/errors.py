"""The exceptions for what a user can put right: in what was given, and in parts of the user's own."""

import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rapidfuzz import process

# Characters of a message; a name or a value that it quotes may be a whole file.
_LONGEST = 2000
_OURS = __name__.partition(".")[0]


class UserError(ValueError):
    """Something the user gave is missing, malformed or out of reach.

    Its message is one line that names the file, line or key, what was expected and what to do. The command
    line prints that line alone and exits with code 2; library callers catch it as a ``ValueError``.

    Args:
        message: what it says. Whatever it quotes, it is one line that can be written: ends of lines become spaces,
            halves of a character are escaped, and the middle of what is very long is left out.

    Example:
        >>> from hoptimizer import UserError, load_config
        >>> try:
        ...     load_config(None, ["data=atlas", "metric=f2"])
        ... except UserError as error:
        ...     print(error)
        metric: there is no metric or count 'f2'; ...
    """

    def __init__(self, message: str) -> None:
        super().__init__(as_line(message))


class ServiceError(UserError):
    """A service that is needed did not do its part: a language model's server, for instance.

    Nothing that was given is wrong; the same command can succeed later, and goes on from what was done. The command
    line prints its message and exits with code 1.

    Example:
        >>> from hoptimizer import ServiceError, Tracker
        >>> try:
        ...     Tracker("http://127.0.0.1:9", "atlas")
        ... except ServiceError as error:
        ...     print(error)
        tracking.uri: no answer from http://127.0.0.1:9 ...
    """


class RefusedQueryError(UserError):
    """A search that answers others refuses a query, as for its length: one question fails by it, not a run of many."""


class PartError(UserError):
    """A part of the user's own has a mistake: it raised what it should not, or gave something else than it should.

    The message names the part and, of what it raised, the line; that error is the cause.
    """


def part_error(part: object, member: str, reason: str) -> PartError:
    """The error of a part.

    Args:
        part: the part.
        member: its method or attribute.
        reason: what was expected, and what came.
    """
    kind = type(part)
    return PartError(f"{kind.__module__}:{kind.__qualname__}.{member}: {reason}")


@contextmanager
def own_errors(part: object, method: str, asked: object, expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Within it, a method of a part is called. What one of the user's raises is a :class:`PartError`, what one of ours
    raises stays as it is, for that is a bug of ours.

    Args:
        part: the part.
        method: its method.
        asked: what it is asked, for messages.
        expected: what it may raise, besides a ``UserError``.

    Example:
        >>> from hoptimizer.common.errors import own_errors
        >>> class Mine:
        ...     pass
        >>> with own_errors(Mine(), "solve", "Where?"):
        ...     int("three")
        Traceback (most recent call last):
        hoptimizer.common.errors.PartError: ...:Mine.solve: ValueError: invalid literal for int() with base 10: ...
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (UserError, *expected)) or type(part).__module__.partition(".")[0] == _OURS:
            raise
        raised = f"{type(error).__name__}: {error}"
        raise part_error(part, method, f"{raised} ({_place(part, error)}), asked {asked!r:.100}") from error


def _place(part: object, error: Exception) -> str:
    """Where an error rose: the last line of the part's own file, or of any."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(type(part).__module__), "__file__", None)
    frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"{frame.filename}, line {frame.lineno}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it rose from or while handling which, outermost first.

    Args:
        error: any, or ``None``.
    """
    while error:
        yield error
        error = error.__cause__ or error.__context__


def as_line(message: str) -> str:
    """A message as one line that can be written, whatever it quotes.

    Args:
        message: any text: ends of lines become spaces, halves of a character are escaped, and the middle of what is
            very long is left out.

    Example:
        >>> from hoptimizer.common.errors import as_line
        >>> as_line("no answer\\n  from \\ud800")
        'no answer from \\\\ud800'
    """
    line = " ".join(part.strip() for part in message.splitlines())
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    return line.encode("utf-8", "backslashreplace").decode("utf-8")


def closest(given: str, known: Iterable[str], score: float = 60) -> str | None:
    """The known name that resembles a given one most, if one does.

    Args:
        given: what the user wrote.
        known: what would have been right.
        score: the least similarity of the two names, from 0 to 100.
    """
    best = process.extractOne(given.lower(), sorted(known), score_cutoff=score)
    return best[0] if best else None


def nearest(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known one, and all of them."""
    names = sorted(known)
    near = closest(given, names)
    return f"{f'did you mean {near!r}? ' if near else ''}known: {', '.join(names)}"


def unknown(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not known."""
    return UserError(f"no {kind} is called {given!r}; {nearest(given, known)}")
