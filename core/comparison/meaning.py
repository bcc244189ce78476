"""What a score means: what has to be the same in all runs for it to be compared, and whether more of it is better."""

from collections.abc import Iterator, Mapping, Sequence

from mlflow.entities import Run

from hoptimizer.comparison.matching import Answered
from hoptimizer.eval.judge import ACCURACY
from hoptimizer.eval.latency import CACHED, SECONDS
from hoptimizer.eval.metrics import METRICS, place_of
from hoptimizer.eval.objective import OBJECTIVE
from hoptimizer.programs.record import COST
from hoptimizer.programs.settings import count_names

_RECALL = "recall"
_OURS = frozenset({*METRICS, ACCURACY, OBJECTIVE, *count_names(), *COST, SECONDS, CACHED})
_QUALITIES = frozenset({*(name for name, metric in METRICS.items() if metric.percent), ACCURACY, OBJECTIVE})
_NEEDS = {
    ACCURACY: "it takes the same lm.judge",
    OBJECTIVE: "it takes a metric with the same weights, and the same supporting passages where that weighs recall",
    _RECALL: "it takes supporting passages, the same for all runs",
}


def is_own(column: str) -> bool:
    """Whether a score is of a metric of the user's.

    Args:
        column: the score's name.
    """
    return column not in _OURS


def needs(column: str) -> str:
    """What runs need to have in common for a score to be compared, in words; nothing where that goes without saying.

    Args:
        column: the score's name.
    """
    return "it takes one metric of your own for all runs" if is_own(column) else _NEEDS.get(column, "")


def alike(column: str, answered: Sequence[Answered]) -> bool:
    """Whether a score means the same in all runs that have it.

    Args:
        column: the score's name.
        answered: the runs, with the questions that all of them answered.
    """
    definitions = {_definition(column, one.run) for one in answered if column in one.table}
    return len(definitions) <= 1 and not other_gold(column, answered)


def other_gold(column: str, answered: Sequence[Answered]) -> bool:
    """Whether runs have a score by different supporting passages; a run that did not keep them is taken to agree.

    Args:
        column: the score's name.
        answered: the runs, with the questions that all of them answered.
    """
    having = [one for one in answered if column in one.table]
    weighed = column == OBJECTIVE and any(f"metric.{_RECALL}" in one.run.data.params for one in having)
    return (weighed or column == _RECALL) and len({one.supporting for one in having} - {None}) > 1


def more_is_better(column: str, run: Run) -> bool:
    """Whether the higher of two scores is known to be the better one.

    A count can be too high as well as too low. Of a metric of the user's it is known where that is what is maximized.

    Args:
        column: the score's name.
        run: one that has it.
    """
    return "metric" in run.data.params and any(_own(run.data.params)) if is_own(column) else column in _QUALITIES


def _definition(column: str, run: Run) -> frozenset[tuple[str, str]]:
    """The parameters of a run that decide on a score besides the answers: who judged them, what is weighed, and whose
    metric it is."""
    params = run.data.params
    if is_own(column):
        places = set(_own(params))
        # A metric may have another name than the function or the object that it is; then all are compared.
        named = {place for place in places if place.endswith(f":{column}")}
        return frozenset(("metric", place) for place in named or places)
    sections: tuple[str, ...] = ("metric.",) if column == OBJECTIVE else ()
    if column == ACCURACY or (column == OBJECTIVE and f"metric.{ACCURACY}" in params):
        sections += ("lm.judge.",)
    return frozenset((key, value) for key, value in params.items() if key.startswith(sections))


def _own(params: Mapping[str, str]) -> Iterator[str]:
    """Where the metrics of the user's are that a run has by its parameters: their dotted paths."""
    weighed = [key.removeprefix("metric.") for key in params if key.startswith("metric.")]
    for name in [*weighed, *([params["metric"]] if "metric" in params else [])]:
        if is_own(name):
            yield place_of(name) or name
