"""Checkpoints of a training: each a folder that is written whole, and read as data alone."""

import json
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import read_json

StateDict = dict[str, Tensor]

_PREFIX = ".checkpoint-"
_DRAFT = ".checkpoint.part"
# What files raise that are damaged, or are something else: torch is told to read tensors alone.
_UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError, pickle.UnpicklingError)


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stands.

    Attributes:
        key: a digest of its data and config.
        step: the number of updates done.
        best: the best epoch so far, as plain data, or ``None``.
        weights: the master weights.
        optimizer: the state of the optimizer.
        kept: the weights of the best epoch; empty where there is none.
    """

    key: str
    step: int
    best: dict[str, Any] | None
    weights: StateDict
    optimizer: dict[str, Any]
    kept: StateDict


class _State(BaseModel):
    """What ``state.json`` holds."""

    key: str
    step: int
    best: dict[str, Any] | None


def save_checkpoint(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint in place of the earlier ones.

    Args:
        checkpoint: the checkpoint.
        folder: the training's folder.
    """
    draft = folder / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    save_file(checkpoint.weights, draft / "weights.safetensors")
    torch.save(checkpoint.optimizer, draft / "optimizer.pt")
    if checkpoint.best is not None:
        save_file(checkpoint.kept, draft / "best.safetensors")
    state = {"key": checkpoint.key, "step": checkpoint.step, "best": checkpoint.best}
    (draft / "state.json").write_text(json.dumps(state), encoding="utf-8")
    older = list(folder.glob(f"{_PREFIX}*"))
    draft.replace(folder / f"{_PREFIX}{checkpoint.step}")
    for left in older:
        shutil.rmtree(left)


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a training; ``None`` where there is none.

    Args:
        folder: the training's folder.

    Raises:
        UserError: it can't be read.
    """
    found = [place for place in folder.glob(f"{_PREFIX}*") if place.name.removeprefix(_PREFIX).isdecimal()]
    if not found:
        return None
    last = max(found, key=lambda place: int(place.name.removeprefix(_PREFIX)))
    try:
        state = _State.model_validate(read_json((last / "state.json").read_bytes()))
        return Checkpoint(
            key=state.key,
            step=state.step,
            best=state.best,
            weights=load_file(last / "weights.safetensors"),
            optimizer=torch.load(last / "optimizer.pt", weights_only=True),
            kept=load_file(last / "best.safetensors") if state.best else {},
        )
    except _UNREADABLE as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{last}: a checkpoint that can't be read ({reason}); delete it to train anew") from error


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a training, which only resuming it needs.

    Args:
        folder: the training's folder.
    """
    for left in [*folder.glob(f"{_PREFIX}*"), folder / _DRAFT]:
        shutil.rmtree(left, ignore_errors=True)
