"""The files by which sentence-transformers and PyLate describe an encoder: its modules, their settings and weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import is_within
from hoptimizer.common.strict import read_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
Kind = Literal["Transformer", "Pooling", "Dense", "Normalize"]
_KINDS: tuple[Kind, ...] = ("Transformer", "Pooling", "Dense", "Normalize")
_WEIGHTS = "model.safetensors"
# Named in the files as Python classes; none is looked up there, because a name could stand for any code.
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}


@dataclass(frozen=True)
class Module:
    """One of the modules that texts pass through in turn.

    Attributes:
        kind: the last part of its class' name.
        folder: where its files are.
    """

    kind: Kind
    folder: Path


def read_modules(folder: Path) -> list[Module]:
    """The modules that ``modules.json`` of a model's folder names, in order; none where there is no such file.

    Raises:
        UserError: the file is malformed, names a folder elsewhere, or a module of another kind.
    """
    file = folder / MODULES
    if not file.is_file():
        return []
    listed = _json(file)
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise UserError(f"{file}: expected a list of modules; take the file as it was published")
    modules = []
    for one in listed:
        path, kind = one.get("path", ""), str(one.get("type", "")).rpartition(".")[2]
        if not isinstance(path, str) or not is_within(folder, path):
            raise UserError(f"{file}: {path!r:.60} is no folder of the model; take the file as it was published")
        known = next((known for known in _KINDS if known == kind), None)
        if known is None:
            raise UserError(
                f"{file}: a module of the type {one.get('type')!r:.80} is not known here; "
                f"take a model that has none but {', '.join(_KINDS)}"
            )
        modules.append(Module(known, folder / path))
    if not modules or modules[0].kind != "Transformer":
        raise UserError(f"{file}: the first module is no Transformer; take the file as it was published")
    return modules


def read_settings(file: Path) -> dict[str, Any]:
    """A mapping in a file of JSON; empty where there is no such file.

    Raises:
        UserError: it is malformed.
    """
    if not file.is_file():
        return {}
    settings = _json(file)
    if not isinstance(settings, dict):
        raise UserError(f"{file}: expected a mapping; take the file as it was published")
    return settings


class Projection(nn.Module):
    """A linear layer on vectors, with what sentence-transformers' and PyLate's ``Dense`` add to it.

    Args:
        folder: its ``config.json`` and weights as safetensors.
        size: length of the vectors that come in.

    Raises:
        UserError: its files are malformed, are for other vectors, or have what is not known here.

    Attributes:
        dim: length of the vectors that come out.
    """

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__()
        settings = read_settings(folder / "config.json")
        weights = _weights(folder / _WEIGHTS)
        linear = weights.get("linear.weight")
        if linear is None or linear.dim() != 2 or linear.shape[1] != size:
            raise UserError(
                f"{folder / _WEIGHTS}: no linear.weight for vectors of {size} numbers; take it as it was published"
            )
        self.dim: int = linear.shape[0]
        self.linear = nn.Linear(size, self.dim, bias="linear.bias" in weights)
        self.activation = _activation(settings, folder)
        self.residual: nn.Module | None = None
        if settings.get("use_residual"):
            widens = self.dim != size
            self.residual = nn.Linear(size, self.dim, bias=False) if widens else nn.Identity()
        try:
            self.load_state_dict({name: weight.float() for name, weight in weights.items()})
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{folder / _WEIGHTS}: other weights than a projection's ({reason:.200})") from error
        self.requires_grad_(False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors ``(..., dim)`` from vectors ``(..., in)``."""
        projected: torch.Tensor = self.activation(self.linear(vectors))
        return projected if self.residual is None else projected + self.residual(vectors)


def load_projections(folders: Sequence[Path], size: int) -> tuple[nn.Sequential, int]:
    """Projections one after the other, and the length of the vectors that come out.

    Args:
        folders: of each, in order.
        size: length of the vectors that come in.

    Raises:
        UserError: one's files are malformed, or it does not fit what comes before it.
    """
    layers = []
    for folder in folders:
        layers.append(Projection(folder, size))
        size = layers[-1].dim
    return nn.Sequential(*layers), size


def _activation(settings: dict[str, Any], folder: Path) -> nn.Module:
    # sentence-transformers has tanh by default, PyLate none; both write down which they used.
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    made = _ACTIVATIONS.get(name.rpartition(".")[2]) if name.startswith("torch.nn.") else None
    if made is None:
        raise UserError(
            f"{folder / 'config.json'}: activation_function: {name!r:.80} is not known here; take a model that has one "
            f"of {', '.join(_ACTIVATIONS)}"
        )
    return made()


def _weights(file: Path) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise UserError(
            f"{file}: no such file, and weights in another format are not read; convert them to safetensors"
        )
    try:
        return load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file}: is broken ({error}); take the folder as it was published") from error


def _json(file: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    try:
        return read_json(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error}); take the file as it was published") from error
