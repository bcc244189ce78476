"""The threshold on the probability of a model's own answer that tells best what it knows."""

from collections.abc import Sequence
from pathlib import Path

from hoptimizer.models.small.card import Card, write_card
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, check_labels, describe
from hoptimizer.optimizers.training.calibration import best_threshold, classification_scores


def calibrate_confidence(
    task: Task, examples: Sequence[TrainingExample], dev: Sequence[TrainingExample], lm: str, folder: Path
) -> Card:
    """Find the threshold with the best balanced accuracy, and leave it with its card in a folder.

    What a small model knows is rare: the best F1 would have it say that it knows everything.

    Args:
        task: of the step, with ``answer_probability`` among its inputs.
        examples: decide on the threshold; both labels occur.
        dev: scores it; both labels occur.
        lm: name of the language model that answered.
        folder: a folder of its own.

    Raises:
        UserError: a label is missing.
    """
    for name, some in (("train", examples), ("dev", dev)):
        check_labels(task, some, name)
    threshold = best_threshold(_gold(task, examples), _probabilities(examples), "balanced_accuracy")
    chosen = [int(probability >= threshold) for probability in _probabilities(dev)]
    card = Card(
        step=task.step,
        inputs=task.inputs,
        output=task.output,
        kind="confidence",
        labels=task.labels,
        base=lm,
        threshold=threshold,
        train=describe(task, examples),
        dev=describe(task, dev),
        config={"calibrate": "balanced_accuracy"},
        seed=0,
        scores=classification_scores(_gold(task, dev), chosen, 2),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_card(card, folder)
    return card


def _gold(task: Task, examples: Sequence[TrainingExample]) -> list[int]:
    places: dict[object, int] = {label: place for place, label in enumerate(task.labels)}
    return [places[example.output] for example in examples]


def _probabilities(examples: Sequence[TrainingExample]) -> list[float]:
    return [example.inputs[ANSWER_PROBABILITY] or 0.0 for example in examples]
