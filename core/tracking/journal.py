"""The local store that takes the runs of an MLflow server which gives no answer, until ``hop sync`` delivers them."""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeVar

import mlflow
from filelock import FileLock, Timeout
from mlflow.entities import Run, RunStatus, ViewType
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home, write_whole
from hoptimizer.common.urls import without_secrets
from hoptimizer.config import Config
from hoptimizer.tracking.holding import SQLITE, identity
from hoptimizer.tracking.naming import CANDIDATE, FINGERPRINT, KIND, PREFIX
from hoptimizer.tracking.reading import oldest_first
from hoptimizer.tracking.server import Unreachable, is_remote, point_mlflow_at, store_errors
from hoptimizer.tracking.settings import UnknownRun
from hoptimizer.tracking.tracker import Tracker

JOURNAL = PREFIX + "journal"
"""The tag of a delivered run that has its id in the journal."""
DELIVERED = PREFIX + "delivered"
"""The tag of a run that left the journal which has its id on the server."""
ARTIFACTS = PREFIX + "artifacts"
"""The tag of an experiment of the journal that says where the server's one keeps its artifacts."""

_FOLDER, _FILE, _SERVER = "journal", "mlflow.db", "server.txt"
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Journal:
    """The journal of one server: an ordinary MLflow store in hoptimizer's home, a SQLite file with its artifacts beside
    it.

    Args:
        server: the server's tracking URI; a name and a password in it make no other journal.
        folder: where it lies; by default where the server's journal is.

    Attributes:
        uri: the journal's own tracking URI.
    """

    def __init__(self, server: str, folder: Path | None = None) -> None:
        self._server = without_secrets(server)
        place = home().absolute() / _FOLDER / hashlib.sha256(identity(server).encode()).hexdigest()[:16]
        self.folder = folder or place
        self.uri = f"{SQLITE}{self.folder / _FILE}"

    @property
    def exists(self) -> bool:
        """Whether there ever was a run in it."""
        return (self.folder / _FILE).exists()

    @property
    def client(self) -> mlflow.MlflowClient:
        """The client of its store, which has to exist."""
        return mlflow.MlflowClient(tracking_uri=self.uri)

    def open(self, experiment: str, artifacts: str | None = None) -> Tracker:
        """Its store, made where there is none, with an experiment.

        Args:
            experiment: the experiment's name.
            artifacts: where the server's experiment keeps its artifacts, if that is said.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "open.lock"):  # many processes may lose their server at once
            write_whole(self.folder / _SERVER, self._server)
        tracker = Tracker(self.uri, experiment, artifacts=(self.folder / "artifacts").as_uri())
        if artifacts:
            tracker.client.set_experiment_tag(tracker.experiment.experiment_id, ARTIFACTS, without_secrets(artifacts))
        return tracker

    def has(self, run_id: str) -> bool:
        """Whether a run waits in it."""
        with contextlib.suppress(*store_errors()):  # a journal that can't be read has nothing; ``hop sync`` says why
            return run_id.isalnum() and self.exists and any(self._runs(f"attributes.run_id = '{run_id}'"))
        return False

    def is_open(self) -> bool:
        """Whether the active run is one of it."""
        return mlflow.active_run() is not None and mlflow.get_tracking_uri() == self.uri

    def waiting(self) -> list[Run]:
        """The runs that can be delivered: those that ended, and whose parents did; a parent before its children."""
        if not self.exists:
            return []
        runs = {run.info.run_id: run for run in self._runs()}
        ordered: dict[str, Run] = {}
        for run_id in TopologicalSorter({id: {_parent(run)} & runs.keys() for id, run in runs.items()}).static_order():
            run, parent = runs[run_id], _parent(runs[run_id])
            ended = run.info.status != RunStatus.to_string(RunStatus.RUNNING)
            if ended and (parent not in runs or parent in ordered):
                ordered[run_id] = run
        return list(ordered.values())

    @property
    def count(self) -> int:
        """How many runs wait, those of candidates aside."""
        return sum(not is_candidate(run) for run in self.waiting())

    @property
    def rest(self) -> str:
        """What is said of the runs that stay in it."""
        return f"runs that wait in the journal: {self.count}; tracking.uri={self.uri} opens it"

    def finished(self, start: str) -> list[Run]:
        """The finished runs that wait, of the pieces of work whose fingerprints start so."""
        around = mlflow.get_tracking_uri()
        try:
            # A journal that can't be opened has nothing; ``hop sync`` says why.
            with contextlib.suppress(UserError, *store_errors()):
                if self.exists:
                    Tracker(self.uri, "Default").end_left()
                    finished = RunStatus.to_string(RunStatus.FINISHED)
                    found = [run for run in self.waiting() if run.info.status == finished]
                    return [run for run in found if run.data.tags.get(FINGERPRINT, "").startswith(start)]
        finally:
            point_mlflow_at(around)
        return []

    def delivered(self) -> dict[str, str]:
        """The ids on the server of the runs that left the journal, by their ids in it."""
        gone = self._runs(view=ViewType.DELETED_ONLY)
        return {run.info.run_id: run.data.tags[DELIVERED] for run in gone if DELIVERED in run.data.tags}

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Deliver alone.

        Raises:
            UserError: another process delivers its runs.
        """
        try:
            with FileLock(self.folder / "sync.lock", blocking=False):
                yield
        except Timeout as error:
            raise UserError("another process delivers the journal's runs; wait for it, or stop it there") from error

    def _runs(self, words: str = "", view: int = ViewType.ACTIVE_ONLY) -> Iterator[Run]:
        experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        return oldest_first(self.client, experiments, words, view)


