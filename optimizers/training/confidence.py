"""The threshold on the probability of a model's own answer that best separates what it knows from what it doesn't."""

from collections.abc import Sequence
from pathlib import Path

from hoptimizer.models.small.card import Card, write_card
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, check_labels, describe, label_places
from hoptimizer.optimizers.training.calibration import best_threshold, classification_scores


def calibrate_confidence(
    task: Task, examples: Sequence[TrainingExample], dev: Sequence[TrainingExample], lm: str, folder: Path
) -> Card:
    """Find the threshold with the best balanced accuracy, and save its card in a folder.

    A small model knows few answers. The threshold with the best F1 would often be so low that the model claims to know
    all of them.

    Args:
        task: the step's task, with ``answer_probability`` among its inputs.
        examples: the examples that the threshold is chosen on; both labels occur.
        dev: the examples that the threshold is scored on; both labels occur.
        lm: the name of the language model that answered.
        folder: a folder for this model alone.

    Returns:
        the card.

    Raises:
        UserError: a label is missing.
    """
    for name, some in (("train", examples), ("dev", dev)):
        check_labels(task, some, name)
    threshold = best_threshold(label_places(task, examples), _probabilities(examples), "balanced_accuracy")
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
        scores=classification_scores(label_places(task, dev), chosen, 2),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_card(card, folder)
    return card


def _probabilities(examples: Sequence[TrainingExample]) -> list[float]:
    return [example.inputs[ANSWER_PROBABILITY] or 0.0 for example in examples]
