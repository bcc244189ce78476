"""The layers of a config, a file below and arguments above it, merged so that names and options go in any order."""

from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hoptimizer.common.errors import UserError
from hoptimizer.models.settings import LMSettings

Path = tuple[str, ...]
"""Where a value is in a config: the keys that lead to it."""


class Whole(dict[str, Any]):
    """A mapping that takes the place of what a lower layer has at its key, as in ``program={name: rag, k: 2}``."""


def layer(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file holds, as a layer.

    Args:
        values: the file's mapping, as plain data.

    Example:
        >>> from hoptimizer.layers import layer
        >>> layer({"lm": {"model": "openai/gpt-4o", "temperature": 0.7}})
        {'lm': {'default': {'model': 'openai/gpt-4o', 'temperature': 0.7}}}
    """
    values = _by_role(values)
    if isinstance(metric := values.get("metric"), Mapping):
        values["metric"] = Whole(metric)  # half of one objective and half of another is neither
    return values


def arguments(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` arguments as one layer, in whatever order they come.

    Args:
        words: the arguments; of several with the same key, the last one counts.

    Raises:
        UserError: one of them is no ``key=value``.

    Example:
        >>> from hoptimizer.layers import arguments
        >>> arguments(["program.max_steps=4", "program=ircot"])
        {'program': {'max_steps': 4, 'name': 'ircot'}}
    """
    merged: dict[str, Any] = {}
    for word in words:
        merged = _merged(merged, _argument(word), (), above=False)
    return merged


def on_top(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """One layer on top of another.

    Where the upper one names something else than the lower one (``program=rag`` over ``program: {name: ircot,
    max_steps: 4}``), it begins anew: options of the one say nothing about the other. A language model that is named so
    begins anew as well, without the server and the key of the one before it; ``lm.default.model=NAME`` changes the name
    alone.

    Args:
        lower: a layer.
        upper: the layer that wins.

    Example:
        >>> from hoptimizer.layers import arguments, on_top
        >>> file = {"program": {"name": "ircot", "max_steps": 4}}
        >>> on_top(file, arguments(["program=rag", "program.reader=cot"]))
        {'program': {'name': 'rag', 'reader': 'cot'}}
        >>> on_top(file, arguments(["program.reader=direct"]))
        {'program': {'name': 'ircot', 'max_steps': 4, 'reader': 'direct'}}
    """
    merged: dict[str, Any] = _plain(_merged(lower, upper, (), above=True))
    return merged


class _Named(dict[str, Any]):
    """Options of something that its layer names by a name alone, as ``program=rag`` does."""


def _merged(lower: Any, upper: Any, path: Path, *, above: bool) -> Any:  # noqa: ANN401 - any value of a config
    """Two values of one key.

    Args:
        lower: the value that loses.
        upper: the value that wins.
        path: where they are.
        above: whether ``upper`` is of a layer above; else both are of one layer, and it comes later.
    """
    names = isinstance(upper, str | _Named)
    lower, upper = _options(lower, upper, path), _options(upper, lower, path)
    if not isinstance(lower, Mapping) or not isinstance(upper, Mapping):
        return upper
    if above and (isinstance(upper, Whole) or (names and _is_other(lower, upper, path))):
        return dict(upper)
    merged = {key: _merged(lower[key], upper[key], (*path, key), above=above) for key in lower if key in upper}
    kind = _kind(lower, upper, names=names, above=above)
    return kind({**lower, **upper, **merged})


def _kind(lower: Any, upper: Any, *, names: bool, above: bool) -> type[dict[str, Any]]:  # noqa: ANN401 - as _merged
    """How the options of two arguments for one key are put on top of a file: as those of either argument would be."""
    if above:
        return dict
    if isinstance(lower, Whole) or isinstance(upper, Whole):
        return Whole
    return _Named if names or isinstance(lower, _Named) else dict


def _options(value: Any, other: Any, path: Path) -> Any:  # noqa: ANN401 - as _merged
    """A name as a mapping, where options have to be merged with it."""
    if not isinstance(value, str) or not isinstance(other, Mapping):
        return value
    return _Named({value: 1.0} if path == ("metric",) else {_name_key(path): value})


def _name_key(path: Path) -> str:
    return "model" if path[0] == "lm" else "name"


def _is_other(lower: Mapping[str, Any], upper: Mapping[str, Any], path: Path) -> bool:
    key = _name_key(path)
    return path == ("metric",) or lower.get(key, upper[key]) != upper[key]


def _by_role(values: Mapping[str, Any]) -> dict[str, Any]:
    """A layer with its language models by role; a name or options alone are those of the default one."""
    lm = values.get("lm")
    if isinstance(lm, str):
        return {**values, "lm": {"default": lm}}
    if not isinstance(lm, Mapping):
        return dict(values)
    own = {key: value for key, value in lm.items() if key in LMSettings.model_fields}
    roles = {key: value for key, value in lm.items() if key not in own}
    if own:
        roles["default"] = _merged(roles.get("default", {}), own, ("lm", "default"), above=False)
    return {**values, "lm": Whole(roles) if isinstance(lm, Whole) else roles}


def _argument(word: str) -> dict[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise UserError(f"{word!r}: expected key=value, e.g. program.name=ircot")
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist([word]))
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{key}={text}: {' '.join(str(error).split())}") from error
    *above, last = key.split(".")
    place = values
    for part in above:
        place = place.get(part, {})
    if isinstance(place.get(last), dict):
        place[last] = Whole(place[last])
    return _by_role(values)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a config
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
