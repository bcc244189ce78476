"""What is maximized: a metric, or a weighted sum of metrics and counts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.eval.failures import one_line
from hoptimizer.eval.judge import ACCURACY, judge
from hoptimizer.eval.metrics import METRICS, Gold, score_prediction
from hoptimizer.programs.record import counts, solved
from hoptimizer.programs.settings import count_names

OBJECTIVE = "objective"
"""The name under which evaluations have the score of a weighted sum."""

NO_JUDGE = "metric: accuracy needs a judge; name its language model, as in lm.judge=openai/gpt-4o"

# More of these is better.
_QUALITIES = (*(name for name, metric in METRICS.items() if metric.percent), ACCURACY)
_KNOWN = (*METRICS, ACCURACY, *count_names())
_EXAMPLE = "{f1: 1.0, lm_calls: -0.01}"


def measured(question: Gold, prediction: Any) -> dict[str, float]:  # noqa: ANN401 - a dspy.Prediction or alike
    """Every metric and count of one prediction: all that can be weighed, but for the judge's verdict."""
    scores, counted = score_prediction(question, prediction), counts(getattr(prediction, "steps", ()))
    return scores | counted | solved(counted, scores["em"])


@dataclass(frozen=True)
class Objective:
    """What is maximized: a metric, or a weighted sum of metrics and counts.

    Called, it scores one prediction as DSPy's optimizers want it, on the examples that :meth:`Question.to_dspy` makes.

    Attributes:
        weights: names of metrics and counts with their weights, none of them 0.
        judge: the language model that gives the verdicts of ``accuracy``.
        judge_failures: why a call's score lacks a verdict, in one line each. DSPy calls from several threads, and
            appending to a list is safe among them.
        metric_failures: what metrics raised in calls, in one line each.

    Example:
        >>> from hoptimizer.eval import Objective
        >>> objective = Objective.parse({"f1": 1.0, "lm_calls": -0.01})
        >>> objective.label, objective.of({"f1": 0.5, "lm_calls": 3})
        ('f1 - 0.01 lm_calls', 0.47)
    """

    weights: tuple[tuple[str, float], ...]
    judge: dspy.LM | None = None
    judge_failures: list[str] = field(default_factory=list, compare=False)
    metric_failures: list[str] = field(default_factory=list, compare=False)

    @classmethod
    def parse(cls, value: object) -> "Objective":
        """The objective that the config's ``metric`` describes: a name, or a mapping of names to weights.

        Raises:
            UserError: a name is not known, a weight is no finite number, or nothing in it rewards answers.
        """
        weights = {value: 1.0} if isinstance(value, str) else value
        if not isinstance(weights, Mapping):
            raise UserError(f"metric: expected a name, or names with weights as in {_EXAMPLE}; got {value!r}")
        for name, weight in weights.items():
            _check(name, weight)
        if not any(weights.get(name, 0) > 0 for name in _QUALITIES):
            wanted = f"at least one of {', '.join(_QUALITIES)} with a weight above 0, as in {_EXAMPLE}"
            raise UserError(f"metric: expected {wanted}; got {value!r}")
        return cls(tuple((name, float(weight)) for name, weight in weights.items() if weight))

    @property
    def name(self) -> str:
        """Under which score evaluations have it: a metric's own name, ``objective`` for a weighted sum."""
        return self.weights[0][0] if self.is_metric else OBJECTIVE

    @property
    def is_metric(self) -> bool:
        """Whether it is a metric as it stands, rather than a weighted sum."""
        return len(self.weights) == 1 and self.weights[0][1] == 1

    @property
    def is_judged(self) -> bool:
        """Whether it needs a judge."""
        return any(name == ACCURACY for name, _ in self.weights)

    @property
    def label(self) -> str:
        """For people: ``f1``, or ``f1 - 0.01 lm_calls``."""
        terms = ((weight, name if abs(weight) == 1 else f"{abs(weight):g} {name}") for name, weight in self.weights)
        return " ".join(f"{'-' if weight < 0 else '+'} {term}" for weight, term in terms).removeprefix("+ ")

    @property
    def worst(self) -> float:
        """What a question counts on which the program fails; none counts less.

        It is 0, but where something is taken off it is as far below 0 as the best answer is above: a program that fails
        makes no calls, and must not be the better one for that.
        """
        return 0.0 if all(weight > 0 for _, weight in self.weights) else -self.best

    @property
    def best(self) -> float:
        """What a right answer counts, before anything is taken off."""
        return sum(weight for name, weight in self.weights if name in _QUALITIES and weight > 0)

    def of(self, scores: Mapping[str, float], *, failed: bool = False) -> float:
        """The objective of the scores of one question, or the worst where the program or a metric failed on it.

        What the scores lack counts 0, so that a question without the annotation for a metric moves no choice between
        programs.
        """
        if failed:
            return self.worst
        return max(self.worst, float(sum(weight * scores.get(name, 0.0) for name, weight in self.weights)))

    def __call__(self, example: Gold, prediction: Any, trace: Any = None) -> float:  # noqa: ANN401 - DSPy's signature
        """The objective of one prediction. A judge that fails counts as a wrong answer, and in ``judge_failures``; a
        metric that fails, in ``metric_failures``, as a program that does.

        Raises:
            UserError: the judge can't be used at all.
        """
        try:
            scores = measured(example, prediction)
        except Exception as error:  # noqa: BLE001 - metrics may be anybody's, and one run is not to lose the others
            self.metric_failures.append(one_line(error))
            return self.worst
        if self.is_judged:
            scores[ACCURACY] = self._accuracy(example, getattr(prediction, "answer", None))
        return self.of(scores)

    def _accuracy(self, question: Gold, answer: str | None) -> float:
        if self.judge is None:
            raise UserError(NO_JUDGE)
        verdict = judge(self.judge, question, answer)
        if verdict.failure:
            self.judge_failures.append(verdict.failure)
        return verdict.accuracy or 0.0


def _check(name: object, weight: object) -> None:
    if name not in _KNOWN:
        raise UserError(f"metric: there is no metric or count {name!r}; {nearest(str(name), _KNOWN)}")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f"metric.{name}: expected a finite number as its weight, got {weight!r}")
