"""Every variant and every score is an MLflow run."""

import contextlib
import io
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.entities import Run, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from sqlalchemy.exc import SQLAlchemyError

from hoptimizer.common.disk import disk_failure
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.urls import line_without_secrets, text_without_secrets, without_secrets
from hoptimizer.stored import read_stored, stored_config, stored_state
from hoptimizer.tracking.artifacts import CONFIG, PREDICTIONS, PREFIX, STATE, predictions_file
from hoptimizer.tracking.fetching import fetch_part
from hoptimizer.tracking.holding import HeldRuns
from hoptimizer.tracking.new_store import make_store
from hoptimizer.tracking.server import check_server

# What MLflow raises itself, and what comes through from its database.
_STORE_ERRORS = (MlflowException, SQLAlchemyError)
_FAILURE = PREFIX + "failure"
# What a compile has spent, as tables have it.
_SPENT = {"spent/calls": ("compile_calls", 1.0), "spent/seconds": ("compile_minutes", 1 / 60)}
_NO_VARIANTS = ("compare", "study", "candidate")
_TAG_LENGTH = 5000  # what every MLflow store takes
_FINISHED = " and attributes.status = 'FINISHED'"
_RUNNING = "attributes.status = 'RUNNING'"
_UNFINISHED = " and attributes.status != 'FINISHED'"


@dataclass(frozen=True)
class Predictions:
    """A run's answers on one split, as they were logged.

    Attributes:
        split: the split's name.
        data: digest of the data set, which says whether two runs answered the same questions.
        table: one row for each question: ``id``, ``question``, ``type``, ``hops`` (how many), ``answers``, ``answer``,
            ``failure`` and a column for each score.
    """

    split: str
    data: str
    table: pd.DataFrame


