"""Of which questions a run keeps traces."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hoptimizer.eval.runner import QuestionResult

Traces = Literal["failures", "sample", "all", "none"]

SAMPLE = 20
"""How many traces a sample has, spread evenly over the questions, so that those of two runs are of the same ones."""

FAILURES = 200
"""The most traces of failures."""


def chosen(rows: "Sequence[QuestionResult]", which: Traces) -> "list[QuestionResult]":
    """The questions of which a run keeps traces.

    Args:
        rows: all that were answered.
        which: ``all``, ``none``, a ``sample`` of up to :data:`SAMPLE`, or up to :data:`FAILURES` ``failures``:
            questions on which the program or a step failed, or whose answer has an F1 of 0.

    Example:
        >>> from hoptimizer.eval import Question
        >>> from hoptimizer.eval.runner import QuestionResult
        >>> from hoptimizer.genai.choice import chosen
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> rows = [QuestionResult(question, "", passages=[], scores={"f1": f1}, steps=[]) for f1 in (1.0, 0.0)]
        >>> [row.scores["f1"] for row in chosen(rows, "failures")]
        [0.0]
    """
    if which == "failures":
        return [row for row in rows if _failed(row)][:FAILURES]
    if which == "sample":
        step = max(len(rows) / SAMPLE, 1.0)
        return [rows[int(number * step)] for number in range(min(SAMPLE, len(rows)))]
    return list(rows) if which == "all" else []


def _failed(row: "QuestionResult") -> bool:
    return bool(row.failure or any(step.failure for step in row.steps) or not row.scores.get("f1"))
