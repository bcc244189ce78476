"""A training loop that can be resumed after the process was killed, with the same weights bit by bit."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hoptimizer.common.errors import UserError
from hoptimizer.common.memory import trim_heap
from hoptimizer.optimizers.optimizer import CompileListener
from hoptimizer.optimizers.training.checkpoints import Checkpoint, StateDict, last_checkpoint, save_checkpoint

Batch = TypeVar("Batch")
# The most seconds between two checkpoints, however few the updates: on a CPU an update may take ten seconds.
_PATIENCE = 300


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training is.

    Attributes:
        step: the number of updates done.
        steps: the number of updates in all.
        loss: the loss of the last batch.
        scores: the scores on dev, at the end of an epoch; ``None`` elsewhere.
    """

    step: int
    steps: int
    loss: float
    scores: dict[str, float] | None = None


TrainingReport = Callable[[TrainingProgress], None]


def reporting(listener: CompileListener, step: str) -> TrainingReport:
    """A function that tells the listener of a compile the loss and the dev scores of a step's training.

    Args:
        listener: is told of progress and figures.
        step: the step's name, or ``lm``.
    """

    def report(progress: TrainingProgress) -> None:
        listener.progress(f"{step}: training", progress.step, progress.steps, f"loss {progress.loss:.3f}")
        # The loss on dev gets a name of its own, since ``loss`` is that of the last batch.
        scores = {"dev_loss" if name == "loss" else name: score for name, score in (progress.scores or {}).items()}
        listener.record(f"training/{step}", {"loss": progress.loss} | scores, progress.step)

    return report


@dataclass(frozen=True)
class Plan:
    """How the weights are updated.

    Attributes:
        epochs: the number of passes over the examples.
        learning_rate: the peak of the learning rate, which rises linearly over the first tenth of the updates and then
            falls linearly to 0.
        weight_decay: the weight decay of AdamW, which applies to matrices only.
        patience: the number of epochs without a better one after which the training ends; ``None`` for no such end.
        checkpoint_steps: the most updates between two checkpoints.
        key: a digest of the data and the config; a checkpoint with another key is refused.
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
        epoch: the number of the epoch, from 1.
        value: the value that is maximized.
        facts: the scores on dev after that epoch, and whatever else was found there.
    """

    epoch: int
    value: float
    facts: dict[str, Any]