class Tracker:
    """An MLflow store and one experiment in it.

    Args:
        uri: any MLflow tracking URI.
        experiment: the experiment that runs are made and looked for in; it is created where there is none.

    Raises:
        UserError: the store can't be opened.
        ServiceError: its server is out of reach, or the disk is full.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import Tracker
        >>> tracker = Tracker(f"sqlite:///{Path.cwd()}/mlflow.db", "atlas")
        >>> tracker.runs()
        []
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri = uri
        # Traces of single calls are not what variants are compared by, and cost 10 ms each.
        os.environ.setdefault("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
        # Its bars would run through ours.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        # A server is asked again for half a minute; MLflow's own number keeps silent for four.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
        # What it logs with a traceback it raises, too.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        self._held = HeldRuns(uri)
        check_server(uri)
        mlflow.set_tracking_uri(uri)
        try:
            with self._held.opening():
                make_store(uri)
                self.experiment = mlflow.set_experiment(experiment)
        except (*_STORE_ERRORS, OSError) as error:
            reason, full = line_without_secrets(error), disk_failure(error)
            kind = ServiceError if full else UserError
            raise kind(f"tracking.uri: can't open {without_secrets(uri)!r}: {full or reason}") from error
        self.client = mlflow.MlflowClient()

    @contextlib.contextmanager
    def run(self, kind: str, name: str, fingerprint: str | None = None, *, reopen: bool = False) -> Iterator[Run]:
        """A run that ends as finished, or as failed where an exception leaves it, or as killed on Ctrl-C.

        Within another run it is nested in that one. Runs of processes that were killed end as killed now.

        Args:
            kind: ``compile``, ``eval``, ``compare`` or ``study``.
            name: shown in MLflow.
            fingerprint: identifies the work; an unfinished run with the same one is continued.
            reopen: continue a finished run, too.

        Raises:
            UserError: another process is at work on the run.
            ServiceError: the store failed.
        """
        try:
            self._end_left()
            yield from self._run(kind, name, fingerprint, reopen)
        except _STORE_ERRORS as error:
            reason = disk_failure(error) or line_without_secrets(error)
            raise ServiceError(
                f"tracking.uri: {without_secrets(self.uri)} failed: {reason}; give the same command again once it is "
                "back: what was answered is cached"
            ) from error

    def _run(self, kind: str, name: str, fingerprint: str | None, reopen: bool) -> Iterator[Run]:
        unfinished = self._found(fingerprint, "" if reopen else _UNFINISHED) if fingerprint else None
        tags = {PREFIX + "kind": kind} | ({PREFIX + "fingerprint": fingerprint} if fingerprint else {})
        new_name = None if unfinished else name
        with contextlib.ExitStack() as held:
            if unfinished:
                held.enter_context(self._held.hold(unfinished))
            with mlflow.start_run(run_id=unfinished, run_name=new_name, nested=True, tags=tags) as run:
                if not unfinished:
                    held.enter_context(self._held.hold(run.info.run_id))
                if _FAILURE in run.data.tags:
                    self.client.delete_tag(run.info.run_id, _FAILURE)
                if unfinished:
                    # MLflow appends to a table that is there; the run that is continued writes its own anew.
                    get_artifact_repository(run.info.artifact_uri).delete_artifacts(PREDICTIONS)
                try:
                    yield run
                except KeyboardInterrupt:
                    mlflow.end_run(RunStatus.to_string(RunStatus.KILLED))
                    raise
                except UserError as error:
                    self.end_failed(str(error))
                    raise

    def _end_left(self) -> None:
        """End the runs that killed processes have left, and those nested in them."""
        for run_id in self._held.left():
            children = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' and {_RUNNING}"
            with contextlib.suppress(MlflowException):  # it may have been deleted
                run = self.client.get_run(run_id)
                nested = self.client.search_runs([run.info.experiment_id], children)
                for one in [run, *nested]:
                    if one.info.status == RunStatus.to_string(RunStatus.RUNNING):
                        self.client.set_terminated(one.info.run_id, RunStatus.to_string(RunStatus.KILLED))

    def finished(self, fingerprint: str) -> str | None:
        """The finished run of a piece of work, or ``None`` where it has none."""
        return self._found(fingerprint, _FINISHED)

    def fail(self, kind: str, name: str, fingerprint: str, message: str, details: str = "") -> str:
        """Keep a piece of work as failed: in its run, or in a new one where it came to none.

        Args:
            kind: as :meth:`run` takes it, like ``name`` and ``fingerprint``.
            name: shown in MLflow.
            fingerprint: identifies the work.
            message: why, in one line.
            details: kept beside it as ``failure.txt``.

        Returns:
            the run's id.
        """
        with self.run(kind, name, fingerprint) as run:
            if details:
                mlflow.log_text(details, "failure.txt")
            self.end_failed(message)
        return run.info.run_id

    def end_failed(self, message: str) -> None:
        """End the active run as failed, and say why in its tag ``hop.failure``."""
        mlflow.set_tag(_FAILURE, text_without_secrets(message)[:_TAG_LENGTH])
        mlflow.end_run(RunStatus.to_string(RunStatus.FAILED))

    def _found(self, fingerprint: str, status: str) -> str | None:
        found = self.client.search_runs(
            [self.experiment.experiment_id],
            f"tags.`{PREFIX}fingerprint` = '{fingerprint}'{status}",
            max_results=1,
        )
        return found[0].info.run_id if found else None

    def tag(self, name: str, value: str) -> None:
        """Set a tag of the active run."""
        mlflow.set_tag(PREFIX + name, value)

    @staticmethod
    def is_compiled(run: Run) -> bool:
        """Whether a run holds or scored a compiled program."""
        return run.data.tags.get(PREFIX + "kind") == "compile" or PREFIX + "variant" in run.data.tags

    def config_values(self, run_id: str) -> dict[str, Any]:
        """The config of a run as plain data.

        Raises:
            UserError: there is no such run, or hoptimizer did not make it.
        """
        return stored_config(self._read(run_id, CONFIG), f"run {run_id}")

    def load_state(self, run_id: str) -> dict[str, Any]:
        """The state of a run's program."""
        return stored_state(self._read(run_id, STATE), f"run {run_id}")

    def get(self, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UserError: there is none.
        """
        try:
            return self.client.get_run(run_id)
        except MlflowException as error:
            raise self._unknown(run_id) from error

    def whole_id(self, start: str) -> str:
        """The id of the run whose id starts so, as tables show it.

        Raises:
            UserError: there is none, or more than one.
        """
        found = []
        if start.isalnum():
            experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
            found = self.client.search_runs(experiments, f"attributes.run_id LIKE '{start}%'", max_results=2)
        if len(found) > 1:
            raise UserError(f"run {start!r}: the ids of several runs start so; give more of it")
        if not found:
            raise self._unknown(start)
        return found[0].info.run_id

    def _unknown(self, run_id: str) -> UserError:
        return UserError(
            f"run {run_id!r}: not in {without_secrets(self.uri)}; `hop compare data=NAME` lists runs, "
            "tracking.uri=URI names another store"
        )

    def _read(self, run_id: str, path: str) -> str:
        run = self.get(run_id)
        source = f"run {run_id}"
        with tempfile.TemporaryDirectory() as folder:
            try:
                local = fetch_part(run.info.run_id, path, self.uri, Path(folder))
            except (MlflowException, OSError) as error:
                raise UserError(f"{source} has no {path}; give a run that `hop compile` made") from error
            if not local.is_file():
                raise UserError(f"{source}: {path}: expected a file; give a run that `hop compile` made")
            return read_stored(local, source)

    def predictions(self, run_id: str, split: str) -> Predictions | None:
        """What a run answered on a split, or ``None`` where it was not asked."""
        run = self.get(run_id)
        if f"{split}/f1" not in run.data.metrics:
            return None
        file = predictions_file(split, "after")
        text = self._read(run_id, file)
        try:
            table = pd.read_json(io.StringIO(text), orient="split")
            table[["id", "question"]]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UserError(f"run {run_id}: {file}: no table of predictions ({reason}); score it again") from error
        return Predictions(split, run.data.tags.get(PREFIX + "data_digest", ""), table)

    def metrics(self, run_id: str, split: str) -> dict[str, float]:
        """A run's scores on a split, after compiling where it compiled, those of its small models' steps, and what the
        compile has spent."""
        logged = self.get(run_id).data.metrics
        names = {name: name.removeprefix(f"{split}/") for name in logged if name.startswith(f"{split}/")}
        steps = {name: score for name, score in logged.items() if name.startswith("steps/")}
        spent = {name: logged[key] * by for key, (name, by) in _SPENT.items() if key in logged}
        return {name: logged[key] for key, name in names.items() if "/" not in name} | steps | spent

    def runs(self) -> list[Run]:
        """Finished runs of the experiment that compiled or scored a program, oldest first."""
        return list(
            self.client.search_runs(
                [self.experiment.experiment_id],
                " and ".join(f"tags.`{PREFIX}kind` != '{kind}'" for kind in _NO_VARIANTS) + _FINISHED,
                order_by=["attributes.start_time ASC"],
            )
        )
