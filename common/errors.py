"""The one exception for what a user can put right."""

from collections.abc import Iterable, Iterator

from rapidfuzz import process

# Characters of a message; a name or a value that it quotes may be a whole file.
_LONGEST = 2000


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
