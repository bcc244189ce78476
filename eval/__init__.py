"""Data sets, metrics and statistics.

What is maximized is in :mod:`hoptimizer.eval.objective`, figures are in :mod:`hoptimizer.eval.plots`, importers of
published formats in :mod:`hoptimizer.eval.datasets.importers`.
"""

from hoptimizer.eval.datasets.dataset import DataSet, check, load
from hoptimizer.eval.datasets.folder import Check, new
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.datasets.settings import DataSettings, bundled
from hoptimizer.eval.metrics import METRICS, Metric, exact_match, f1, metric, recall, score_prediction
from hoptimizer.eval.statistics import Difference, Estimate, compare, mean

__all__ = [
    "METRICS",
    "Check",
    "DataSet",
    "DataSettings",
    "Difference",
    "Estimate",
    "Hop",
    "Metric",
    "Question",
    "bundled",
    "check",
    "compare",
    "exact_match",
    "f1",
    "load",
    "mean",
    "metric",
    "new",
    "recall",
    "score_prediction",
]