def journals() -> list[str]:
    """The servers of which there is a journal on this machine, without names and passwords."""
    return list(dict.fromkeys(file.read_text() for file in _shown()))


def check_address(server: str) -> None:
    """Make sure that no run waits for a server whose address is shown as this one, and holds more.

    Args:
        server: a tracking URI.

    Raises:
        UserError: one does; the whole address has to be given.
    """
    for file in _shown():
        other = Journal(server, file.parent)
        if file.read_text() == server and other.folder != Journal(server).folder and other.waiting():
            raise UserError(
                f"runs wait in the journal for {server}, whose address holds secrets that the journal does not keep; "
                "`hop sync tracking.uri=URI` with the whole address delivers them"
            )


def _shown() -> list[Path]:
    """The files that say, each in the folder of a journal, whose it is."""
    return sorted((home().absolute() / _FOLDER).glob(f"*/{_SERVER}"))


def store_of(uri: str, run_id: str) -> str:
    """The tracking URI of the store that has a run: the journal's, where it waits there for its server.

    Args:
        uri: the tracking URI that was asked for.
        run_id: the run.
    """
    journal = Journal(uri)
    return journal.uri if is_remote(uri) and journal.has(run_id) else uri


def find_run(uri: str, start: str) -> tuple[Tracker, str]:
    """The store that has the run whose id starts so, and the whole id.

    Args:
        uri: the tracking URI; what waits in its journal is found, too.
        start: of the id.

    Raises:
        UserError: there is none, or more than one.
    """
    journal = Journal(uri)
    if is_remote(uri) and journal.exists:
        with contextlib.suppress(UnknownRun):
            tracker = journal.open("Default")
            return tracker, tracker.whole_id(start)
    tracker = Tracker(uri, "Default")
    return tracker, tracker.whole_id(start)


def tell_waiting(uri: str) -> None:
    """Say how many runs wait for a server that answers, if any do."""
    if not is_remote(uri):
        return
    with contextlib.suppress(*store_errors()):  # the journal's, which is no reason to stop
        if count := Journal(uri).count:
            many, them = ("1 run waits", "it") if count == 1 else (f"{count} runs wait", "them")
            _log.warning("%s in the journal: `hop sync` delivers %s", many, them)


def is_candidate(run: Run) -> bool:
    """Whether a run is that of a compile's candidate, of which nobody counts the runs."""
    return bool(run.data.tags.get(KIND) == CANDIDATE)


def keep_run(config: Config, work: Callable[[Tracker], T], source: str | None = None) -> T:
    """Do work in the store that a config names, or in its journal where that is a server which gives no answer.

    Work that starts from a run of the journal, or within one, is kept there as well.

    Args:
        config: names the store and the experiment.
        work: makes its run in the store that it is given; it is called again with the journal where the server fails in
            the middle, and what it has found out by then it had better remember.
        source: the run that the work starts from.

    Returns:
        what the work returns.

    Raises:
        Unreachable: the server gives no answer, and it alone has the run that the work starts from.
    """
    uri, journal = config.tracking.uri, Journal(config.tracking.uri)
    if not is_remote(uri):
        return work(_opened(config))
    lost, around = None, mlflow.get_tracking_uri()
    if not journal.is_open() and not (source and journal.has(source)):
        try:
            tracker = _opened(config)
            if mlflow.active_run() is None:
                tell_waiting(uri)
            return work(tracker)
        except Unreachable as error:
            lost = error
        _log.warning("%s: the run is kept in the journal; `hop sync` delivers it", lost.found)
    try:
        return work(journal.open(config.experiment, config.tracking.artifacts))
    except UnknownRun:
        if lost is None:
            raise
        raise lost from None
    finally:
        # What the run around it, or else the caller, goes on with.
        point_mlflow_at(around if mlflow.active_run() else uri)


def _opened(config: Config) -> Tracker:
    """The store that a config names.

    Raises:
        UserError: the experiment keeps its artifacts elsewhere than the config says.
    """
    tracker = Tracker(config.tracking.uri, config.experiment, wanted := config.tracking.artifacts)
    place = tracker.experiment.artifact_location
    if wanted and not place.startswith(f"{wanted.rstrip('/')}/"):
        raise UserError(
            f"tracking.artifacts: the experiment {config.experiment!r} keeps its artifacts in "
            f"{without_secrets(place)}, not in {without_secrets(wanted)}; drop the option, or give tracking.experiment "
            "another name"
        )
    return tracker


def _parent(run: Run) -> str | None:
    return run.data.tags.get(MLFLOW_PARENT_RUN_ID)
