"""Which runs a living process of this machine is at work on, and which a process left that was killed."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.common.urls import without_secrets

SQLITE = "sqlite:///"
"""What the tracking URI of a SQLite store begins with."""

_RUN = ".run"


def absolute(uri: str) -> str:
    """A tracking URI that means the same from every folder.

    Example:
        >>> from hoptimizer.tracking.holding import absolute
        >>> absolute("sqlite:////srv/mlflow.db"), absolute("http://mlflow:5000")
        ('sqlite:////srv/mlflow.db', 'http://mlflow:5000')
        >>> absolute("sqlite:///mlflow.db") == f"sqlite:///{Path.cwd()}/mlflow.db"
        True
    """
    if uri.startswith(SQLITE):
        return f"{SQLITE}{Path(uri.removeprefix(SQLITE)).absolute()}"
    return uri if ":" in uri or not uri else str(Path(uri).absolute())


class HeldRuns:
    """The runs of one store that processes of this machine are at work on.

    Each is held by a lock on a file, which the system releases when its process ends in whatever way.

    Args:
        uri: the store's tracking URI.
    """

    def __init__(self, uri: str) -> None:
        self._folder = home() / "runs" / hashlib.sha256(without_secrets(absolute(uri)).encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Wait until no other process is opening the store: two that make its tables at once hinder each other."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / "store.lock"):
            yield

    @contextlib.contextmanager
    def hold(self, run_id: str) -> Iterator[None]:
        """Hold a run. Where an exception ends this, the run may not have ended: it is one of those that were left.

        Raises:
            UserError: another process holds it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{run_id}{_RUN}"
        lock = FileLock(file, blocking=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(f"run {run_id} is under way in another process; wait for it, or stop it there") from error
        try:
            yield
            file.unlink(missing_ok=True)
        finally:
            lock.release()

    def knows(self, run_id: str) -> bool:
        """Whether a process of this machine is at work on a run, or left it."""
        return (self._folder / f"{run_id}{_RUN}").exists()

    def left(self) -> Iterator[str]:
        """The ids of runs that ended with an exception, or whose process ended before they did.

        Each is forgotten once the loop goes on.
        """
        for file in sorted(self._folder.glob(f"*{_RUN}")):
            lock = FileLock(file, blocking=False)
            with contextlib.suppress(Timeout), lock:
                yield file.stem
                file.unlink(missing_ok=True)
