"""Data sets, metrics, evaluations and statistics.

Figures are in :mod:`hoptimizer.eval.display.plots`, importers of published formats in
:mod:`hoptimizer.eval.datasets.importers`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hoptimizer.eval.datasets.dataset import DataSet, check, load
from hoptimizer.eval.datasets.folder import Check, new
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.datasets.settings import DataSettings, bundled
from hoptimizer.eval.metrics import METRICS, Metric, exact_match, f1, metric, recall, score_prediction
from hoptimizer.eval.statistics import Difference, Estimate, compare, mean

if TYPE_CHECKING:
    from hoptimizer.eval.objective import Objective
    from hoptimizer.eval.runner import Evaluation, evaluate

# Imported when first used: whoever reads data need not wait for DSPy and torch.
_HOMES = {
    "Evaluation": "hoptimizer.eval.runner",
    "Objective": "hoptimizer.eval.objective",
    "evaluate": "hoptimizer.eval.runner",
}

__all__ = [
    "METRICS",
    "Check",
    "DataSet",
    "DataSettings",
    "Difference",
    "Estimate",
    "Evaluation",
    "Hop",
    "Metric",
    "Objective",
    "Question",
    "bundled",
    "check",
    "compare",
    "evaluate",
    "exact_match",
    "f1",
    "load",
    "mean",
    "metric",
    "new",
    "recall",
    "score_prediction",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
