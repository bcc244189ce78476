"""Fine-tuning that a killed process takes up again, to the same weights bit by bit."""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.optimizer import CompileListener

Batch = TypeVar("Batch")
StateDict = dict[str, Tensor]

_PREFIX = ".checkpoint-"
_DRAFT = ".checkpoint.part"
# Seconds without a checkpoint after which there is one, however few the updates: on a CPU each may take ten.
_PATIENCE = 300


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training is.

    Attributes:
        step: updates done.
        steps: updates in all.
        loss: of the last batch.
        scores: on dev, at the end of an epoch.
    """

    step: int
    steps: int
    loss: float
    scores: dict[str, float] | None = None


TrainingReport = Callable[[TrainingProgress], None]


def reporting(listener: CompileListener, step: str) -> TrainingReport:
    """What tells the listener of a compile about the training of a step: its loss, and its scores on dev.

    Args:
        listener: hears of progress and figures.
        step: the step's name, or ``lm``.
    """

    def report(progress: TrainingProgress) -> None:
        listener.progress(f"{step}: training", progress.step, progress.steps, f"loss {progress.loss:.3f}")
        # The loss on dev is another one than that of the last batch.
        scores = {"dev_loss" if name == "loss" else name: score for name, score in (progress.scores or {}).items()}
        listener.record(f"training/{step}", {"loss": progress.loss} | scores, progress.step)

    return report


@dataclass(frozen=True)
class Plan:
    """How the weights are updated.

    Attributes:
        epochs: rounds over the examples.
        learning_rate: at its peak; it rises over the first tenth of the steps and falls to nothing.
        weight_decay: of AdamW, on matrices.
        patience: epochs without a better one after which it ends; ``None`` for none.
        checkpoint_steps: updates between two checkpoints, at most.
        key: what is trained on what, as a digest; a checkpoint of another key is refused.
    """

    epochs: int
    learning_rate: float
    weight_decay: float
    patience: int | None
    checkpoint_steps: int
    key: str


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch so far.

    Attributes:
        epoch: counted from 1.
        value: what is maximized.
        facts: scores and whatever else was found on dev then.
    """

    epoch: int
    value: float
    facts: dict[str, Any]


