"""What is maximized: a metric, or a weighted sum of metrics and counts."""

import asyncio
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from hoptimizer.common.concurrency import run_async
from hoptimizer.common.errors import UserError
from hoptimizer.eval.judge import ACCURACY, Verdict, judge
from hoptimizer.eval.latency import CACHED, SECONDS
from hoptimizer.eval.metrics import METRICS, Gold, Metric, MetricError, metric, score_by, score_prediction
from hoptimizer.programs.record import COST, counts, solved
from hoptimizer.programs.settings import count_names

OBJECTIVE = "objective"
"""The name under which evaluations have the score of a weighted sum."""

NO_JUDGE = "metric: accuracy needs a judge; name its language model, as in lm.judge=openai/gpt-4o"

_NOT_METRICS = (ACCURACY, *count_names())
# What evaluations count and their tables of predictions have, beside scores.
_OF_EVALUATIONS = frozenset(
    ["failures", "unanswered", "judge_failures", "seconds_median", "seconds_p95", "seconds_n", "seconds_per_question"]
)
_COLUMNS = frozenset(
    [
        "id",
        "question",
        "type",
        "hops",
        "answers",
        "answer",
        "failure",
        "judge_failure",
        "supporting",
        "collected",
        "trace",
    ]
)
_TAKEN = _OF_EVALUATIONS | _COLUMNS | {*METRICS, *_NOT_METRICS, *COST, OBJECTIVE, SECONDS, CACHED}
# Every MLflow store takes such a name.
_NAME = re.compile(r"\w[\w.-]*")
_EXAMPLE = "{f1: 1.0, lm_calls: -0.01}"


@dataclass(frozen=True, slots=True)
class Scored:
    """What one prediction scored.

    Attributes:
        values: every metric and count; ``accuracy`` where a judge gave its verdict, ``objective`` where a weighted sum
            is maximized.
        failure: why a metric failed, in one line, or ``None``.
        judge_failure: why the judge gave no verdict, in one line, or ``None``.
    """

    values: dict[str, float]
    failure: str | None = None
    judge_failure: str | None = None


