"""Fine-tuning of an encoder that chooses a label for a step (RA-ISF, section 3.2; cross-entropy, equation 1)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.models.engine.packed import packed_copy
from hoptimizer.models.small.card import Card
from hoptimizer.models.small.encoder import PairTokenizer, load_encoder, probabilities
from hoptimizer.models.small.fields import pair
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, check_labels, label_places
from hoptimizer.optimizers.training.calibration import Aim, best_threshold, classification_scores
from hoptimizer.optimizers.training.loop import TrainingReport
from hoptimizer.optimizers.training.run import (
    TrainingConfig,
    TrainingFolder,
    freeze_embeddings,
    gpu_memory,
    training,
)


class ClassifierTrainingConfig(TrainingConfig):
    """How an encoder is trained to choose a label.

    Attributes:
        shared_tokens: whether token types tell the encoder which tokens its two texts share, if its tokenizer has them.
        class_weights: whether every label has the same weight in the loss, however rare its examples are.
        calibrate: the dev score that the threshold between two labels maximizes; ``None`` for a threshold of one half.
    """

    base: str = Field(default="minilm", min_length=1)
    epochs: int = Field(default=4, ge=1)
    batch: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    max_tokens: int = Field(default=128, ge=8)
    shared_tokens: bool = True
    class_weights: bool = True
    calibrate: Aim | None = "f1"


def train_classifier(
    task: Task,
    examples: Sequence[TrainingExample],
    dev: Sequence[TrainingExample],
    config: ClassifierTrainingConfig,
    folder: Path,
    report: TrainingReport = lambda _: None,
) -> Card:
    """Fine-tune an encoder and save it with its card in a folder.

    Called again after the process was killed, it resumes from the last checkpoint and reaches the same weights. Called
    again after it finished, it returns the card.

    Args:
        task: the step, its fields and its labels.
        examples: the examples to learn from; every label occurs.
        dev: the examples that the epoch and the threshold are chosen on; every label occurs.
        config: how the encoder is trained.
        folder: a folder for this model alone.
        report: is told of the progress after every update.

    Returns:
        the card.

    Raises:
        UserError: the examples do not fit the task, the base can't be loaded, the training diverges, a GPU
            has too little memory, or the folder holds something else.
    """
    for name, some in (("train", examples), ("dev", dev)):
        check_labels(task, some, name)
    training_folder = TrainingFolder(task, config, examples, dev, folder)
    if finished := training_folder.finished():
        return finished
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)  # determines the head's initial weights
        model, tokenizer = load_encoder(resolve(config.base), len(task.labels), trained=False)
    tokenize = PairTokenizer(tokenizer, config.max_tokens, config.shared_tokens)
    rows = tokenize([pair(example.inputs, task.inputs) for example in examples])
    dev_rows = tokenize([pair(example.inputs, task.inputs) for example in dev])
    gold, dev_gold = label_places(task, examples), label_places(task, dev)
    device, dtype = device_and_dtype()
    model.to(device)
    model.config.id2label = {place: str(label) for place, label in enumerate(task.labels)}
    model.config.label2id = {str(label): place for place, label in enumerate(task.labels)}
    freeze_embeddings(model)
    weights = _class_weights(gold, len(task.labels)).to(device) if config.class_weights else None

    def loss(batch: list[int]) -> Tensor:
        logits = model(**tokenize.pad([rows[i] for i in batch], device)).logits.float()
        right = torch.tensor([gold[i] for i in batch], device=device)
        # The mean is taken over the examples. With its own mean cross_entropy would divide by the batch's weights, so
        # that weights would have no effect in a batch of a single label.
        losses = nn.functional.cross_entropy(logits, right, weight=weights, reduction="none")
        return losses.mean()

    def evaluate() -> tuple[float, dict[str, float | None]]:
        # The threshold is chosen by the numbers that it is compared with.
        found = probabilities(packed_copy(model), tokenize, dev_rows)
        threshold = None
        chosen = found.argmax(-1)
        if len(task.labels) == 2:
            positive = found[:, 1].tolist()
            threshold = best_threshold(dev_gold, positive, config.calibrate) if config.calibrate else 0.5
            chosen = (found[:, 1].double() >= threshold).long()
        scores = classification_scores(dev_gold, chosen.tolist(), len(task.labels))
        return scores[config.calibrate or "f1"], {**scores, "threshold": threshold}

    lengths = [len(row["input_ids"]) for row in rows]
    with gpu_memory(config.base, "take a smaller optimizer.base"):
        best = training(
            config, model, dtype, lengths, loss, evaluate, key=training_folder.key, folder=folder, report=report
        ).run()
    scores = dict(best.facts)
    threshold = scores.pop("threshold")
    card = training_folder.card(
        scores,
        best.epoch,
        kind="classifier",
        labels=task.labels,
        threshold=threshold,
        shared_tokens=config.shared_tokens,
    )
    training_folder.save(model, tokenizer)
    training_folder.finish(card)
    return card


def _class_weights(gold: Sequence[int], labels: int) -> Tensor:
    counts = torch.bincount(torch.tensor(gold), minlength=labels)
    return len(gold) / (labels * counts.float())
