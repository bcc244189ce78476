"""What to say about a name that nothing answers to."""

import difflib
from collections.abc import Iterable

from hoptimizer.models.errors import UserError


def suggest(name: str, known: Iterable[str], closeness: float = 0.6) -> str:
    """``" (did you mean 'x'?)"`` for the nearest known name, or nothing where none is near.

    Args:
        name: what was given.
        known: what there is.
        closeness: how much of the two must agree, 0 to 1 (difflib's ratio).
    """
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=closeness)
    return f" (did you mean {near[0]!r}?)" if near else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among ``known``: names the nearest one and lists them all."""
    names = sorted(known)
    return UserError(f"no {kind} is called {name!r}{suggest(name, names)}; choose one of {', '.join(names)}")