class MasterWeights:
    """AdamW on fp32 copies of a model's trained weights, while the model itself computes in a lower precision.

    Plain bf16 weights lose updates that are smaller than their last bit, and autocast converts the weights anew in
    every step, which takes more than twice as long with a small encoder on a CPU.
    """

    def __init__(self, model: nn.Module, plan: Plan, dtype: torch.dtype) -> None:
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights = {name: nn.Parameter(p.detach().float().clone()) for name, p in self._trained.items()}
        model.to(dtype)
        groups = [
            {"params": [w for w in self.weights.values() if w.dim() > 1], "weight_decay": plan.weight_decay},
            {"params": [w for w in self.weights.values() if w.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=plan.learning_rate, fused=True)

    def step(self, learning_rate: float) -> None:
        """Update from the model's gradients, which are then gone."""
        for name, weight in self.weights.items():
            gradient = self._trained[name].grad
            weight.grad = None if gradient is None else gradient.float()
            self._trained[name].grad = None
        nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.load(self.weights)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take these weights, into the model and as masters."""
        for name, weight in self.weights.items():
            weight.copy_(weights[name])
            self._trained[name].copy_(weight)

    def copy(self) -> StateDict:
        """The weights as they are now, on the CPU."""
        return {name: weight.detach().cpu().clone() for name, weight in self.weights.items()}


@dataclass
class Training(Generic[Batch]):
    """A loop over batches, with a checkpoint every so many steps.

    Attributes:
        masters: the weights; dropout and all other chance during a step is off.
        batches: of an epoch, by its number from 0; the same ones whenever it is asked.
        loss: of a batch, differentiable.
        evaluate: what to maximize, and facts to keep, on dev.
        plan: how the weights are updated.
        folder: where checkpoints go.
        report: is told after every step.
    """

    masters: MasterWeights
    batches: Callable[[int], Sequence[Batch]]
    loss: Callable[[Batch], Tensor]
    evaluate: Callable[[], tuple[float, dict[str, Any]]]
    plan: Plan
    folder: Path
    report: TrainingReport

    def run(self) -> BestEpoch:
        """Train to the end, from the last checkpoint if there is one; the model then has the best epoch's weights.

        Raises:
            UserError: the checkpoint in the folder is of another training.
        """
        done, best, kept = self._resume()
        saved = time.monotonic()
        batches = self.batches(0)
        each = len(batches)
        steps = each * self.plan.epochs
        for step in range(done, steps):
            epoch, place = divmod(step, each)
            if place == 0 and self._waited(best, epoch):
                break
            if place == 0 or step == done:
                batches = self.batches(epoch)
            loss = self.loss(batches[place])
            loss.backward()
            self.masters.step(self.plan.learning_rate * _share(step, steps))
            facts = None
            if place == each - 1:
                value, facts = self.evaluate()
                if best is None or value > best.value:
                    best, kept = BestEpoch(epoch + 1, value, facts), self.masters.copy()
            is_due = (step + 1) % self.plan.checkpoint_steps == 0 or time.monotonic() - saved > _PATIENCE
            if is_due or step + 1 == steps:
                self._save(step + 1, best, kept)
                saved = time.monotonic()
            scores = facts and {name: score for name, score in facts.items() if isinstance(score, float)}
            self.report(TrainingProgress(step + 1, steps, loss.item(), scores))
        if best is None:
            raise ValueError("nothing was trained: there are no batches")
        self.masters.load(kept)
        return best

    def _waited(self, best: BestEpoch | None, epochs: int) -> bool:
        """Whether there was no better epoch for long enough."""
        return best is not None and self.plan.patience is not None and epochs - best.epoch >= self.plan.patience

    def _save(self, step: int, best: BestEpoch | None, kept: StateDict) -> None:
        draft = self.folder / _DRAFT
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(self.masters.copy(), draft / "weights.safetensors")
        torch.save(self.masters.optimizer.state_dict(), draft / "optimizer.pt")
        if best is not None:
            save_file(kept, draft / "best.safetensors")
        state = {"key": self.plan.key, "step": step, "best": best and asdict(best)}
        (draft / "state.json").write_text(json.dumps(state), encoding="utf-8")
        older = list(self.folder.glob(f"{_PREFIX}*"))
        draft.replace(self.folder / f"{_PREFIX}{step}")
        for folder in older:
            shutil.rmtree(folder)

    def _resume(self) -> tuple[int, BestEpoch | None, StateDict]:
        found = sorted(self.folder.glob(f"{_PREFIX}*"), key=lambda folder: int(folder.name.removeprefix(_PREFIX)))
        for folder in found[-1:]:
            state = json.loads((folder / "state.json").read_bytes())
            if state["key"] != self.plan.key:
                raise UserError(
                    f"{self.folder}: holds an unfinished training of other data or settings; give another folder, or "
                    "delete this one"
                )
            self.masters.load(load_file(folder / "weights.safetensors"))
            self.masters.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
            best = BestEpoch(**state["best"]) if state["best"] else None
            return state["step"], best, load_file(folder / "best.safetensors") if best else {}
        return 0, None, {}


def remove_checkpoints(folder: Path) -> None:
    """Drop what only a resumed training needs."""
    for left in [*folder.glob(f"{_PREFIX}*"), folder / _DRAFT]:
        shutil.rmtree(left, ignore_errors=True)


def training_key(*parts: Any) -> str:  # noqa: ANN401 - whatever JSON holds
    """A digest of all that decides on the weights."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def shuffled_batches(lengths: Sequence[int], size: int, seed: int, epoch: int) -> list[list[int]]:
    """Places of the examples in random batches, those of a batch of like length.

    Args:
        lengths: tokens of each example.
        size: examples in a batch.
        seed: decides with the epoch on the order.
        epoch: from 0.
    """
    draw = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order = torch.randperm(len(lengths), generator=draw).tolist()
    batches = []
    window = size * 16
    for start in range(0, len(order), window):
        some = sorted(order[start : start + window], key=lambda i: lengths[i])
        batches += [some[i : i + size] for i in range(0, len(some), size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=draw).tolist()]


def _share(step: int, steps: int) -> float:
    """The learning rate at a step as a share of its peak."""
    warm = max(1, math.ceil(steps / 10))
    return (step + 1) / warm if step < warm else (steps - step) / max(1, steps - warm)
