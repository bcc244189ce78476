"""JSON and YAML of whatever origin: read whole, or refused in one line."""

import io
import json
from collections.abc import Callable
from typing import Any, TextIO

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader of plain data, in C where it was built with that."""

# More lists and mappings within each other than anything has that is meant.
_DEEPEST = 100
# What PyYAML raises, beside its own errors and ValueError, for a value that does not fit the tag before it.
_UNFIT = (AttributeError, LookupError, TypeError)


def flat(text: str) -> str:
    """A YAML text itself.

    Raises:
        yaml.YAMLError: it is malformed.
        ValueError: it is nested so deeply that a parser would end the process; the message is one line.
    """
    depth = 0
    for event in yaml.parse(io.StringIO(text), LOADER):  # by events, whose parser is not recursive
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
    return text


def read_yaml(text: str, load: Callable[[TextIO], Any] = yaml.safe_load) -> Any:  # noqa: ANN401 - whatever the text holds
    """What a YAML text holds.

    Args:
        text: the text.
        load: reads it; by default as plain data.

    Raises:
        yaml.YAMLError: it is malformed, or names a Python object.
        ValueError: it is nested too deeply, holds a number that is too long or a value that does not fit its tag.

    Example:
        >>> from hoptimizer.common.strict import read_yaml
        >>> read_yaml("data: atlas")
        {'data': 'atlas'}
        >>> read_yaml("- " * 100_000)
        Traceback (most recent call last):
        ValueError: nested more than 100 deep
    """
    try:
        return load(io.StringIO(flat(text)))  # from a stream: errors in a string would quote it
    except _UNFIT as error:
        raise ValueError(f"a value does not fit the tag before it ({type(error).__name__}: {error})") from error


def read_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever the text holds
    """What a JSON text holds.

    Args:
        text: the text, or its bytes.

    Raises:
        ValueError: it is malformed (a ``json.JSONDecodeError``), is no Unicode text, names a key twice, is nested too
            deeply or holds a number that is too long; the message is one line.

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
