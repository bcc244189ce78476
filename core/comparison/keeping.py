"""Keeping a comparison as a run."""

from dataclasses import replace

import mlflow
import pandas as pd

from hoptimizer.comparison.result import Comparison
from hoptimizer.tracking.tracker import Tracker

COMPARISONS = " comparisons"
"""Ends the name of the experiment that has the comparisons of another one."""


def log_comparison(tracker: Tracker, comparison: Comparison) -> str:
    """Keep a comparison, its table and plots, as a run of an experiment beside that of the runs.

    Returns:
        the run's id.
    """
    from hoptimizer.eval.display import plots  # draws with matplotlib, which takes a second to import

    rows = [
        {"run_id": v.run_id, "variant": v.name, "n": len(v.ids)} | {k: e.mean for k, e in v.estimates.items()}
        for v in comparison.variants
    ]
    names = comparison.names
    named = [replace(variant, name=name) for variant, name in zip(comparison.variants, names, strict=True)]
    metric = comparison.metric
    aside = Tracker(tracker.uri, f"{tracker.experiment.name}{COMPARISONS}")
    with aside.run("compare", f"comparison on {comparison.split}") as run:
        mlflow.log_table(pd.DataFrame(rows), "comparison.json")
        mlflow.log_dict(comparison.as_dict(), "comparison_full.json")
        mlflow.log_figure(plots.bars({v.name: v.estimates for v in named}), "scores.png")
        if comparison.differences:
            forest = plots.forest(dict(zip(names[1:], comparison.differences, strict=True)), metric, names[0])
            mlflow.log_figure(forest, "differences.png")
        points = {v.name: (v.estimates[metric], v.estimates["lm_calls"].mean) for v in named if metric in v.estimates}
        mlflow.log_figure(plots.cost(points, metric), "cost.png")
    return run.info.run_id
