"""What every fine-tuning of a small model shares: the config, the folder, and where it is computed."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.loading import quiet_loading
from hoptimizer.models.small.card import CARD, Card, read_card, write_card
from hoptimizer.models.small.tagger import TokenTagger
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, describe
from hoptimizer.optimizers.training.loop import (
    MasterWeights,
    Plan,
    Training,
    TrainingReport,
    remove_checkpoints,
    shuffled_batches,
    training_key,
)


class TrainingConfig(BaseModel):
    """How a small model is trained.

    Attributes:
        base: what is fine-tuned: a name of the weights store, a folder or a hub id.
        epochs: rounds over the examples; the round that is best on dev is kept.
        batch: examples in an update.
        learning_rate: at its peak; it rises over the first tenth of the updates and falls to nothing.
        weight_decay: of AdamW.
        max_tokens: where inputs are cut.
        patience: rounds without a better one after which the training ends early; ``None`` for none.
        checkpoint_steps: updates between two checkpoints, at most; there is one every five minutes, too.
        seed: decides on every random choice.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: str = Field(min_length=1)
    epochs: int = Field(ge=1)
    batch: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    max_tokens: int = Field(ge=8)
    patience: int | None = Field(default=None, ge=1)
    checkpoint_steps: int = Field(default=100, ge=1)
    seed: int = 7


class TrainingFolder:
    """The folder of a training, which has no card until the training is finished."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        examples: Sequence[TrainingExample],
        dev: Sequence[TrainingExample],
        folder: Path,
    ) -> None:
        self.train, self.dev = describe(task, examples), describe(task, dev)
        self._task, self._config, self._folder = task, config, folder
        self.key = training_key(repr(task), config.model_dump(), self.train.digest, self.dev.digest)
        folder.mkdir(parents=True, exist_ok=True)

    def finished(self) -> Card | None:
        """The card, where this training was done before."""
        if not (self._folder / CARD).exists():
            return None
        card = read_card(self._folder)
        same = (card.step, card.config, card.train, card.dev) == (
            self._task.step,
            self._config.model_dump(),
            self.train,
            self.dev,
        )
        if not same:
            raise UserError(f"{self._folder}: holds a model of other data or settings; give another folder")
        remove_checkpoints(self._folder)  # as it may have been killed before it took them away
        return card

    def card(self, scores: Mapping[str, float], epoch: int, **own: Any) -> Card:  # noqa: ANN401 - fields of Card
        """The card of what was trained.

        Args:
            scores: on dev.
            epoch: the one that was kept.
            own: the fields that only models of its kind have.
        """
        task, config = self._task, self._config
        return Card(
            step=task.step,
            inputs=task.inputs,
            output=task.output,
            base=config.base,
            max_tokens=config.max_tokens,
            train=self.train,
            dev=self.dev,
            config=config.model_dump(),
            seed=config.seed,
            scores={**scores, "epoch": float(epoch)},
            **own,
        )

    def save(self, model: PreTrainedModel | TokenTagger, tokenizer: PreTrainedTokenizerBase) -> None:
        """Put the model into the folder; without its card it is not taken for one yet."""
        save(model, tokenizer, self._folder)

    def finish(self, card: Card) -> None:
        """Put the card into the folder, and take the checkpoints away."""
        write_card(card, self._folder)
        remove_checkpoints(self._folder)


def training(
    config: TrainingConfig,
    model: nn.Module,
    dtype: torch.dtype,
    lengths: Sequence[int],
    loss: Callable[[list[int]], Tensor],
    evaluate: Callable[[], tuple[float, dict[str, Any]]],
    *,
    key: str,
    folder: Path,
    report: TrainingReport,
) -> Training[list[int]]:
    """The training loop that a config describes; the model computes in ``dtype`` from here on.

    Args:
        config: how it is trained.
        model: what is trained.
        dtype: of forward and backward pass.
        lengths: of the examples, in tokens.
        loss: of a batch, the places of its examples.
        evaluate: what to maximize, and facts to keep, on dev.
        key: what is trained on what, as a digest.
        folder: where checkpoints go.
        report: is told after every update.
    """
    plan = Plan(config.epochs, config.learning_rate, config.weight_decay, config.patience, config.checkpoint_steps, key)
    return Training(
        masters=MasterWeights(model, plan, dtype),
        batches=lambda epoch: shuffled_batches(lengths, config.batch, config.seed, epoch),
        loss=loss,
        evaluate=evaluate,
        plan=plan,
        folder=folder,
        report=report,
    )


def save(model: PreTrainedModel | TokenTagger, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Put a model's weights, config and tokenizer into a folder, each file whole or not at all."""
    staging = folder / ".model.part"
    shutil.rmtree(staging, ignore_errors=True)
    with quiet_loading():
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    for file in staging.iterdir():
        file.replace(folder / file.name)
    staging.rmdir()


def freeze_embeddings(model: PreTrainedModel) -> None:
    """Leave the embeddings as they are, except the few of token types."""
    # Few examples hold few of the words: what they would teach an embedding is to be seen no more, and half of a
    # small encoder's weights are there.
    whole = getattr(model.base_model, "embeddings", None)
    embeddings = whole if isinstance(whole, nn.Module) else model.get_input_embeddings()
    for name, weight in embeddings.named_parameters():
        weight.requires_grad_("token_type" in name)
