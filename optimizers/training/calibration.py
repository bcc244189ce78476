"""Scores of a classifier, and the best threshold on its probabilities."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from sklearn.metrics import balanced_accuracy_score, precision_recall_fscore_support

Aim = Literal["f1", "balanced_accuracy"]


def classification_scores(gold: Sequence[int], chosen: Sequence[int], labels: int) -> dict[str, float]:
    """F1, precision, recall, balanced accuracy and n, the number of examples.

    Args:
        gold: the indices of the right labels.
        chosen: the indices of the labels that were chosen.
        labels: the number of labels; with two, F1, precision and recall are those of the second label; with more, they
            are averaged over the labels.
    """
    average = "binary" if labels == 2 else "macro"
    precision, recall, f1, _ = precision_recall_fscore_support(gold, chosen, average=average, zero_division=0.0)
    return {
        "f1": float(f1),
        "precision": float(precision),
        "recall": float(recall),
        "balanced_accuracy": float(balanced_accuracy_score(gold, chosen)),
        "n": float(len(gold)),
    }


def best_threshold(gold: Sequence[int], probabilities: Sequence[float], aim: Aim) -> float:
    """The threshold on the positive label's probability with the highest F1 or balanced accuracy.

    It lies halfway between two neighbouring probabilities; of several equally good ones it is the nearest to one half.

    Args:
        gold: 1 for the positive label, else 0, by example; both occur.
        probabilities: the probability of the positive label, by example.
        aim: the score to maximize.
    """
    values, places = np.unique(np.asarray(probabilities, dtype=float), return_inverse=True)
    right = np.bincount(places, weights=np.asarray(gold, dtype=float))  # the number of positives at each probability
    wrong = np.bincount(places) - right
    # Cut i takes the examples with probabilities values[i:] for positive.
    hits, alarms = right[::-1].cumsum()[::-1], wrong[::-1].cumsum()[::-1]
    if aim == "f1":
        quality = 2 * hits / (hits + alarms + right.sum())
    else:
        quality = (hits / right.sum() + 1 - alarms / wrong.sum()) / 2
    cuts = (values + np.concatenate([[0.0], values[:-1]])) / 2
    good = cuts[quality >= quality.max() - 1e-12]
    return float(good[np.abs(good - 0.5).argmin()])
