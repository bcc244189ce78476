"""JSON and YAML of whatever origin: read whole, or refused in one line."""

import io
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import yaml

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded
from hoptimizer.common.urls import says_secret

Key = tuple[str, ...]
"""A dotted key of a config, part by part."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader of plain data, in C where it was built with that."""

# More lists and mappings within each other than anything has that is meant.
_DEEPEST = 100
# What PyYAML raises, beside its own errors and ValueError, for a value that does not fit the tag before it.
_UNFIT = (AttributeError, LookupError, TypeError)
# Nothing counts further, and Python writes no number of more than 4,300 digits.
_BITS = 63
_HALVES = re.compile("[\ud800-\udfff]")


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


def shallow(text: str) -> str:
    """A text of any format itself.

    Raises:
        ValueError: so many brackets are open at once that a parser would end the process, or repair it for minutes; the
            message is one line.
    """
    depth = itertools.accumulate((char in "[{") - (char in "]}") for char in text)
    if max(depth, default=0) > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")
    return text


def read_yaml(text: str, load: Callable[[TextIO], Any] = yaml.safe_load) -> Any:  # noqa: ANN401 - whatever the text holds
    """What a YAML text holds.

    Args:
        text: the text.
        load: reads it; by default as plain data.

    Raises:
        yaml.YAMLError: it is malformed, or names a Python object.
        ValueError: it is nested too deeply, holds what :func:`checked` refuses, or a value that does not fit its tag.

    Example:
        >>> from hoptimizer.common.strict import read_yaml
        >>> read_yaml("data: atlas")
        {'data': 'atlas'}
        >>> read_yaml("- " * 100_000)
        Traceback (most recent call last):
        ValueError: nested more than 100 deep
    """
    try:
        return checked(load(io.StringIO(flat(text))))  # from a stream: errors in a string would quote it
    except _UNFIT as error:
        raise ValueError(f"a value does not fit the tag before it ({type(error).__name__}: {error})") from error


def checked(values: Any, *, texts: bool = True) -> Any:  # noqa: ANN401 - any plain data
    """Plain data itself.

    Args:
        values: whatever was read.
        texts: whether texts are looked at, too.

    Raises:
        ValueError: a number in it is endless or too long, a text is no valid Unicode, so that it can't be written, or
            something is no plain data, as bytes in YAML are not; the message is one line.

    Example:
        >>> from hoptimizer.common.strict import checked
        >>> checked({"seed": 10**20})
        Traceback (most recent call last):
        ValueError: expected a number of at most 64 bits, got a longer one
    """
    if isinstance(values, str):  # first: of most data, nearly everything
        if texts and _HALVES.search(values):
            raise ValueError(f"expected valid Unicode text, got {values!r:.60}")
    elif isinstance(values, Mapping | list):
        parts = itertools.chain.from_iterable(values.items()) if isinstance(values, Mapping) else values
        for part in parts:
            checked(part, texts=texts)
    elif isinstance(values, float) and not math.isfinite(values):
        raise ValueError(f"expected a finite number, got {values}")
    elif isinstance(values, int) and values.bit_length() > _BITS:
        raise ValueError("expected a number of at most 64 bits, got a longer one")
    elif values is not None and not isinstance(values, int | float):
        raise ValueError(f"expected text, numbers, lists and mappings, got {type(values).__name__}")
    return values


def read_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever the text holds
    """What a JSON text holds.

    Args:
        text: the text, or its bytes.

    Raises:
        ValueError: it is malformed (a ``json.JSONDecodeError``), is no Unicode text, names a key twice, is nested too
            deeply or holds a number of thousands of digits; the message is one line.

    Example:
        >>> from hoptimizer.common.strict import read_json
        >>> read_json('{"id": "1"}')
        {'id': '1'}
        >>> read_json('{"id": "1", "id": "2"}')
        Traceback (most recent call last):
        ValueError: the key 'id' is there twice
    """
    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON text, from its keys and values.

    Raises:
        ValueError: a key is there twice; the message is one line.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return values


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds, its interpolations not yet resolved.

    Raises:
        UserError: the file is missing or holds something else.
    """
    from omegaconf import OmegaConf  # of configs alone
    from omegaconf.errors import OmegaConfBaseException

    def plain(stream: TextIO) -> Any:  # noqa: ANN401 - whatever the file holds
        """By OmegaConf, which refuses a key that is there twice and aliases without end."""
        return OmegaConf.to_container(OmegaConf.load(stream), resolve=False)

    if not (file := expanded(path)).is_file():
        raise UserError(f"{path}: no such config file")
    try:
        values = read_yaml(file.read_bytes().decode("utf-8-sig"), plain)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8; save the file as UTF-8") from error
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).replace('in "<file>", ', "at ")  # PyYAML does not know its name
        raise UserError(f"{path}: not a YAML mapping: {reason}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a YAML mapping: expected keys such as data and program")
    return values


def read_argument(word: str) -> tuple[Key, dict[str, Any]]:
    """The key of a ``key=value`` argument, and plain data that has nothing but that key.

    Args:
        word: the argument, its value as YAML, interpolations not yet resolved.

    Raises:
        UserError: it is something else.

    Example:
        >>> from hoptimizer.common.strict import read_argument
        >>> read_argument("program.max_steps=3")
        (('program', 'max_steps'), {'program': {'max_steps': 3}})
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UserError(f"{word!r}: expected key=value, e.g. program.name=ircot")
    parts = tuple(key.split("."))
    try:
        flat(value)
        parsed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([word]))
        if says_secret(key) and isinstance(value_at(parsed, parts), int | float):
            # It is taken as it is written: YAML reads 0123 as 83.
            parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"{key}={json.dumps(value)}"]))
    except (OmegaConfBaseException, yaml.YAMLError, ValueError):
        # The reason is not told, because it quotes the value, which may be a secret.
        raise UserError(f"{key}: the value after = can't be read; expected YAML, with text in quotes") from None
    try:
        return parts, checked(parsed)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None


def value_at(values: Any, key: Key) -> Any:  # noqa: ANN401 - any value of a config
    """What stands at a key of plain data; ``None`` where nothing does."""
    for part in key:
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
