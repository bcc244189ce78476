"""What a worker is told: what to answer questions with, and which versions it must have."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, SecretStr

from hoptimizer.config import Config
from hoptimizer.models.folder import fingerprints

COMPUTING = ("torch", "transformers")
"""The packages on which the last bits of what a model computes depend."""


def versions(*packages: str) -> dict[str, str]:
    """What driver and workers must have in common, since results and the code that reads them depend on it.

    Args:
        packages: others than those that always count.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    own = {"Python": python} | {name: version(name) for name in ("hoptimizer", "dspy")}
    # Without what a build is for: the machine that starts the work may have the CPU's PyTorch, others the GPU's.
    return own | {name: version(name).partition("+")[0] for name in packages}


@dataclass(frozen=True)
class Node:
    """What a worker's machine must have in common with the driver's.

    Attributes:
        versions: as of :func:`versions`.
        models: the language models that are loaded there, by their names.
        fingerprints: of those that are folders, as of :func:`~hoptimizer.models.folder.fingerprints`; empty where the
            driver's machine has none of these folders.
    """

    versions: dict[str, str]
    models: tuple[str, ...] = ()
    fingerprints: str = ""

    @classmethod
    def for_models(cls, names: Sequence[str], *, computes: bool = True) -> "Node":
        """What must be there as it is here.

        Args:
            names: of the language models that are loaded there.
            computes: whether models are.
        """
        return cls(versions(*(COMPUTING if computes else ())), tuple(names), fingerprints(names))

    def lacking(self) -> str | None:
        """What a worker says where its machine has something else; ``None`` where it has all of it."""
        here = versions(*(name for name in self.versions if name in COMPUTING))
        told = [f"{name} {here[name]} and not {found}" for name, found in self.versions.items() if here[name] != found]
        if told:
            return f"it has {', '.join(told)}; install the same versions on all nodes"
        if self.fingerprints and fingerprints(self.models) != self.fingerprints:
            return f"lm: a folder of {', '.join(self.models)} holds other files than the driver's; copy it to all nodes"
        return None


@dataclass(frozen=True)
class Task:
    """What a worker makes its program from.

    Attributes:
        data: digest of the data set that it must have.
        node: what else its machine must have.
        state: the compiled program's state, or ``None`` for an uncompiled one.
        variant: where a compiled program's models are kept.
        sharing: how many workers share the calls that may be under way at once.
    """

    data: str
    node: Node
    state: dict[str, Any] | None = None
    variant: str = ""
    sharing: int = 1


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


def call_limits(values: Mapping[str, Any]) -> list[int]:
    """The calls under way at once that a config as plain data allows, of each language model that it limits."""
    return [lm["max_concurrency"] for lm in values["lm"].values() if lm["max_concurrency"]]


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
