"""A vote among labelled examples, as a small model: its vectors, its threshold and its scores."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from hoptimizer.models.small.card import Card, write_card
from hoptimizer.models.small.embedder import Embedder
from hoptimizer.models.small.knn import NEIGHBOURS, as_text, positive_shares
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, check_labels, describe, label_places
from hoptimizer.optimizers.training.calibration import classification_scores


def train_knn(
    task: Task,
    train: Sequence[TrainingExample],
    dev: Sequence[TrainingExample],
    encoder: str,
    k: int,
    folder: Path,
) -> Card:
    """Save examples as a model in which the nearest of them vote.

    The positive label wins where its share among the neighbours is at least that among all examples. (The published
    code of SKR asks the more frequent label for a margin that grows with its surplus.)

    Args:
        task: the step's task, with two labels.
        train: the examples that vote; both labels occur.
        dev: the examples that the vote is scored on; both labels occur.
        encoder: the encoder of the sentence vectors that texts are compared by.
        k: how many of them vote.
        folder: a folder for this model alone.

    Returns:
        the card.

    Raises:
        UserError: a label is missing, or the encoder can't be loaded.
    """
    for name, some in (("train", train), ("dev", dev)):
        check_labels(task, some, name)
    embed = Embedder.of(encoder)
    vectors, asked = (embed([as_text(one.inputs, task.inputs) for one in some]) for some in (train, dev))
    labels = torch.tensor(label_places(task, train), dtype=torch.float32)
    threshold = float(labels.mean())
    chosen = [int(share >= threshold) for share in positive_shares(vectors, labels, asked, k).tolist()]
    card = Card(
        step=task.step,
        inputs=task.inputs,
        output=task.output,
        kind="knn",
        labels=task.labels,
        k=k,
        base=encoder,
        threshold=threshold,
        train=describe(task, train),
        dev=describe(task, dev),
        config={},
        seed=0,
        scores=classification_scores(label_places(task, dev), chosen, 2),
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"vectors": vectors.contiguous(), "labels": labels}, folder / NEIGHBOURS)
    write_card(card, folder)
    return card