class MasterWeights:
    """AdamW on fp32 copies of a model's trained weights, while the model itself computes in a lower precision.

    Plain bf16 weights lose updates that are smaller than their last bit. Autocast converts the weights again in every
    step, which takes more than twice as long with a small encoder on a CPU.

    Args:
        model: the model, which is converted to ``dtype``; its weights that require a gradient are trained.
        plan: how the weights are updated.
        dtype: the precision of the forward and backward pass.
    """

    def __init__(self, model: nn.Module, plan: Plan, dtype: torch.dtype) -> None:
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # The weights of a model in fp32 are taken and not copied: its own are new ones once it is in a lower precision.
        self.weights = {name: nn.Parameter(p.detach().float()) for name, p in self._trained.items()}
        model.to(dtype)
        groups = [
            {"params": [w for w in self.weights.values() if w.dim() > 1], "weight_decay": plan.weight_decay},
            {"params": [w for w in self.weights.values() if w.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=plan.learning_rate, fused=True)

    def step(self, learning_rate: float) -> float:
        """Update the weights from the model's gradients, and clear these.

        Args:
            learning_rate: the learning rate of this update.

        Returns:
            the norm of all gradients before they were clipped to a norm of 1.
        """
        for name, weight in self.weights.items():
            gradient = self._trained[name].grad
            weight.grad = None if gradient is None else gradient.float()
            self._trained[name].grad = None
        norm = nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()  # or the gradients would stay in memory during the next forward and backward pass
        self.load(self.weights)
        return norm.item()

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the master weights and the model's weights.

        Args:
            weights: the new weights by name.
        """
        for name, weight in self.weights.items():
            weight.copy_(weights[name])
            self._trained[name].copy_(weight)

    def state(self) -> StateDict:
        """The master weights, on the CPU; where they are there anyway, they change with the next update."""
        return {name: weight.detach().cpu() for name, weight in self.weights.items()}

    def copy(self) -> StateDict:
        """A copy of the master weights, on the CPU."""
        return {name: weight.clone() for name, weight in self.state().items()}


@dataclass
class Training(Generic[Batch]):
    """A training loop over batches that writes checkpoints.

    Attributes:
        master_weights: the weights. Dropout and all other randomness within a step must be off.
        batches: gives the batches of an epoch, by its number from 0; always the same for the same epoch.
        loss: gives the differentiable loss of a batch.
        evaluate: gives the value to maximize, and facts to keep, on dev.
        plan: how the weights are updated.
        folder: the folder of the checkpoints.
        report: is told of the progress after every step.
    """

    master_weights: MasterWeights
    batches: Callable[[int], Sequence[Batch]]
    loss: Callable[[Batch], Tensor]
    evaluate: Callable[[], tuple[float, dict[str, Any]]]
    plan: Plan
    folder: Path
    report: TrainingReport

    def run(self) -> BestEpoch:
        """Train to the end, from the last checkpoint if there is one.

        Returns:
            the best epoch, whose weights the model then has.

        Raises:
            UserError: the checkpoint in the folder is of another training, or the training diverges.
            ValueError: there are no batches.
        """
        done, best, kept = self._resume()
        saved = time.monotonic()
        each = len(self.batches(0))
        steps = each * self.plan.epochs
        for step in range(done, steps):
            epoch, place = divmod(step, each)
            if place == 0 and self._waited(best, epoch):
                break
            if place == 0 or step == done:
                batches = self.batches(epoch)
            loss = self.loss(batches[place])
            loss.backward()
            norm = self.master_weights.step(self.plan.learning_rate * _share(step, steps))
            # Nothing brings weights back that are no numbers, and a NaN on dev would never be beaten.
            if not (math.isfinite(loss.item()) and math.isfinite(norm)):
                raise UserError(
                    f"{self.folder}: the training diverged, its loss or gradient is no number at update {step + 1} of "
                    f"{steps}; take an optimizer.learning_rate smaller than {self.plan.learning_rate:g}"
                )
            facts = None
            if place == each - 1:
                value, facts = self.evaluate()
                trim_heap()  # batches of other shapes leave gaps, which add up
                if best is None or value > best.value:
                    best, kept = BestEpoch(epoch + 1, value, facts), self.master_weights.copy()
            is_due = (step + 1) % self.plan.checkpoint_steps == 0 or time.monotonic() - saved > _PATIENCE
            if is_due or step + 1 == steps:
                self._save(step + 1, best, kept)
                saved = time.monotonic()
            scores = facts and {name: score for name, score in facts.items() if isinstance(score, float)}
            self.report(TrainingProgress(step + 1, steps, loss.item(), scores))
        if best is None:
            raise ValueError("nothing was trained: there are no batches")
        self.master_weights.load(kept)
        return best

    def _waited(self, best: BestEpoch | None, epochs: int) -> bool:
        """Whether no epoch has been better for as long as the plan waits."""
        return best is not None and self.plan.patience is not None and epochs - best.epoch >= self.plan.patience

    def _save(self, step: int, best: BestEpoch | None, kept: StateDict) -> None:
        checkpoint = Checkpoint(
            key=self.plan.key,
            step=step,
            best=asdict(best) if best else None,
            weights=self.master_weights.state(),
            optimizer=self.master_weights.optimizer.state_dict(),
            kept=kept,
        )
        save_checkpoint(checkpoint, self.folder)

    def _resume(self) -> tuple[int, BestEpoch | None, StateDict]:
        last = last_checkpoint(self.folder)
        if last is None:
            return 0, None, {}
        if last.key != self.plan.key:
            raise UserError(
                f"{self.folder}: holds an unfinished training of other data or settings; give another folder, or "
                "delete this one"
            )
        self.master_weights.load(last.weights)
        self.master_weights.optimizer.load_state_dict(last.optimizer)
        return last.step, BestEpoch(**last.best) if last.best else None, last.kept


def training_key(*parts: Any) -> str:  # noqa: ANN401 - whatever JSON holds
    """A digest of everything that determines the trained weights.

    Args:
        parts: the data and settings, as values that JSON can hold.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def shuffled_batches(lengths: Sequence[int], size: int, seed: int, epoch: int) -> list[list[int]]:
    """Random batches of examples of similar length, as lists of the examples' indices.

    Args:
        lengths: the length of each example, in tokens.
        size: the number of examples per batch.
        seed: determines the order, together with the epoch.
        epoch: the number of the epoch, from 0.
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
    """The learning rate at a step, as a share of its peak."""
    warm = max(1, math.ceil(steps / 10))
    return (step + 1) / warm if step < warm else (steps - step) / max(1, steps - warm)
