"""What a worker is told: what to answer questions with, and which versions it must have."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, SecretStr

from hoptimizer.config import Config

COMPUTING = ("torch", "transformers")
"""The packages on which the last bits of what a model computes depend."""


def versions(*packages: str) -> dict[str, str]:
    """What driver and workers must have in common, since results and the code that reads them depend on it.

    Args:
        packages: others than those that always count.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python} | {name: version(name) for name in ("hoptimizer", "dspy", *packages)}


def differing(there: Mapping[str, str]) -> str | None:
    """What a worker says where its versions are others than the driver's; ``None`` where they are the same.

    Args:
        there: the driver's.
    """
    here = versions(*(name for name in there if name != "Python"))
    told = ", ".join(f"{name} {here[name]} and not {found}" for name, found in there.items() if here[name] != found)
    return f"it has {told}; install the same versions on all nodes" if told else None


@dataclass(frozen=True)
class Task:
    """What a worker makes its program from.

    Attributes:
        data: digest of the data set that it must have.
        state: the compiled program's state, or ``None`` for an uncompiled one.
        variant: where a compiled program's models are kept.
        versions: what the driver has of :func:`versions`.
    """

    data: str
    state: dict[str, Any] | None = None
    variant: str = ""
    versions: dict[str, str] = field(default_factory=versions)


@dataclass(frozen=True)
class Refusal:
    """Why a worker can't do what it was told. It is returned, because what rises in a worker comes with a traceback.

    Attributes:
        message: in one line.
        is_outage: whether a service gave no answer, rather than that something is wrong.
    """

    message: str
    is_outage: bool = False


def unmasked(config: Config) -> dict[str, Any]:
    """A config as plain data with its keys, for a worker; it goes to no file and no log."""
    values: dict[str, Any] = _plain(config)
    return values


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a config holds
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value
