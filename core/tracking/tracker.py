"""Every variant and every score is an MLflow run."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import version
from uuid import uuid4

import mlflow
from mlflow.entities import Experiment, Run, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from hoptimizer.common.disk import disk_failure
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.urls import line_without_secrets, text_without_secrets, without_secrets
from hoptimizer.tracking.databases import keep_sessions_whole, make_store
from hoptimizer.tracking.holding import HeldRuns, located
from hoptimizer.tracking.naming import FINGERPRINT, KIND, PREDICTIONS, PREFIX, VERSION
from hoptimizer.tracking.reading import FINISHED, StoredRuns
from hoptimizer.tracking.server import (
    Unreachable,
    answering,
    check_server,
    impatient,
    outage,
    point_mlflow_at,
    store_errors,
    store_failure,
)

_FAILURE = PREFIX + "failure"
_TAG_LENGTH = 5000  # what every MLflow store takes
_OWN_FOLDER = re.compile("[0-9a-f]{32}")  # of an experiment's artifacts, where a place for these was given
_RUNNING = "attributes.status = 'RUNNING'"
UNFINISHED = " and attributes.status != 'FINISHED'"
"""The condition of a search for runs that did not come to their end."""


class Tracker(StoredRuns):
    """An MLflow store and one experiment in it.

    Args:
        uri: any MLflow tracking URI.
        experiment: the name of the experiment that runs are made and looked for in; it is created with its first run.
        artifacts: where a new experiment keeps its artifacts, in a folder of its own; by default where the store does.

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

    def __init__(self, uri: str, experiment: str, artifacts: str | None = None) -> None:
        # What is traced is in the store once the work is done, its assessments included.
        os.environ.setdefault("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
        # Its bars would run through ours.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        # A server is asked again for half a minute; MLflow's own number keeps silent for four.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
        # What it logs with a traceback it raises, too.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        check_server(uri)
        self.held = HeldRuns(uri)
        place = located(uri)
        with self._opening(uri):
            make_store(uri)
            client = mlflow.MlflowClient()
            keep_sessions_whole(place)
            client.get_experiment_by_name(experiment)  # it may refuse
        super().__init__(place, client, experiment)
        self._artifacts = artifacts

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, made where there is none: what only reads makes none.

        Raises:
            UserError: the store refuses it, as one that was deleted.
            ServiceError: its server is out of reach, or the disk is full.
        """
        with self._opening(self.uri):
            if self._artifacts and self.client.get_experiment_by_name(self.experiment_name) is None:
                self.client.create_experiment(self.experiment_name, f"{self._artifacts.rstrip('/')}/{uuid4().hex}")
            return mlflow.set_experiment(self.experiment_name)

    @property
    def artifacts(self) -> str | None:
        """Where experiments beside this one keep their artifacts: in the place that was given when it was made."""
        with answering(self.uri):
            found = self.client.get_experiment_by_name(self.experiment_name)
        place, _, folder = found.artifact_location.rpartition("/") if found else ("", "", "")
        return place if _OWN_FOLDER.fullmatch(folder) else self._artifacts

    @contextlib.contextmanager
    def _opening(self, uri: str) -> Iterator[None]:
        point_mlflow_at(located(uri))
        try:
            with self.held.opening():
                yield
        except UserError:
            raise
        except store_errors(OSError, ImportError, ValueError) as error:  # no driver; a port that is no number
            if unreachable := outage(uri, error):
                raise unreachable from error
            reason, full = line_without_secrets(error), disk_failure(error)
            kind = ServiceError if full else UserError
            raise kind(f"tracking.uri: can't open {without_secrets(uri)!r}: {full or reason}") from error

    @contextlib.contextmanager
    def run(self, kind: str, name: str, fingerprint: str | None = None, *, reopen: bool = False) -> Iterator[Run]:
        """A run that ends as finished, or as failed where an exception leaves it, or as killed on Ctrl-C.

        Within another run it is nested in that one. Runs of processes that were killed end as killed now.

        Args:
            kind: ``compile``, ``eval``, ``compare`` or ``study``.
            name: shown in MLflow.
            fingerprint: identifies the work; an unfinished run with the same one is continued, unless it is under way
                on another machine, whose work stays its own.
            reopen: continue a finished run, too.

        Raises:
            UserError: another process is at work on the run, or the store's server refuses it.
            Unreachable: the store's server gives no answer.
            ServiceError: the store failed.
        """
        try:
            # Work on another store may have ended meanwhile.
            point_mlflow_at(self.uri)
            mlflow.set_experiment(experiment_id=self.experiment.experiment_id)
            self.end_left()
            yield from self._run(kind, name, fingerprint, reopen)
        except store_errors() as error:
            failure = store_failure(self.uri, error)
            if failure is None:
                raise
            raise failure from error

    def _run(self, kind: str, name: str, fingerprint: str | None, reopen: bool) -> Iterator[Run]:
        unfinished = self._found(f"= '{fingerprint}'", "" if reopen else UNFINISHED) if fingerprint else None
        tags = {KIND: kind, VERSION: version("hoptimizer")}
        if fingerprint:
            tags[FINGERPRINT] = fingerprint
        new_name = None if unfinished else name
        with contextlib.ExitStack() as held:
            if unfinished:
                held.enter_context(self.held.hold(unfinished))
            run = mlflow.start_run(run_id=unfinished, run_name=new_name, nested=True, tags=tags)
            if not unfinished:
                held.enter_context(self.held.hold(run.info.run_id))
            try:
                if _FAILURE in run.data.tags:
                    self.client.delete_tag(run.info.run_id, _FAILURE)
                if unfinished:
                    # MLflow appends to a table that is there; the run that is continued writes its own anew.
                    get_artifact_repository(run.info.artifact_uri).delete_artifacts(PREDICTIONS)
                yield run
            except BaseException as error:
                self._end_after(error, run)
                raise
            if _is_active(run):
                mlflow.end_run()

    def _end_after(self, error: BaseException, run: Run) -> None:
        """End a run that an exception leaves. What rises is that exception, whatever the store says now: a run that
        could not be ended is ended with the next command."""
        gone = isinstance(error, (KeyboardInterrupt, Unreachable, *store_errors()))
        with contextlib.suppress(*store_errors()):
            if isinstance(error, UserError) and not gone and _is_active(run):
                self.end_failed(str(error))
        with contextlib.suppress(*store_errors()), impatient():
            if _is_active(run):  # MLflow takes it for the active one no more, whatever becomes of the call
                killed = isinstance(error, KeyboardInterrupt)
                mlflow.end_run(RunStatus.to_string(RunStatus.KILLED if killed else RunStatus.FAILED))

    def end_left(self) -> None:
        """End the runs that processes have left, killed or without an answer from the server, and those nested in them.

        Raises:
            MlflowException: the server gives no answer.
        """
        for run_id in self.held.left():
            children = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' and {_RUNNING}"
            try:
                run = self.client.get_run(run_id)
                nested = self.client.search_runs([run.info.experiment_id], children)
                for one in [run, *nested]:
                    if one.info.status == RunStatus.to_string(RunStatus.RUNNING):
                        self.client.set_terminated(one.info.run_id, RunStatus.to_string(RunStatus.KILLED))
            except MlflowException as error:  # it may have been deleted
                if outage(self.uri, error):
                    raise

    def end_running(self, fingerprint: str) -> None:
        """End the runs of a piece of work that are under way, wherever they seem to be, as killed.

        Args:
            fingerprint: identifies the work, which nobody is at any more.
        """
        with answering(self.uri):
            for run in self.client.search_runs(
                [self.experiment.experiment_id], f"tags.`{FINGERPRINT}` = '{fingerprint}' and {_RUNNING}"
            ):
                self.client.set_terminated(run.info.run_id, RunStatus.to_string(RunStatus.KILLED))

    def finished(self, ending: str) -> str | None:
        """The latest finished run of a piece of work, or ``None`` where it has none.

        Args:
            ending: how its fingerprint ends.
        """
        return self._found(f"LIKE '%{ending}'", FINISHED)

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

    def _found(self, fits: str, status: str) -> str | None:
        with answering(self.uri):
            found = self.client.search_runs([self.experiment.experiment_id], f"tags.`{FINGERPRINT}` {fits}{status}")
        return next((run.info.run_id for run in found if not self.is_elsewhere(run)), None)

    def is_elsewhere(self, run: Run) -> bool:
        """Whether a run is under way on another machine, or under another home: those left here have ended."""
        return run.info.status == RunStatus.to_string(RunStatus.RUNNING) and not self.held.knows(run.info.run_id)


def _is_active(run: Run) -> bool:
    """Whether a run is the active one: it may have been ended before its time."""
    active = mlflow.active_run()
    return active is not None and active.info.run_id == run.info.run_id
