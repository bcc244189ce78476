"""Which runs a living process of this machine is at work on, and which a process left that was killed."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from filelock import FileLock, Timeout

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home

SQLITE = "sqlite:///"
"""What the tracking URI of a SQLite store begins with."""

_RUN = ".run"
# Seconds. Another process may be looking after what was left, and asks the store about this run.
_MOMENT = 3.0
# Drivers of databases take a password as it is, with "/" and "#" in it.
_LOGIN = re.compile(r"^(https?://)[^/?#]*@|^((?!https?:)[\w+.-]+://)[^:/@]*(?::[^@]*)?@")
_OF_A_LOGIN = re.compile("user|username|uid|password|passwd|pwd", re.IGNORECASE)
_ODBC = "odbc_connect"
# A value in braces may hold what else would end it.
_ODBC_LOGIN = re.compile(r"(?:(?<=;)|^)\s*(?:uid|pwd)\s*=\s*(?:\{(?:[^}]|\}\})*\}|[^;]*);?", re.IGNORECASE)


def located(uri: str) -> str:
    """The tracking URI that names a store from any folder: MLflow opens the file of a relative one once in a process,
    and stays with it where another folder is worked in later.

    Example:
        >>> from hoptimizer.tracking.holding import located
        >>> located("sqlite:///mlflow.db") == f"sqlite:///{Path.cwd()}/mlflow.db"
        True
        >>> located("http://mlflow:5000"), located("sqlite:///:memory:"), located("sqlite:///file:a.db?uri=true")
        ('http://mlflow:5000', 'sqlite:///:memory:', 'sqlite:///file:a.db?uri=true')
    """
    file = uri.removeprefix(SQLITE)
    is_path = file not in ("", uri) and ":memory:" not in file and not file.startswith("file:")
    return f"{SQLITE}{Path(file).absolute()}" if is_path else uri


def identity(uri: str) -> str:
    """What tells a store from all others, in whatever folder and for whatever user: its whole tracking URI without user
    name, password and a slash at the end. It may hold other secrets, and is to be hashed, never shown.

    Example:
        >>> from hoptimizer.tracking.holding import identity
        >>> identity("http://me:word@mlflow:5000/"), identity("postgresql://db/mlflow?user=me&sslmode=require")
        ('http://mlflow:5000', 'postgresql://db/mlflow?sslmode=require')
        >>> identity("sqlite:///mlflow.db") == f"sqlite:///{Path.cwd()}/mlflow.db"
        True
    """
    if uri.startswith(SQLITE):
        return located(uri)
    if ":" not in uri and uri:
        return str(Path(uri).absolute())
    place, _, query = _LOGIN.sub(r"\1\2", uri).partition("?")
    kept = [
        (name, _ODBC_LOGIN.sub("", value) if name.lower() == _ODBC else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
        if not _OF_A_LOGIN.fullmatch(name)
    ]
    return place.rstrip("/") + (f"?{urlencode(kept)}" if kept else "")


class HeldRuns:
    """The runs of one store that processes of this machine are at work on.

    Each is held by a lock on a file, which the system releases when its process ends in whatever way.

    Args:
        uri: the store's tracking URI.
    """

    def __init__(self, uri: str) -> None:
        self._folder = home() / "runs" / hashlib.sha256(identity(uri).encode()).hexdigest()[:16]

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
        lock = FileLock(file, timeout=_MOMENT)
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
