"""What a compile tells as it goes: its candidates as MLflow runs under its own, its figures, and what it costs."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunStatus, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from hoptimizer.common.progress import Report, silent
from hoptimizer.optimizers.candidates import Candidate
from hoptimizer.tracking.naming import CANDIDATE, FOLDED, KIND, PREFIX
from hoptimizer.tracking.server import outage, store_errors

NUMBER = PREFIX + "candidate"
_TEXT_LENGTH = 500
_PAUSE = 2.0  # seconds between two batches of a curve


class CompileLog:
    """Keeps what a compile tells: its candidates with score, instructions and demonstrations, its figures as curves,
    the settings of DSPy's optimizers, and the best score so far (a
    :class:`~hoptimizer.optimizers.optimizer.CompileListener`).

    It may be told from any thread, where MLflow would not know the active run.

    A compile that was killed scores its first candidates anew, from its cache: those have their runs already. Where the
    store's server gives no answer, the compile goes on; what was told is remembered, and kept with :meth:`catch_up`,
    or in the run of another store that is opened instead.

    Args:
        report: is told about progress.

    Attributes:
        costs: ``estimate``, ``spent`` and ``unscored``, as far as they are known.
    """

    def __init__(self, report: Report = silent) -> None:
        self.progress = report
        self.costs: dict[str, dict[str, float]] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._best: dict[float, float] = {}
        self._told: list[Callable[[], None]] = []
        self._points: list[Metric] = []
        self._sent = time.monotonic()
        self._lock = threading.RLock()

    def open(self, uri: str, client: MlflowClient, run: Run) -> None:
        """Keep what was told, and what is told from here on, in a run of a compile, which may have been told before it
        was killed.

        Args:
            uri: the tracking URI of the store.
            client: its client.
            run: the run.
        """
        self._uri, self._client, self._run = uri, client, run
        found = self._client.search_runs(
            [run.info.experiment_id],
            f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run.info.run_id}' and tags.`{KIND}` = '{CANDIDATE}'",
            max_results=10_000,
        )
        self._runs = {int(child.data.tags[NUMBER]): child.info.run_id for child in found}
        done = (child for child in found if child.info.status == RunStatus.to_string(RunStatus.FINISHED))
        self._scored = {int(child.data.tags[NUMBER]): child.data.metrics["n"] for child in done}
        self._settings = dict(run.data.params)
        self._kept, self._lost = 0, False
        self.catch_up()

    def catch_up(self) -> None:
        """Keep all that was told and is not kept yet.

        Raises:
            MlflowException: the store fails.
        """
        with self._lock:
            if self._points:
                self._told.append(partial(self._log, metrics=self._points))
            self._points, self._sent = [], time.monotonic()
            while self._kept < len(self._told):
                self._told[self._kept]()
                self._kept += 1

    def _tell(self, *events: Callable[[], None]) -> None:
        """Keep what is told; where the server gives no answer, later."""
        with self._lock:
            self._told += events
            if self._lost:
                return
            try:
                self.catch_up()
            except store_errors() as error:
                if not outage(self._uri, error):
                    raise
                self._lost = True

    def _log(self, run_id: str | None = None, **batch: Sequence[Any]) -> None:
        self._client.log_batch(run_id or self._run.info.run_id, **batch)

    def candidate(self, candidate: Candidate) -> None:
        """Keep a candidate, or what is new of one that was scored on more questions."""
        with self._lock:
            self._states[candidate.number] = candidate.state
            best = max(self._best.get(candidate.n, candidate.score), candidate.score)
            self._best[candidate.n] = best
            self._tell(partial(self._keep_candidate, candidate, best, _now()))

    def _keep_candidate(self, candidate: Candidate, best: float, now: int) -> None:
        number = candidate.number
        if self._scored.get(number) == candidate.n:
            return
        scores = {"score": candidate.score, "n": candidate.n, "failures": candidate.failures}
        spent = {"spent/calls": candidate.spent.calls, "spent/seconds": candidate.spent.seconds}
        run_id = self._runs[number] = self._started(number)
        self._log(run_id, metrics=_metrics({**scores, **spent}, now), params=_params(_shown(candidate.state)))
        self._client.log_text(run_id, json.dumps(candidate.state, ensure_ascii=False, indent=1), "program.json")
        points = {f"{FOLDED}search/score": candidate.score, f"{FOLDED}search/best_of_{candidate.n}": best}
        self._log(metrics=_metrics(points, now, step=candidate.spent.calls))
        self._client.set_terminated(run_id)  # the mark that all of it is kept
        self._scored[number] = candidate.n

    def _started(self, number: int) -> str:
        """The run of a candidate, which is running."""
        if run_id := self._runs.get(number):
            self._client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
            return run_id
        tags = {
            MLFLOW_PARENT_RUN_ID: self._run.info.run_id,
            MLFLOW_RUN_NAME: f"candidate {number}",
            KIND: CANDIDATE,
            NUMBER: str(number),
        }
        return self._client.create_run(self._run.info.experiment_id, tags=tags).info.run_id

    def record(self, of: str, figures: Mapping[str, float], update: int) -> None:
        """Keep figures as curves over the updates; those of a training are sent together every few seconds.

        Args:
            of: what they are of; ``estimate``, ``spent`` and ``unscored`` are the costs.
            figures: by name.
            update: of a training, or calls so far.
        """
        is_cost = of in ("estimate", "spent", "unscored")
        with self._lock:
            if is_cost:
                self.costs[of] = dict(figures)
            self._points += _metrics({f"{FOLDED}{of}/{name}": value for name, value in figures.items()}, _now(), update)
            if is_cost or time.monotonic() - self._sent > _PAUSE:
                self._tell()

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Keep the settings that an optimizer runs with, as parameters of the run; the first value of a name stays.

        They are folded, for MLflow's page that compares runs begins with the first names in which these differ.
        """
        self._tell(partial(self._keep_settings, dict(settings)))

    def _keep_settings(self, settings: Mapping[str, Any]) -> None:
        folded = {f"{FOLDED}{name}": value for name, value in settings.items()}
        new = {name: value for name, value in folded.items() if name not in self._settings}
        self._log(params=_params(new))
        self._settings |= new

    def mark_winner(self, state: Mapping[str, Any]) -> None:
        """Tag the candidate that was compiled, where it is one of those that were scored."""
        number = next((number for number, known in self._states.items() if known == state), None)
        if number is not None:
            self._tell(partial(self._keep_winner, number))

    def _keep_winner(self, number: int) -> None:
        self._client.set_tag(self._runs[number], "hop.winner", "true")
        self._log(tags=[RunTag("hop.winner", str(number))])


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


def _metrics(values: Mapping[str, float], now: int, step: int = 0) -> list[Metric]:
    return [Metric(name, value, now, step) for name, value in values.items()]


def _now() -> int:
    """Milliseconds, as MLflow counts."""
    return int(time.time() * 1000)
