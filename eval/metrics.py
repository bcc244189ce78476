"""Metrics of answers and retrieval, by name."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hoptimizer.common.plugins import Registry
from hoptimizer.eval.answers import contains, efficient_rag_em, exact_match, f1, hotpotqa_f1
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.drop import drop_em, drop_f1


class Gold(Protocol):
    """What a metric needs of a question: a :class:`Question` has it, and so has its ``dspy.Example``."""

    @property
    def question(self) -> str: ...

    @property
    def answers(self) -> list[str]: ...

    @property
    def passages(self) -> list[str]: ...


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


def _of_answer(name: str, description: str, score: Callable[[str | None, Sequence[str]], float]) -> Metric:
    return Metric(name, description, lambda q, p: score(_answer(p), q.answers))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _of_answer("em", "exact match of the answer", exact_match),
        _of_answer("f1", "token F1 of the answer", f1),
        Metric("recall", "recall of the supporting passages", lambda q, p: recall(_found(p), q.passages)),
        Metric("passages", "passages collected", lambda q, p: float(len(_found(p))), percent=False),
        # Every evaluation has those that follow, so that runs can be compared by them afterwards; tables show them
        # only where they are named.
        _of_answer("hotpotqa_f1", "HotpotQA's and 2WikiMultihopQA's F1 of the answer", hotpotqa_f1),
        _of_answer("drop_em", "DROP's exact match of the answer", drop_em),
        _of_answer("drop_f1", "DROP's F1 of the answer", drop_f1),
        _of_answer("contains", "whether the given answer contains a right one", contains),
        _of_answer("efficient_rag_em", "EfficientRAG's exact match of the answer", efficient_rag_em),
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


# Names of metrics of the user's whose scores are shares. A comparison shows those of runs, and imports none of them.
_own_shares: set[str] = set()
# Scores that were summed up may lie a rounding above 1.
_ROUNDING = 1e-9


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
    found = _REGISTRY.get(name, "metric", also)
    if found.percent:
        take_for_shares([found.name])
    return found


def take_for_shares(names: Iterable[str]) -> None:
    """Let scores of metrics of the user's be shown as shares.

    Args:
        names: the metrics'.
    """
    _own_shares.update(names)


def is_share(name: str) -> bool:
    """Whether scores lie between 0 and 1, and are shown in percent.

    Args:
        name: of a metric, or of a metric of the user's that was loaded, or taken for one of shares.
    """
    return METRICS[name].percent if name in METRICS else name in _own_shares


def place_of(name: str) -> str | None:
    """The dotted path of a metric that is none of ours; ``None`` for ours, and where there is none.

    Args:
        name: as a config gives it.
    """
    return _REGISTRY.place(name)


class MetricError(Exception):
    """A metric of the user's failed on a prediction."""


def score_prediction(question: Gold, prediction: Any) -> dict[str, float]:  # noqa: ANN401 - a dspy.Prediction or alike
    """Every metric of one prediction, without those that the question lacks the annotation for.

    Args:
        question: what was asked, with its annotations.
        prediction: what was answered.

    Example:
        >>> import dspy
        >>> from hoptimizer.eval import Question, score_prediction
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> scores = score_prediction(question, dspy.Prediction(answer="in Warsaw", passages=[]))
        >>> scores["em"], scores["f1"], scores["contains"], "recall" in scores
        (0.0, 0.6666666666666666, 1.0, False)
    """
    scores = {name: metric.measure(question, prediction) for name, metric in METRICS.items()}
    return {name: score for name, score in scores.items() if score is not None}


def score_by(metric: Metric, question: Gold, prediction: Any) -> float | None:  # noqa: ANN401 - a dspy.Prediction
    """What a metric of the user's says of one prediction; ``None`` where it has nothing to say.

    Raises:
        MetricError: it fails, or gives no finite number, or one that is no share where its scores are.
    """
    try:
        score = metric.measure(question, prediction)
        if score is None:
            return None
        is_finite = math.isfinite(score)
    except Exception as error:
        raise MetricError(f"{metric.name}: {type(error).__name__}: {error}") from error
    if not is_finite:
        raise MetricError(f"{metric.name}: {score!r} is no finite number")
    if metric.percent and not -_ROUNDING <= score <= 1 + _ROUNDING:
        raise MetricError(
            f"{metric.name}: expected a score between 0 and 1, got {score!r}; if its scores are no shares, make it a "
            "hoptimizer.eval.Metric with percent=False"
        )
    return float(score)
