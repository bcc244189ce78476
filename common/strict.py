"""JSON and YAML of whatever origin: read whole, or refused in one line."""

import itertools
import json
from typing import Any

# More brackets within each other than anything has that is meant.
_DEEPEST = 100


def flat(text: str) -> str:
    """A YAML text itself.

    Raises:
        ValueError: it is nested so deeply that a parser would end the process; the message is one line.
    """
    depth = itertools.accumulate((char in "[{") - (char in "]}") for char in text)
    if max(depth, default=0) > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")
    return text


def read_json(text: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """What a JSON text holds.

    Raises:
        ValueError: it is malformed (a ``json.JSONDecodeError``), names a key twice, is nested too deeply or holds a
            number that is too long; the message is one line.

    Example:
        >>> from hoptimizer.common.strict import read_json
        >>> read_json('{"id": "1"}')
        {'id': '1'}
        >>> read_json('{"id": "1", "id": "2"}')
        Traceback (most recent call last):
        ValueError: the key 'id' is there twice
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return values
