"""What pydantic complains about, as one line for people."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from hoptimizer.common.errors import UserError, nearest

# Keys of a config whose values, and those of the keys below them, are secrets.
_SECRETS = frozenset({"api_key", "extra_headers"})


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first of pydantic's complaints as one line that names the key and what was expected."""
    first = error.errors()[0]
    key = prefix + ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, first["loc"][:-1])
        return f"{key}: unknown key; {nearest(str(first['loc'][-1]), known)}"
    if first["type"] == "value_error" and isinstance(cause := first.get("ctx", {}).get("error"), UserError):
        return str(cause)
    if key == "data" and first["type"] == "missing":
        return "data: required: a bundled set or a folder, e.g. data=atlas"
    # A whole section is not shown: it may hold a secret key.
    hidden = first["type"] == "missing" or isinstance(first["input"], dict) or _is_secret(key)
    got = "" if hidden else f", got {first['input']!r}"
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}{got}"


def refused(key: str, value: str, reason: Exception) -> str:
    """Why a ``key=value`` argument can't be read, in one line; a secret is not shown, nor a reason that quotes it.

    >>> refused("lm.default.api_key", "a: b: c", ValueError("mapping values are not allowed here: a: b: c"))
    "lm.default.api_key: can't be read as YAML; put the value between quotes"

    Args:
        key: dotted.
        value: what was given for it.
        reason: what reading it raised.
    """
    if _is_secret(key):
        return f"{key}: can't be read as YAML; put the value between quotes"
    return f"{key}={value}: {' '.join(str(reason).split())}"


def _is_secret(key: str) -> bool:
    return not _SECRETS.isdisjoint(key.split("."))


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Names of the fields of the model found along a path of field names."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = next(_models(field.annotation), None) if field else None
        model = inner or model
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - a type annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)
