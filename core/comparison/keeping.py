"""Keeping a comparison as a run."""

import mlflow
import pandas as pd

from hoptimizer.comparison.drawing import drawn
from hoptimizer.comparison.result import Comparison
from hoptimizer.tracking.tracker import Tracker

COMPARISONS = " comparisons"
"""Ends the name of the experiment that has the comparisons of another one."""


def log_comparison(tracker: Tracker, comparison: Comparison) -> str:
    """Keep a comparison, its table and plots, as a run of an experiment beside that of the runs.

    Returns:
        the run's id.
    """
    rows = [
        {"run_id": v.run_id, "variant": v.name, "n": len(v.ids)} | {k: e.mean for k, e in v.estimates.items()}
        for v in comparison.variants
    ]
    aside = Tracker(tracker.uri, f"{tracker.experiment_name}{COMPARISONS}", tracker.artifacts)
    with aside.run("compare", f"comparison on {comparison.split}") as run:
        mlflow.log_table(pd.DataFrame(rows), "comparison.json")
        mlflow.log_dict(comparison.as_dict(), "comparison_full.json")
        for name, _, plot in drawn(comparison):
            mlflow.log_figure(plot, f"{name}.png")
    return run.info.run_id
