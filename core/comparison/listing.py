"""The page of MLflow's that is looked for: a run's, or that which lists the runs of an experiment side by side."""

import json
from collections.abc import Sequence

import mlflow
from mlflow.entities import Run

from hoptimizer.comparison.differing import MODEL, differing
from hoptimizer.tracking.holding import located
from hoptimizer.tracking.naming import FOLDED, KIND, NO_VARIANTS
from hoptimizer.tracking.server import outage, store_errors

# The columns of the page of runs: MLflow keeps such a view as a tag of the experiment.
_VIEW = "hop"
_SHARED_VIEW = f"mlflow.sharedViewState.{_VIEW}"
_MODEL_TRAINING = "workflowType=machine_learning"
# What a run is of, before its scores; and how many more settings, in which the runs differ, have room beside it.
_SAID = ("program.name", "optimizer.name", MODEL)
_MORE = 3
_RUNS_READ = 200
# What could not even start failed, and has nothing to look at.
_SHOWN = ("FINISHED", "RUNNING")


def page_of(uri: str, run: Run | None = None, experiment: str | None = None) -> str:
    """The path of the page to open: a run's; or that of an experiment's runs, whose columns are what they are of, in
    what they differ and the headlines, or MLflow's own where the store refuses to keep these.

    Args:
        uri: the store's tracking URI.
        run: the run that is asked for.
        experiment: the name of the experiment that is asked for; by default that of the latest run that finished or is
            under way, or, where there is none, of the latest one.
    """
    if run is not None:
        return f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?{_MODEL_TRAINING}"
    client = mlflow.MlflowClient(tracking_uri=located(uri))
    found = [one for one in client.search_experiments() if experiment in (None, one.name)]
    ids = [one.experiment_id for one in found]
    words = " and ".join(f"tags.`{KIND}` != '{kind}'" for kind in NO_VARIANTS)
    runs = (
        client.search_runs(ids, words, max_results=_RUNS_READ, order_by=["attributes.start_time DESC"]) if ids else []
    )
    if not runs:
        return "/"
    chosen = next((one for one in runs if one.info.status in _SHOWN), runs[0]).info.experiment_id
    view = {"selectedColumns": _columns([one for one in runs if one.info.experiment_id == chosen])}
    page = f"/#/experiments/{chosen}/runs"
    try:
        client.set_experiment_tag(chosen, _SHARED_VIEW, json.dumps(view))
    except store_errors() as error:
        if outage(uri, error):
            raise
        return f"{page}?{_MODEL_TRAINING}"  # an account that may only read
    return f"{page}?viewStateShareKey={_VIEW}&{_MODEL_TRAINING}"


def _columns(runs: Sequence[Run]) -> list[str]:
    more = {key for own in differing(runs) for key in own if key not in _SAID}
    # Which retriever it was says more than an option of it.
    shown = sorted(more, key=lambda key: (not key.endswith(".name"), key))[:_MORE]
    headlines = sorted({name for one in runs for name in one.data.metrics if _is_headline(name)})
    return [*(f"params.`{name}`" for name in (*_SAID, *shown)), *(f"metrics.`{name}`" for name in headlines)]


def _is_headline(name: str) -> bool:
    return not name.startswith(FOLDED) and name.count("/") == 1 and name.partition("/")[0] in ("train", "dev", "test")
