"""Data sets, from documents or a teacher too, metrics, evaluations and statistics.

Figures are in :mod:`hoptimizer.eval.display.plots`, importers of published formats in
:mod:`hoptimizer.eval.datasets.importers`.
"""

from typing import TYPE_CHECKING

import lazy_loader

from hoptimizer.eval.datasets.settings import DataSettings, bundled

if TYPE_CHECKING:
    from hoptimizer.eval.datasets.dataset import DataSet, check, load
    from hoptimizer.eval.datasets.folder import Check, new
    from hoptimizer.eval.datasets.question import Hop, Question
    from hoptimizer.eval.documents.importing import import_documents
    from hoptimizer.eval.metrics import METRICS, Metric, exact_match, f1, metric, recall, score_prediction
    from hoptimizer.eval.objective import Objective
    from hoptimizer.eval.runner import Evaluation, evaluate
    from hoptimizer.eval.statistics import Difference, Estimate, compare, mean
    from hoptimizer.eval.synthesis.synthesizing import synthesize

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
    "import_documents",
    "load",
    "mean",
    "metric",
    "new",
    "recall",
    "score_prediction",
    "synthesize",
]

# Imported when first used: whoever reads a config need not wait for NumPy, DSPy and torch.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "datasets.dataset": ["DataSet", "check", "load"],
        "datasets.folder": ["Check", "new"],
        "datasets.question": ["Hop", "Question"],
        "datasets.settings": ["DataSettings", "bundled"],
        "documents.importing": ["import_documents"],
        "metrics": ["METRICS", "Metric", "exact_match", "f1", "metric", "recall", "score_prediction"],
        "objective": ["Objective"],
        "runner": ["Evaluation", "evaluate"],
        "statistics": ["Difference", "Estimate", "compare", "mean"],
        "synthesis.synthesizing": ["synthesize"],
    },
)
