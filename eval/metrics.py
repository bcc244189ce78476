"""Metrics of answers and retrieval.

Exact match and F1 are SQuAD's (Rajpurkar et al., 2016, section 6.1; the treatment of empty answers is that of
SQuAD 2.0): the best over all accepted answers, after both sides are normalised.
"""

import inspect
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hoptimizer.common.plugins import Registry
from hoptimizer.eval.datasets.question import Question

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class Gold(Protocol):
    """What a metric needs of a question: a :class:`Question` has it, and so has its ``dspy.Example``."""

    @property
    def question(self) -> str: ...

    @property
    def answers(self) -> list[str]: ...

    @property
    def passages(self) -> list[str]: ...


def normalize(text: str | None) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces; empty for ``None``."""
    if text is None:
        return ""
    return " ".join(_ARTICLES.sub(" ", str(text).lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """1 where the prediction is one of the answers after normalisation, else 0.

    Example:
        >>> from hoptimizer.eval import exact_match
        >>> exact_match("The Rhine.", ["Rhine", "river Rhine"])
        1.0
    """
    given = normalize(prediction)
    return float(any(given == normalize(answer) for answer in answers))


def f1(prediction: str | None, answers: Sequence[str]) -> float:
    """The best F1 over the answers, between the multi-sets of normalised tokens; 0 to 1.

    Example:
        >>> from hoptimizer.eval import f1
        >>> f1("river Rhine", ["the Rhine"])
        0.6666666666666666
    """
    given = normalize(prediction).split()
    return max((_token_f1(given, normalize(answer).split()) for answer in answers), default=0.0)


def _token_f1(given: list[str], gold: list[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    common = (Counter(given) & Counter(gold)).total()
    return 2 * common / (len(given) + len(gold))


def recall(found: Sequence[str], gold: Sequence[str]) -> float | None:
    """Share of the supporting passages among those found, by id; ``None`` where no supporting passage is known.

    Example:
        >>> from hoptimizer.eval import recall
        >>> recall(found=["curie", "oslo"], gold=["curie", "warsaw"])
        0.5
    """
    wanted = set(gold)
    return len(wanted.intersection(found)) / len(wanted) if wanted else None


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of one prediction.

    Attributes:
        name: what the config calls it.
        description: one line for tables and help.
        measure: from a question and its prediction (``answer``, ``passages``) to the score; ``None`` where the
            question lacks what the metric needs.
        percent: whether scores lie between 0 and 1, more being better.

    Example:
        >>> import dspy
        >>> from hoptimizer.eval import Metric, Question
        >>> words = Metric("words", "words of the answer", lambda q, p: float(len(p.answer.split())), percent=False)
        >>> words.measure(Question(id="1", question="Who?", answers=["x"]), dspy.Prediction(answer="Marie Curie"))
        2.0
    """

    name: str
    description: str
    measure: Callable[[Gold, Any], float | None]
    percent: bool = True


def _answer(prediction: Any) -> str | None:  # noqa: ANN401 - any object with an answer
    return getattr(prediction, "answer", None)


def _found(prediction: Any) -> list[str]:  # noqa: ANN401 - any object with passages
    return [passage.id for passage in getattr(prediction, "passages", None) or []]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("em", "exact match of the answer", lambda q, p: exact_match(_answer(p), q.answers)),
        Metric("f1", "token F1 of the answer", lambda q, p: f1(_answer(p), q.answers)),
        Metric("recall", "recall of the supporting passages", lambda q, p: recall(_found(p), q.passages)),
        Metric("passages", "passages collected", lambda q, p: float(len(_found(p))), percent=False),
    )
}


def _fulfils(found: Any) -> Metric | None:  # noqa: ANN401 - whatever a user's module holds
    """A user's metric: a :class:`Metric`, or a function that DSPy's optimizers would take."""
    if isinstance(found, Metric):
        return found
    if not callable(found) or isinstance(found, type):
        return None
    about = (inspect.getdoc(found) or "a metric of the user's").splitlines()[0]
    name = getattr(found, "__name__", type(found).__name__)
    return Metric(name, about, lambda question, prediction: found(_as_dspy(question), prediction))


def _as_dspy(question: Any) -> Any:  # noqa: ANN401 - a Question or its dspy.Example
    return question.to_dspy() if isinstance(question, Question) else question


_REGISTRY: Registry[Metric] = Registry(
    "metric or count",
    "hoptimizer.metrics",
    METRICS,
    _fulfils,
    "a hoptimizer.eval.Metric, or a function of an example and a prediction that gives a score",
)


def metric(name: str, also: Iterable[str] = ()) -> Metric:
    """The metric of that name: ours, an entry point of ``hoptimizer.metrics``, or a dotted path's.

    Args:
        name: as a config gives it.
        also: what else a config can give there, for messages.

    Raises:
        UserError: there is none; the nearest name is given.

    Example:
        >>> from hoptimizer.eval import metric
        >>> metric("f1").description
        'token F1 of the answer'
    """
    return _REGISTRY.get(name, "metric", also)


class MetricError(Exception):
    """A metric of the user's failed on a prediction."""


def score_prediction(
    question: Gold,
    prediction: Any,  # noqa: ANN401 - a dspy.Prediction or alike
    own: Sequence[Metric] = (),
) -> dict[str, float]:
    """Every metric of one prediction, without those that the question lacks the annotation for.

    Args:
        question: what was asked, with its annotations.
        prediction: what was answered.
        own: metrics of the user's, besides ours.

    Raises:
        MetricError: one of the user's fails, or gives no finite number.

    Example:
        >>> import dspy
        >>> from hoptimizer.eval import Question, score_prediction
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> score_prediction(question, dspy.Prediction(answer="in Warsaw", passages=[]))
        {'em': 0.0, 'f1': 0.6666666666666666, 'passages': 0.0}
    """
    scores = {name: metric.measure(question, prediction) for name, metric in METRICS.items()}
    scores |= {metric.name: _guarded(metric, question, prediction) for metric in own}
    return {name: score for name, score in scores.items() if score is not None}


def _guarded(metric: Metric, question: Gold, prediction: Any) -> float | None:  # noqa: ANN401 - a dspy.Prediction
    try:
        score = metric.measure(question, prediction)
        if score is None or math.isfinite(score):
            return None if score is None else float(score)
    except Exception as error:
        raise MetricError(f"{metric.name}: {type(error).__name__}: {error}") from error
    raise MetricError(f"{metric.name}: {score!r} is no finite number")
