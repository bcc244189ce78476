"""What a compile tells as it goes: its candidates as MLflow runs under its own, its figures, and what it costs."""

import json
import time
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunStatus, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from hoptimizer.common.progress import Report, silent
from hoptimizer.optimizers.candidates import Candidate

KIND = "candidate"
_NUMBER = "hop.candidate"
_TEXT_LENGTH = 500


class CompileLog:
    """Keeps what a compile tells: its candidates with score, instructions and demonstrations, its figures as curves,
    the settings of DSPy's optimizers, and the best score so far (a
    :class:`~hoptimizer.optimizers.optimizer.CompileListener`).

    It may be told from any thread, where MLflow would not know the active run.

    A compile that was killed scores its first candidates anew, from its cache: those have their runs already.

    Args:
        client: the client of the MLflow store.
        report: is told about progress.

    Attributes:
        costs: ``estimate``, ``spent`` and ``unscored``, as far as they are known.
    """

    def __init__(self, client: MlflowClient, report: Report = silent) -> None:
        self._client, self.progress = client, report
        self.costs: dict[str, dict[str, float]] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._best: dict[float, float] = {}

    def open(self, run: Run) -> None:
        """Keep what is told from here on in a run of a compile, which may have been told before it was killed."""
        self._run = run
        found = self._client.search_runs(
            [run.info.experiment_id],
            f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.info.run_id}' and tags.`hop.kind` = '{KIND}'",
            max_results=10_000,
        )
        self._runs = {int(child.data.tags[_NUMBER]): child.info.run_id for child in found}
        done = (child for child in found if child.info.status == RunStatus.to_string(RunStatus.FINISHED))
        self._scored = {int(child.data.tags[_NUMBER]): child.data.metrics["n"] for child in done}
        self._settings = dict(run.data.params)

    def candidate(self, candidate: Candidate) -> None:
        """Keep a candidate, or what is new of one that was scored on more questions."""
        number = candidate.number
        self._states[number] = candidate.state
        best = self._best[candidate.n] = max(self._best.get(candidate.n, candidate.score), candidate.score)
        if self._scored.get(number) == candidate.n:
            return
        self._scored[number] = candidate.n
        scores = {"score": candidate.score, "n": candidate.n, "failures": candidate.failures}
        spent = {"spent/calls": candidate.spent.calls, "spent/seconds": candidate.spent.seconds}
        run_id = self._runs[number] = self._started(number)
        self._client.log_batch(run_id, metrics=_metrics({**scores, **spent}), params=_params(_shown(candidate.state)))
        self._client.log_text(run_id, json.dumps(candidate.state, ensure_ascii=False, indent=1), "program.json")
        points = {"search/score": candidate.score, f"search/best_of_{candidate.n}": best}
        self._client.log_batch(self._run.info.run_id, metrics=_metrics(points, step=candidate.spent.calls))
        self._client.set_terminated(run_id)  # the mark that all of it is kept

    def _started(self, number: int) -> str:
        """The run of a candidate, which is running."""
        if run_id := self._runs.get(number):
            self._client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
            return run_id
        tags = {
            MLFLOW_PARENT_RUN_ID: self._run.info.run_id,
            MLFLOW_RUN_NAME: f"candidate {number}",
            "hop.kind": KIND,
            _NUMBER: str(number),
        }
        return self._client.create_run(self._run.info.experiment_id, tags=tags).info.run_id

    def record(self, of: str, figures: Mapping[str, float], update: int) -> None:
        """Keep figures as curves over the updates.

        Args:
            of: what they are of; ``estimate``, ``spent`` and ``unscored`` are the costs.
            figures: by name.
            update: of a training, or calls so far.
        """
        if of in ("estimate", "spent", "unscored"):
            self.costs[of] = dict(figures)
        values = {f"{of}/{name}": value for name, value in figures.items()}
        self._client.log_batch(self._run.info.run_id, metrics=_metrics(values, update), synchronous=of in self.costs)

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Keep the settings that an optimizer runs with, as parameters of the run; the first value of a name stays."""
        new = {name: value for name, value in settings.items() if name not in self._settings}
        self._settings |= new
        self._client.log_batch(self._run.info.run_id, params=_params(new))

    def mark_winner(self, state: Mapping[str, Any]) -> None:
        """Tag the candidate that was compiled, where it is one of those that were scored."""
        number = next((number for number, known in self._states.items() if known == state), None)
        if number is not None:
            self._client.set_tag(self._runs[number], "hop.winner", "true")
            self._client.log_batch(self._run.info.run_id, tags=[RunTag("hop.winner", str(number))])


def _shown(state: Mapping[str, Any]) -> dict[str, Any]:
    """By the step, its instructions and how many demonstrations it has, to be compared in MLflow's table."""
    shown: dict[str, Any] = {}
    for step, kept in state.items():
        if "signature" in kept:
            shown[f"{step}.instructions"] = kept["signature"]["instructions"]
            shown[f"{step}.demos"] = len(kept["demos"])
    return shown | {"prompt_format": state["program"].get("prompt_format")}


def _params(values: Mapping[str, Any]) -> list[Param]:
    return [Param(name, str(value)[:_TEXT_LENGTH]) for name, value in values.items()]


def _metrics(values: Mapping[str, float], step: int = 0) -> list[Metric]:
    now = int(time.time() * 1000)
    return [Metric(name, value, now, step) for name, value in values.items()]
