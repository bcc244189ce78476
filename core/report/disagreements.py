"""Where variants disagree, and the questions that are worth a look."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hoptimizer.comparison import Comparison
from hoptimizer.eval.metrics import METRICS

RIGHT = 0.5
"""From this score on an answer counts as right."""


@dataclass(frozen=True)
class Disagreement:
    """The answers of one variant beside the baseline's. Questions are numbered by their place in the comparison.

    Attributes:
        name: the variant.
        only_baseline: questions on which the baseline alone is right.
        only_variant: questions on which the variant alone is right.
        both_right: how many questions both answer right.
        both_wrong: how many questions neither answers right.
    """

    name: str
    only_baseline: list[int]
    only_variant: list[int]
    both_right: int
    both_wrong: int


def judged_by(compared: Comparison) -> str | None:
    """The score that says which answers are right: what is compared where that is a share, else exact match or F1.

    Args:
        compared: the comparison.
    """
    shared = [name for name in METRICS if all(name in variant.scores for variant in compared.variants)]
    shares = [name for name in shared if METRICS[name].percent and name != "recall"]  # which is of passages
    names = [compared.metric] if compared.metric in (*shares, "accuracy") else [n for n in ("em", "f1") if n in shares]
    return names[0] if names else None


def disagreements(compared: Comparison) -> list[Disagreement]:
    """How each variant but the first agrees with the first; questions without a score in either are left out.

    Args:
        compared: the comparison.
    """
    name = judged_by(compared)
    if name is None:
        return []
    right = [_right(variant.scores[name]) for variant in compared.variants]
    found = []
    for other, own in zip(compared.names[1:], right[1:], strict=True):
        pairs = list(zip(right[0], own, strict=True))
        found.append(
            Disagreement(
                other,
                only_baseline=[place for place, pair in enumerate(pairs) if pair == (True, False)],
                only_variant=[place for place, pair in enumerate(pairs) if pair == (False, True)],
                both_right=pairs.count((True, True)),
                both_wrong=pairs.count((False, False)),
            )
        )
    return found


def worth_a_look(compared: Comparison, number: int) -> dict[int, str]:
    """Questions to show with their steps: first those on which variants disagree, in either direction by turns.

    Args:
        compared: the comparison.
        number: the most questions.

    Returns:
        by the question's place why it is shown.
    """
    name = judged_by(compared)
    count = len(compared.questions)
    if name is None:
        return dict.fromkeys(range(min(count, number)), "")
    right = [_right(variant.scores[name]) for variant in compared.variants]
    why = {place: _verdict(compared.names, [own[place] for own in right]) for place in range(count)}
    turns = [lane for found in disagreements(compared) for lane in (found.only_variant, found.only_baseline)]
    ordered = [lane[step] for step in range(count) for lane in turns if step < len(lane)]
    agreed = [[p for p in why if all(own[p] is verdict for own in right)] for verdict in (False, True)]
    ordered += [lane[step] for step in range(count) for lane in agreed if step < len(lane)]
    return {place: why[place] for place in list(dict.fromkeys([*ordered, *why]))[:number]}


def _right(scores: Sequence[float]) -> list[bool | None]:
    return [None if math.isnan(score) else score >= RIGHT for score in scores]


def _verdict(names: Sequence[str], right: Sequence[bool | None]) -> str:
    if len(set(right)) == 1 and len(right) > 1:
        return {True: "all are right", False: "none is right", None: "none has a score"}[right[0]]
    those = [name for name, verdict in zip(names, right, strict=True) if verdict]
    return f"right: {', '.join(those)}" if those else "not right"