def _qualities(metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Of what more is better: scores between 0 and 1."""
    return (*(metric.name for metric in metrics if metric.percent), ACCURACY)


@dataclass(frozen=True)
class Objective:
    """What is maximized: a metric, or a weighted sum of metrics and counts.

    Called, it scores one prediction as DSPy's optimizers want it, on the examples that :meth:`Question.to_dspy` makes.

    Attributes:
        weights: names of metrics and counts with their weights, none of them 0.
        own: metrics of the user's among them.
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
    own: tuple[Metric, ...] = ()
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
        metrics = {name: _weighed(name, weight) for name, weight in weights.items()}
        names = {name: found.name if found else str(name) for name, found in metrics.items()}
        own = tuple(found for found in metrics.values() if found and found is not METRICS.get(found.name))
        for found in own:
            if not _NAME.fullmatch(found.name):
                raise UserError(f"metric: one of your own is called {found.name!r}; take letters, digits and _ alone")
            if found.name in _TAKEN or list(names.values()).count(found.name) > 1:
                raise UserError(f"metric: one of your own is called {found.name!r}, as another score is; rename it")
        objective = cls(tuple((names[name], float(weight)) for name, weight in weights.items() if weight), own)
        if not objective.best > 0:
            known = ", ".join(_qualities(METRICS.values()))
            wanted = f"at least one of {known} with a weight above 0, as in {_EXAMPLE}"
            raise UserError(f"metric: expected {wanted}; got {value!r}")
        return objective

    @property
    def name(self) -> str:
        """Under which score evaluations have it: a metric's own name, ``objective`` for a weighted sum."""
        return self.weights[0][0] if self.is_metric else OBJECTIVE

    @property
    def is_metric(self) -> bool:
        """Whether it is a metric as it stands, rather than a weighted sum."""
        return len(self.weights) == 1 and self.weights[0][1] == 1

    @property
    def rewarded(self) -> tuple[str, ...]:
        """The scores of which more is better, its own among them."""
        return (*_qualities([*METRICS.values(), *self.own]), self.name)

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
        known = _qualities([*METRICS.values(), *self.own])
        return sum(weight for name, weight in self.weights if name in known and weight > 0)

    def of(self, scores: Mapping[str, float], *, failed: bool = False) -> float:
        """The objective of the scores of one question, or the worst where the program or a metric failed on it.

        What the scores lack counts 0, so that a question without the annotation for a metric moves no choice between
        programs.
        """
        if failed:
            return self.worst
        return max(self.worst, float(sum(weight * scores.get(name, 0.0) for name, weight in self.weights)))

    def score(self, question: Gold, prediction: Any, judge_lm: dspy.LM | None = None) -> Scored:  # noqa: ANN401 - a dspy.Prediction
        """Every score of one prediction.

        Args:
            question: what was asked, with its annotations.
            prediction: what was answered.
            judge_lm: judges the answer; ``None`` where it is not judged.

        Raises:
            UserError: the judge can't be used at all.
            DSPyError: the judge's call got no answer.
        """
        verdict = run_async(judge(judge_lm, question, _answer(prediction))) if judge_lm else None
        return self._scored(question, prediction, verdict, failed=False)

    async def ascore(
        self,
        question: Gold,
        prediction: Any,  # noqa: ANN401 - a dspy.Prediction
        judge_lm: dspy.LM | None = None,
        *,
        failed: bool = False,
    ) -> Scored:
        """As :meth:`score`, from async code; ``failed`` says that the program did."""
        verdict = await judge(judge_lm, question, None if failed else _answer(prediction)) if judge_lm else None
        if self.own:  # a user's metric may ask a language model, for which the other questions do not wait
            return await asyncio.to_thread(self._scored, question, prediction, verdict, failed)
        return self._scored(question, prediction, verdict, failed)

    def _scored(self, question: Gold, prediction: Any, verdict: Verdict | None, failed: bool) -> Scored:  # noqa: ANN401 - a dspy.Prediction
        values, failure = measured(question, prediction, self.own)
        if failed:  # no answer is not the right one, even where that has no letter after normalisation
            scores = [metric.name for metric in (*METRICS.values(), *self.own) if metric.percent]
            values |= {name: 0.0 for name in scores if name in values}
        if verdict and verdict.accuracy is not None:
            values[ACCURACY] = verdict.accuracy
        # Without a verdict that counts in it, a sum would say that the answer is wrong.
        if not (self.is_metric or (self.is_judged and ACCURACY not in values)):
            values[OBJECTIVE] = self.of(values, failed=failed or failure is not None)
        return Scored(values, failure, verdict.failure if verdict else None)

    def __call__(self, example: Gold, prediction: Any, trace: Any = None) -> float:  # noqa: ANN401 - DSPy's signature
        """The objective of one prediction. A judge that fails counts as a wrong answer, and in ``judge_failures``; a
        metric that fails, in ``metric_failures``, as a program that does.

        Raises:
            UserError: the judge can't be used at all.
        """
        return self.with_terms(example, prediction)[0]

    def with_terms(self, example: Gold, prediction: Any) -> tuple[float, dict[str, float]]:  # noqa: ANN401 - DSPy's
        """The objective of one prediction as a call gives it, and what each metric and count adds to it by its name.

        Of a prediction that failed no term is known.
        """
        if self.is_judged and self.judge is None:
            raise UserError(NO_JUDGE)
        scored = self.score(example, prediction, self.judge if self.is_judged else None)
        self.judge_failures.extend([scored.judge_failure] if scored.judge_failure else [])
        self.metric_failures.extend([scored.failure] if scored.failure else [])
        failed = scored.failure is not None
        terms = {} if failed else {name: weight * scored.values.get(name, 0.0) for name, weight in self.weights}
        return self.of(scored.values, failed=failed), terms


def measured(question: Gold, prediction: Any, own: Sequence[Metric]) -> tuple[dict[str, float], str | None]:  # noqa: ANN401 - a dspy.Prediction or alike
    """Every metric and count of one prediction: all that can be weighed, but for the judge's verdict.

    Args:
        question: what was asked, with its annotations.
        prediction: what was answered.
        own: metrics of the user's, besides ours.

    Returns:
        their values, of which one of the user's that fails is that of a wrong answer; and why one failed, in one line,
        or ``None``.
    """
    scores, counted = score_prediction(question, prediction), counts(getattr(prediction, "steps", ()))
    failures = []
    for one in own:
        try:
            score = score_by(one, question, prediction)
        except MetricError as error:
            failures.append(" ".join(str(error).split()))
            score = 0.0 if one.percent else None
        scores |= {} if score is None else {one.name: score}
    return scores | counted | solved(counted, scores["em"]), next(iter(failures), None)


def _answer(prediction: Any) -> str | None:  # noqa: ANN401 - a dspy.Prediction or alike
    return getattr(prediction, "answer", None)


def _weighed(name: object, weight: object) -> Metric | None:
    """The metric that is weighed; ``None`` for a count and for accuracy.

    Raises:
        UserError: there is none of that name, or the weight is no finite number.
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UserError(f"metric.{name}: expected a finite number as its weight, got {weight!r}")
    return None if name in _NOT_METRICS else metric(str(name), also=_NOT_METRICS)
