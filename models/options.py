"""A pydantic model from a constructor, so that options and their defaults are written once."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model


def options_model(name: str, constructor: Callable[..., Any], given: Collection[str] = ()) -> type[BaseModel]:
    """The options of ``constructor`` as a model that forbids unknown keys.

    Args:
        name: value of the model's ``name`` field, by which a config chooses the constructor.
        constructor: a class or function whose parameters are annotated (``Annotated[int, Field(ge=1)]`` and the like
            are honoured) and have defaults.
        given: parameters that the caller fills in itself and a config may not set.
    """
    fields: dict[str, Any] = {
        key: (parameter.annotation, parameter.default)
        for key, parameter in inspect.signature(constructor).parameters.items()
        if key not in given
    }
    title = "".join(word.capitalize() for word in name.split("_"))
    return create_model(title, __config__=ConfigDict(extra="forbid", frozen=True), name=(str, name), **fields)
