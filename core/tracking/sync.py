"""Delivers the runs of the journal to their server."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import mlflow
from mlflow.entities import LoggedModelStatus, Metric, Param, Run, RunStatus, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.common.urls import without_secrets
from hoptimizer.genai.prompts import LINKED
from hoptimizer.genai.traces import TracedRun, copy_traces, delete_traces
from hoptimizer.tracking.compile_log import NUMBER
from hoptimizer.tracking.journal import ARTIFACTS, DELIVERED, JOURNAL, Journal, check_address, is_candidate
from hoptimizer.tracking.models import answers_as, copy_model, link_model, local_folder, model_of, models_of
from hoptimizer.tracking.naming import FINGERPRINT, FOLDED, KIND, PREFIX, STARTED_FROM
from hoptimizer.tracking.server import Refusals, Unreachable, is_remote, point_mlflow_at, store_errors, store_failure
from hoptimizer.tracking.settings import UnknownRun
from hoptimizer.tracking.tracker import UNFINISHED, Tracker

_ID = re.compile(r"\b[0-9a-f]{32}\b")
# Artifacts that may name runs.
_TEXTS = (".csv", ".json", ".md", ".yaml")
_MODEL = "m-"  # begins the ids of MLflow models
_FAILURE = PREFIX + "failure"
_FINISHED, _FAILED = RunStatus.to_string(RunStatus.FINISHED), RunStatus.to_string(RunStatus.FAILED)


@dataclass(frozen=True)
class DeliveredRun:
    """A run that left the journal.

    Attributes:
        run_id: on the server.
        journal_id: in the journal; the delivered run has it as its tag ``hop.journal``.
        kind: ``compile``, ``eval``, ``compare``, ``study`` or ``candidate``.
        name: the run's.
        tracking_uri: the server, without a name and a password.

    Example:
        >>> from hoptimizer import DeliveredRun
        >>> run = DeliveredRun("1f2e3d", "4c5b6a", "eval", "direct uncompiled", "http://mlflow.example.org:5000")
        >>> run.as_dict()["journal_id"]
        '4c5b6a'
    """

    run_id: str
    journal_id: str
    kind: str
    name: str
    tracking_uri: str

    def as_dict(self) -> dict[str, Any]:
        """The run in what ``hop sync --json`` prints."""
        return asdict(self)


def sync_runs(tracking_uri: str, report: Report = in_notebook) -> list[DeliveredRun]:
    """Deliver the runs that wait in the journal of an MLflow server, with all that they hold.

    Runs that are under way stay, and so do those nested in them. A run that was delivered leaves the journal. One whose
    delivery is interrupted is completed by the next call. What refers to a run of the journal refers to the delivered
    one afterwards. An unfinished run of the same work that the server has is completed, and the run of a study that it
    has is the one that gets the cells, and the tables where its own are not the later ones. A run that the server
    refuses stays in the journal, and the others are delivered.

    Args:
        tracking_uri: the server's; its journal is where runs are kept while it gives no answer.
        report: told about progress.

    Returns:
        the delivered runs, a parent before its children.

    Raises:
        ServiceError: the server gives no answer; what is not delivered stays in the journal.
        UserError: the server refuses a run, or another process delivers, or the address is not the whole one.

    Example:
        >>> from hoptimizer import sync_runs
        >>> sync_runs("http://127.0.0.1:9")  # nothing waits for it
        []
    """
    return list(deliveries(tracking_uri, report))


def deliveries(tracking_uri: str, report: Report) -> Iterator[DeliveredRun]:
    """As :func:`sync_runs`, each run as it is delivered."""
    journal, around = Journal(tracking_uri), mlflow.get_tracking_uri()
    try:
        if is_remote(tracking_uri) and journal.exists:
            with journal.alone():
                journal.open("Default").end_left()
                if waiting := journal.waiting():
                    yield from _Delivery(journal, tracking_uri).deliver(waiting, report)
        check_address(tracking_uri)
    except store_errors(Unreachable) as error:
        raise _stopped(journal, tracking_uri, error) from error
    finally:
        point_mlflow_at(around)


def _stopped(journal: Journal, uri: str, error: Exception) -> Exception:
    """What is said where not all was delivered."""
    failure = error if isinstance(error, Unreachable) else store_failure(uri, error)
    if failure is None:
        return error
    if isinstance(failure, Unreachable):
        return ServiceError(f"{failure.found}; {journal.rest}")
    return type(failure)(f"{failure}; {journal.rest}")


class _Delivery:
    """The way from a journal to its server.

    Args:
        journal: the journal.
        uri: the server's tracking URI.
    """

    def __init__(self, journal: Journal, uri: str) -> None:
        self._journal, self._source, self._uri = journal, journal.client, uri
        self._trackers: dict[str, Tracker] = {}  # by the experiment's id in the journal
        self._ids = journal.delivered()  # on the server, by those in the journal
        self._refusals = Refusals(uri)

    def deliver(self, waiting: list[Run], report: Report) -> Iterator[DeliveredRun]:
        """Deliver runs, a parent before its children.

        Each has its place on the server before the first one is filled, so that all of them can name one another.
        """
        with contextlib.ExitStack() as held:
            placed = self._placed(waiting, held)
            for number, run in enumerate(placed):
                report("delivering", number, len(placed), run.info.run_name)
                if not self._refusals.done(run.info.run_name, partial(self._hand_over, run)):
                    continue
                yield DeliveredRun(
                    run_id=self._ids[run.info.run_id],
                    journal_id=run.info.run_id,
                    kind=run.data.tags.get(KIND, ""),
                    name=run.info.run_name,
                    tracking_uri=without_secrets(self._uri),
                )
            report("delivering", len(placed), len(placed), "")
            if refused := self._refusals.error(self._journal.rest):
                raise refused

    def _placed(self, waiting: list[Run], held: contextlib.ExitStack) -> list[Run]:
        """The runs that have their places on the server now; what names one that has none waits with it."""
        placed: list[Run] = []
        without: set[str] = set()
        for run in waiting:
            named = set(_ID.findall(" ".join(run.data.tags.values())))
            if not named & without and self._refusals.done(run.info.run_name, partial(self._place, run, held)):
                placed.append(run)
            else:
                without.add(run.info.run_id)
        return placed

    def _hand_over(self, run: Run) -> None:
        """Bring a run to its place."""
        if DELIVERED not in run.data.tags:  # else an earlier delivery ended before the run left the journal
            target = self._tracker(run).get(self._ids[run.info.run_id])
            if run.data.tags.get(KIND) != "study" or not _is_later(target, run):
                self._fill(run, target)
        self._leave(run)

    def _tracker(self, run: Run) -> Tracker:
        """The run's experiment on the server."""
        experiment = run.info.experiment_id
        if experiment not in self._trackers:
            source = self._source.get_experiment(experiment)
            tracker = Tracker(self._uri, source.name, source.tags.get(ARTIFACTS))
            tracker.end_left()
            self._trackers[experiment] = tracker
        return self._trackers[experiment]

    def _place(self, run: Run, held: contextlib.ExitStack) -> None:
        """Hold the run on the server that is to be filled: one that is there already, or a new one."""
        tracker = self._tracker(run)
        experiment = tracker.experiment.experiment_id
        for words in self._same(run):
            runs = tracker.client.search_runs([experiment], words)
            for found in [one for one in runs if JOURNAL in one.data.tags or not tracker.is_elsewhere(one)][:1]:
                with contextlib.suppress(UserError):  # another process is at work on it, and it stays that one's
                    held.enter_context(tracker.held.hold(found.info.run_id))
                    self._ids[run.info.run_id] = found.info.run_id
                    return
        made = tracker.client.create_run(experiment, run.info.start_time, self._tags(run), run.info.run_name)
        held.enter_context(tracker.held.hold(made.info.run_id))
        self._ids[run.info.run_id] = made.info.run_id

    def _same(self, run: Run) -> Iterator[str]:
        """The searches for what the server may have of a run: a part of it that was delivered, or what the work had
        come to there before the server failed."""
        tags = run.data.tags
        yield f"tags.`{JOURNAL}` = '{run.info.run_id}'"
        if fingerprint := tags.get(FINGERPRINT):
            # The cells of a study, and its tables, are all in one run, however often it is continued.
            yield f"tags.`{FINGERPRINT}` = '{fingerprint}'" + UNFINISHED * (tags[KIND] != "study")
        if is_candidate(run):
            parent = self._ids.get(tags[MLFLOW_PARENT_RUN_ID], tags[MLFLOW_PARENT_RUN_ID])
            yield f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{parent}' and tags.`{NUMBER}` = '{tags[NUMBER]}'"

    def _tags(self, run: Run) -> dict[str, str]:
        tags = {name: self._mapped(value) for name, value in run.data.tags.items() if name != LINKED}
        return tags | {JOURNAL: run.info.run_id}

    def _mapped(self, text: str) -> str:
        """A text that names delivered runs and models by their ids on the server."""
        return _ID.sub(lambda found: self._ids.get(found[0], found[0]), text)

    def _fill(self, run: Run, target: Run) -> None:
        """Give a run on the server what it lacks of one in the journal, and end it as that one ended."""
        client, run_id = self._tracker(run).client, target.info.run_id
        params = [
            Param(name, self._mapped(value))
            for name, value in run.data.params.items()
            if name not in target.data.params
        ]
        client.log_batch(run_id, self._metrics(run, target), params, [RunTag(*tag) for tag in self._tags(run).items()])
        if _FAILURE in target.data.tags and _FAILURE not in run.data.tags:
            client.delete_tag(run_id, _FAILURE)
        known = {one.dataset.digest for one in target.inputs.dataset_inputs}
        client.log_inputs(run_id, [one for one in run.inputs.dataset_inputs if one.dataset.digest not in known])
        folder = local_folder(run.info.artifact_uri)
        if folder.is_dir():
            client.log_artifacts(run_id, str(folder))
            for file in folder.rglob("*"):
                if (
                    file.suffix in _TEXTS
                    and (mapped := self._mapped(text := file.read_text("utf-8", "replace"))) != text
                ):
                    client.log_text(run_id, mapped, file.relative_to(folder).as_posix())
        # Any other one lacks files: its compile ended while it was logged.
        for model in [one for one in models_of(self._source, run) if one.status == LoggedModelStatus.READY]:
            copy = copy_model(self._source, model, client, target)
            self._ids[model.model_id.removeprefix(_MODEL)] = copy.removeprefix(_MODEL)
        of = TracedRun(self._uri, target.info.experiment_id, run_id, "", self._link_to_variant(run, target))
        copy_traces(self._journal.uri, run.info.run_id, of, self._mapped)
        client.set_terminated(run_id, run.info.status, run.info.end_time)

    def _link_to_variant(self, run: Run, target: Run) -> str | None:
        """Link a run to the model that it scored, as it is on the server, and give that model's id."""
        tracker, run_id = self._tracker(run), target.info.run_id
        if (named := run.data.tags.get(STARTED_FROM)) is None:
            return None
        with contextlib.suppress(UnknownRun):  # it may have been deleted there
            model = model_of(tracker.client, tracker.get(self._mapped(named)))
            if model and answers_as(model, run.data.params):
                model_id = link_model(tracker.client, run_id, model)
                names = [name for name in run.data.metrics if not name.startswith(FOLDED)]
                heads = [self._source.get_metric_history(run.info.run_id, name)[-1] for name in names]
                linked = [Metric(m.key, m.value, m.timestamp, m.step, model_id, run_id=run_id) for m in heads]
                tracker.client.log_batch(run_id, linked)
                return model_id
        return None

    def _metrics(self, run: Run, target: Run) -> list[Metric]:
        """The whole history of a run's metrics, without what the target has."""
        client, run_id = self._tracker(run).client, target.info.run_id
        metrics = []
        for name in run.data.metrics:
            has = client.get_metric_history(run_id, name) if name in target.data.metrics else []
            known = {_point(metric) for metric in has}
            history = self._source.get_metric_history(run.info.run_id, name)
            metrics += [metric for metric in history if _point(metric) not in known]
        return metrics

    def _leave(self, run: Run) -> None:
        """Take a delivered run out of the journal."""
        self._source.set_tag(run.info.run_id, DELIVERED, self._ids[run.info.run_id])
        for model in models_of(self._source, run):
            # Its files first: of a model that is deleted MLflow does not say where they are.
            shutil.rmtree(local_folder(model.artifact_location).parent, ignore_errors=True)
            self._source.delete_logged_model(model.model_id)
        delete_traces(self._journal.uri, run.info.experiment_id, run.info.run_id)
        self._source.delete_run(run.info.run_id)
        shutil.rmtree(local_folder(run.info.artifact_uri).parent, ignore_errors=True)


def _is_later(target: Run, run: Run) -> bool:
    """Whether the server has a study's later tables: it finished there alone, or as in the journal, but later. One that
    was killed came to none."""
    there, here = target.info, run.info
    if there.status not in (_FINISHED, _FAILED):
        return False
    return (there.status == _FINISHED, there.end_time) > (here.status == _FINISHED, here.end_time)


def _point(metric: Metric) -> tuple[int, int, str]:
    return metric.timestamp, metric.step, str(metric.value)
