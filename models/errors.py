"""The one exception for what a user can put right."""

from collections.abc import Iterable

from rapidfuzz import process


class UserError(ValueError):
    """Something the user gave is missing, malformed or out of reach.

    Its message is one line that names the file, line or key, what was expected and what to do. The command
    line prints that line alone and exits with code 2; library callers catch it as a ``ValueError``.
    """


def nearest(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known one, and all of them.

    Args:
        given: what the user wrote.
        known: what would have been right.
    """
    names = sorted(known)
    best = process.extractOne(given, names, score_cutoff=60)
    hint = f"did you mean {best[0]!r}? " if best else ""
    return f"{hint}known: {', '.join(names)}"
