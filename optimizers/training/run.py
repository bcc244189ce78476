"""The parts that every fine-tuning of a small model shares: the config, the folder and the training loop."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hoptimizer.common.errors import UserError
from hoptimizer.common.memory import trim_heap
from hoptimizer.models.engine.engine import forget_prefixes
from hoptimizer.models.engine.loading import quiet_loading
from hoptimizer.models.small.card import CARD, Card, read_card, write_card
from hoptimizer.models.small.tagger import TokenTagger
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, describe
from hoptimizer.optimizers.training.checkpoints import remove_checkpoints
from hoptimizer.optimizers.training.loop import (
    MasterWeights,
    Plan,
    Training,
    TrainingReport,
    shuffled_batches,
    training_key,
)


class TrainingConfig(BaseModel):
    """How a small model is trained.

    Attributes:
        base: the model that is fine-tuned: a name of the weights store, a folder or a Hub id.
        epochs: the number of passes over the examples; the epoch that is best on dev is kept.
        batch: the number of examples per update.
        learning_rate: the peak of the learning rate, which rises linearly over the first tenth of the updates and then
            falls linearly to 0.
        weight_decay: the weight decay of AdamW.
        max_tokens: the number of tokens at which inputs are cut.
        patience: the number of epochs without a better one after which the training ends; ``None`` for no such end.
        checkpoint_steps: the most updates between two checkpoints; there is also one every five minutes.
        seed: determines every random choice.
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
    """The folder of a training, which has no card until the training is finished.

    Args:
        task: what the model learns to do.
        config: how the model is trained.
        examples: the examples to learn from.
        dev: the examples to score on.
        folder: the folder, which is created where it is missing.
    """

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
        """The card, if this training has already finished.

        Raises:
            UserError: the folder holds the card of another training.
        """
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
        remove_checkpoints(self._folder)  # the process may have been killed before it removed them
        return card

    def card(self, scores: Mapping[str, float], epoch: int, **own: Any) -> Card:  # noqa: ANN401 - fields of Card
        """The card of the trained model.

        Args:
            scores: the scores on dev.
            epoch: the epoch that was kept.
            own: the fields that only cards of this kind of model have.
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
        """Save the model in the folder, which does not count as a model before it has a card.

        Args:
            model: the trained model.
            tokenizer: the model's tokenizer.
        """
        save(model, tokenizer, self._folder)

    def finish(self, card: Card) -> None:
        """Write the card to the folder, and remove the checkpoints.

        Args:
            card: the card.
        """
        write_card(card, self._folder)
        remove_checkpoints(self._folder)
        trim_heap()  # the optimizer's states and the last passes left gaps that a program's batches do not fill


@contextmanager
def gpu_memory(base: str, remedy: str) -> Iterator[None]:
    """Within it, a GPU's memory that does not suffice is said in one line.

    Args:
        base: the model that is fine-tuned.
        remedy: which options take less.

    Raises:
        UserError: there is too little.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(f"fine-tuning {base}: the GPU's memory does not suffice; {remedy}") from error


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
    """The training loop that a config describes; the model is converted to ``dtype``.

    Args:
        config: how the model is trained.
        model: the model, whose weights that require a gradient are trained.
        dtype: the precision of the forward and backward pass.
        lengths: the length of each example, in tokens.
        loss: gives the differentiable loss of a batch, from the indices of its examples.
        evaluate: gives the value to maximize, and facts to keep, on dev.
        key: a digest of the data and the config.
        folder: the folder of the checkpoints.
        report: is told of the progress after every update.
    """
    forget_prefixes()  # no prompt is answered during a training
    plan = Plan(config.epochs, config.learning_rate, config.weight_decay, config.patience, config.checkpoint_steps, key)
    return Training(
        master_weights=MasterWeights(model, plan, dtype),
        batches=lambda epoch: shuffled_batches(lengths, config.batch, config.seed, epoch),
        loss=loss,
        evaluate=evaluate,
        plan=plan,
        folder=folder,
        report=report,
    )


def save(model: PreTrainedModel | TokenTagger, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a model's weights, config and tokenizer in a folder, each file as a whole or not at all.

    Args:
        model: the model.
        tokenizer: the model's tokenizer.
        folder: the folder.
    """
    staging = folder / ".model.part"
    shutil.rmtree(staging, ignore_errors=True)
    with quiet_loading():
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    for file in staging.iterdir():
        file.replace(folder / file.name)
    staging.rmdir()


def freeze_embeddings(model: PreTrainedModel) -> None:
    """Exclude the embeddings from training, except the few of token types.

    Args:
        model: the model.
    """
    # The examples contain few of the vocabulary's tokens, so that what they would teach the embeddings hardly helps
    # with other texts. And half of a small encoder's weights are embeddings.
    whole = getattr(model.base_model, "embeddings", None)
    embeddings = whole if isinstance(whole, nn.Module) else model.get_input_embeddings()
    for name, weight in embeddings.named_parameters():
        weight.requires_grad_("token_type" in name)
