"""Scores by the type of a question, and by its number of hops."""

import re
from collections.abc import Callable, Sequence

from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.latency import CACHED, SECONDS
from hoptimizer.eval.runner import QuestionResult, mean_scores
from hoptimizer.programs.record import COST
from hoptimizer.programs.settings import count_names

GROUPINGS: dict[str, Callable[[Question], str | None]] = {
    "type": lambda question: question.type,
    "hops": lambda question: str(len(question.hops)) if question.hops else None,
}
"""What questions are grouped by: the data set's name for their kind, and their number of annotated hops."""

# A data set with more kinds than these names its questions rather than groups of them.
_MOST = 30
_NOT_QUALITIES = frozenset((*count_names(), *COST, SECONDS, CACHED))
_REFUSED_BY_MLFLOW = re.compile(r"[^\w .:-]")


def metrics_by_group(rows: Sequence[QuestionResult]) -> dict[str, float]:
    """The mean of every metric, and ``n``, by group of questions: ``f1/type/bridge``, ``n/hops/3``.

    Args:
        rows: what a program answered.

    Example:
        >>> from hoptimizer.eval import Question
        >>> from hoptimizer.eval.runner import QuestionResult
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"], type="bridge")
        >>> metrics_by_group([QuestionResult(question, "Warsaw", passages=[], scores={"f1": 1.0}, steps=[])])
        {'f1/type/bridge': 1.0, 'n/type/bridge': 1.0}
    """
    metrics: dict[str, float] = {}
    for by, group_of in GROUPINGS.items():
        groups: dict[str, list[QuestionResult]] = {}
        for row in rows:
            if (group := group_of(row.question)) is not None:
                groups.setdefault(_REFUSED_BY_MLFLOW.sub("_", group), []).append(row)
        for group, members in sorted(groups.items()) if len(groups) <= _MOST else ():
            means = {name: value for name, value in mean_scores(members).items() if name not in _NOT_QUALITIES}
            metrics |= {f"{name}/{by}/{group}": value for name, value in means.items()}
            metrics[f"n/{by}/{group}"] = float(len(members))
    return metrics
