"""What pydantic complains about, as one line for people."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.urls import text_without_secrets

# What pydantic calls it where something else stands in the place of a section.
_NO_SECTION = ("model_type", "model_attributes_type")
_LOGIN = re.compile(r"[^\s'\"/:]+:[^\s'\"]*@")


class Section(BaseModel):
    """A section of a config: without unknown keys, and without true and false in the place of numbers."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - whatever the config holds
        if isinstance(value, bool):  # pydantic takes them for 1 and 0, and YAML reads yes and on as true
            types = [*_types(cls.model_fields[str(info.field_name)].annotation)]
            if bool not in types and (int in types or float in types):
                raise ValueError("expected a number")
        return value


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
    if first["type"] in _NO_SECTION:
        known = _fields_at(model, first["loc"])
        return f"{key}: expected keys such as {', '.join(known[:3])}; got {type(first['input']).__name__}"
    got = "" if first["type"] == "missing" or _may_hold_a_secret(first, model) else f", got {_shown(first['input'])}"
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}{got}"


def _may_hold_a_secret(error: ErrorDetails, model: type[BaseModel]) -> bool:
    """Whether what was given is not to be shown: a secret, or a section."""
    if isinstance(error["input"], dict):
        return True
    return any(SecretStr in _types(field.annotation) for field in _fields_along(model, error["loc"]))


def _shown(value: object) -> str:
    """A value without the passwords and keys of the URLs in it, one that lacks its ``http://`` among them."""
    return _LOGIN.sub("***@", text_without_secrets(repr(value)))


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Names of the fields of the model found along a path of field names."""
    for field in _fields_along(model, path):
        model = next(_models(field.annotation), model)
    return list(model.model_fields)


def _fields_along(model: type[BaseModel], path: Sequence[int | str]) -> Iterator[FieldInfo]:
    """The fields along a path of field names; other parts of it, such as keys of a mapping, are passed over."""
    for part in path:
        if field := model.model_fields.get(str(part)):
            yield field
            model = next(_models(field.annotation), model)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - a type annotation
    return (one for one in _types(annotation) if isinstance(one, type) and issubclass(one, BaseModel))


def _types(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - a type annotation
    """An annotation and what it is made of."""
    yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _types(argument)
