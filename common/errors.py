"""The one exception for what a user can put right."""

from collections.abc import Iterable, Iterator

from rapidfuzz import process


class UserError(ValueError):
    """Something the user gave is missing, malformed or out of reach.

    Its message is one line that names the file, line or key, what was expected and what to do. The command
    line prints that line alone and exits with code 2; library callers catch it as a ``ValueError``.

    Example:
        >>> from hoptimizer import UserError, load_config
        >>> try:
        ...     load_config(None, ["data=atlas", "metric=f2"])
        ... except UserError as error:
        ...     print(error)
        metric: there is no metric or count 'f2'; ...
    """


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


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it rose from or while handling which, outermost first.

    Args:
        error: any, or ``None``.
    """
    while error:
        yield error
        error = error.__cause__ or error.__context__


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
