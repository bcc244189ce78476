"""Which answers of a run become traces, and keeping them."""

from functools import partial

from mlflow.entities import Run

from hoptimizer.eval.runner import Evaluation
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.genai.choice import chosen
from hoptimizer.genai.traces import TracedRun, log_traces
from hoptimizer.retrieval import Passage
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.workbench import Workbench


def traced(
    bench: Workbench, tracker: Tracker, run: Run, evaluation: Evaluation, model_id: str | None
) -> dict[str, str]:
    """Keep traces of answers, as the config says of which.

    Args:
        bench: of the config.
        tracker: the store.
        run: the run that the answers are of.
        evaluation: the answers.
        model_id: the MLflow model that gave them, if there is one.

    Returns:
        the ids of the traces, by those of their questions.
    """
    config, info = bench.config, run.info
    rows = chosen(evaluation.rows, config.tracking.traces)
    of = TracedRun(tracker.uri, info.experiment_id, info.run_id, config.program.name, model_id)
    return log_traces(rows, of, partial(_passage, bench), config.objective.name)


def _passage(bench: Workbench, passage_id: str) -> Passage | None:
    """A passage of the data set, or one that was found elsewhere; ``None`` for what a cluster has found there."""
    if passage_id in bench.data.corpus:
        return bench.data.corpus[passage_id]
    here = bench.config.retriever.elsewhere and not isinstance(bench.config.executor, RayExecutor)
    return bench.retriever.passage(passage_id) if here else None
