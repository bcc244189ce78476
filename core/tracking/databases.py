"""Databases that keep runs: making SQLite's file, asking whether a server answers, waiting for one that restarts."""

import contextlib
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy
import tenacity
from mlflow import MlflowClient
from mlflow.tracking import _get_store
from sqlalchemy import event
from sqlalchemy.engine import Dialect, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from hoptimizer.common.concurrency import whole
from hoptimizer.common.errors import UserError
from hoptimizer.common.urls import line_without_secrets, without_secrets
from hoptimizer.tracking.holding import SQLITE

_KINDS = ("postgresql", "mysql", "mssql")
_CONNECT_SECONDS = 4
_PATIENCE = 30.0
"""Seconds for which a database that was there is waited for."""
_PAUSES = tenacity.wait_random_exponential(multiplier=0.2, max=3)
# What drivers say of a database that is away or on its way: another one says that it refuses.
_AWAY = re.compile(
    r"connection refused|starting up|shutting down|terminating connection|server closed the connection|timeout"
    r"|timed out|no route to host|could not translate host|name or service not known|failed to resolve"
    r"|connection (is|was|has been)? ?(closed|lost|reset)|can't connect|gone away|lost connection|recovery mode"
    r"|too many clients|remaining connection slots",
    re.IGNORECASE,
)
_log = logging.getLogger(__name__)
_patient: set[tuple[str, str, str]] = set()  # host, port and name of the databases that are waited for
_whole: WeakSet[Any] = WeakSet()  # MLflow's stores whose sessions come to their end


def make_store(uri: str) -> None:
    """Make the file of a SQLite store where there is none; any other store is left alone.

    MLflow makes its tables in a hundred steps, and can't open a store that was left between two of them, by a full disk
    or a kill. So they are made in a folder beside it, and the whole file is moved to its place at the end.

    Args:
        uri: the store's tracking URI.

    Raises:
        OSError: or what MLflow raises, where the file can't be made.
    """
    file = Path(uri.removeprefix(SQLITE)).absolute()
    if not uri.startswith(SQLITE) or "?" in uri or ":memory:" in uri or file.exists():
        return
    prefix = f".{file.name}.making-"
    for left in file.parent.glob(f"{prefix}*"):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    # The name is new each time: MLflow keeps its connections to a store that it could not make.
    with tempfile.TemporaryDirectory(prefix=prefix, dir=file.parent) as folder:
        draft = Path(folder) / file.name
        MlflowClient(tracking_uri=f"{SQLITE}{draft}").search_experiments(max_results=1)
        draft.replace(file)


def keep_sessions_whole(uri: str) -> None:
    """Let each session of MLflow with a store's database come to its end before Ctrl-C rises.

    Broken off within a commit, SQLAlchemy raises an error of its own, and may keep a SQLite file locked for as long as
    the process lives, such as a notebook's kernel.

    Args:
        uri: the tracking URI; one of another kind is left alone.
    """
    store = _get_store(uri)
    sessions = getattr(store, "ManagedSessionMaker", None)
    if sessions is None or store in _whole:
        return

    @contextlib.contextmanager
    def whole_session(*args: Any, **words: Any) -> Iterator[Any]:  # noqa: ANN401 - MLflow's own arguments
        with whole(), sessions(*args, **words) as session:
            yield session

    store.ManagedSessionMaker = whole_session
    _whole.add(store)


def is_database(uri: str) -> bool:
    """Whether a tracking URI is that of a database's server.

    Example:
        >>> from hoptimizer.tracking.databases import is_database
        >>> is_database("postgresql://db/mlflow"), is_database("sqlite:///mlflow.db")
        (True, False)
    """
    scheme, found, _ = uri.partition("://")
    return bool(found) and scheme.partition("+")[0] in _KINDS


def absence(chain: Sequence[BaseException]) -> str | None:
    """Why a database gives no answer, where an error of it says so; ``None`` for any other error.

    Args:
        chain: the error, and what it rose from.
    """
    for error in chain:
        if isinstance(error, DBAPIError) and (error.connection_invalidated or _AWAY.search(str(error.orig))):
            return _reason(error)
    return None


def check_database(uri: str) -> str | None:
    """Connect to a database once, before MLflow tries it for a hundred seconds in silence.

    Args:
        uri: the tracking URI.

    Returns:
        why it gives no answer, or ``None`` where it does.

    Raises:
        UserError: it refuses, its driver is not installed, or the URI is none.
    """
    shown = without_secrets(uri)
    try:
        url = make_url(uri)
        kind = url.get_backend_name()
        words = {} if kind == "mssql" else {"connect_timeout": _CONNECT_SECONDS}
        engine = sqlalchemy.create_engine(url, poolclass=NullPool, connect_args=words)
    except (ImportError, NoSuchModuleError) as error:
        extra = "; PostgreSQL's comes with pip install 'hoptimizer[postgres]'" if "postgresql" in uri else ""
        raise UserError(f"tracking.uri: {shown} needs a driver ({line_without_secrets(error)}){extra}") from error
    except (ArgumentError, ValueError) as error:
        raise UserError(f"tracking.uri: {shown} is no URL of a database ({line_without_secrets(error)})") from error
    try:
        engine.connect().close()
    except DBAPIError as error:
        if reason := absence([error]):
            return reason
        raise UserError(f"tracking.uri: {shown} refuses: {_reason(error)}") from error
    finally:
        engine.dispose()
    return None


def wait_for(uri: str) -> None:
    """From now on, wait for half a minute where a new connection to a database can't be made, as when it restarts.

    Args:
        uri: the tracking URI; one that is no database's is left alone.
    """
    if is_database(uri):
        _patient.add(_address(make_url(uri).translate_connect_args()))


@contextlib.contextmanager
def hasty() -> Iterator[None]:
    """Within it, no database is waited for."""
    waited = set(_patient)
    _patient.clear()
    try:
        yield
    finally:
        _patient.update(waited)


@event.listens_for(Engine, "do_connect")
def _connect(dialect: Dialect, _record: object, args: Sequence[Any], words: dict[str, Any]) -> Any:  # noqa: ANN401
    """SQLAlchemy's way to a new connection, for the databases that are waited for."""
    address = _address(words)
    if address not in _patient:
        return None  # SQLAlchemy connects itself
    error_class: type[Exception] = dialect.loaded_dbapi.Error
    try:
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: bool(_AWAY.search(str(error)))),
            stop=tenacity.stop_after_delay(_PATIENCE),
            wait=_PAUSES,
            before_sleep=_tell,
            reraise=True,
        ):
            with attempt:
                return dialect.connect(*args, **words)
    except error_class:
        _patient.discard(address)  # what follows does not wait again
        raise
    return None


def _tell(state: tenacity.RetryCallState) -> None:
    if state.attempt_number == 1:
        _log.warning("tracking.uri: the database gives no answer; waiting for it for up to %d s", _PATIENCE)


def _address(words: dict[str, Any]) -> tuple[str, str, str]:
    name = words.get("database") or words.get("dbname") or words.get("db") or ""
    return str(words.get("host", "")), str(words.get("port", "")), str(name)


def _reason(error: DBAPIError) -> str:
    """What the driver says, on one line and without SQL, which holds what was to be stored."""
    text = line_without_secrets(error.orig) if error.orig else "no reason is given"
    return text.split(" Multiple connection attempts failed")[0]
