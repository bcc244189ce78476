"""Whether the MLflow server of a tracking URI answers, and which errors say that it does not."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import mlflow
import requests
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from hoptimizer.common.disk import disk_failure
from hoptimizer.common.errors import ServiceError, UserError, causes
from hoptimizer.common.urls import line_without_secrets, names_host, text_without_secrets, without_secrets
from hoptimizer.tracking.settings import TRACKING_URI

STORE_ERRORS = (MlflowException, SQLAlchemyError, requests.RequestException)
"""What MLflow raises itself, and what comes through from its database and from its connections."""

# What neither a path nor a URL can hold: a zero byte and halves of a character.
_NOT_WRITABLE = re.compile("[\0\ud800-\udfff]")
# Seconds for a connection, and for the first byte of an answer: that there is none is said within five.
_TIMEOUT = (2, 3)
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_TRANSIENT = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.RetryError,
    requests.exceptions.ChunkedEncodingError,
)
_SERVER_ERROR = 500
# The settings with which MLflow asks once, and waits for seconds alone.
_ONCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
# What urllib3 puts before the reason: objects with their addresses in memory.
_OBJECT = re.compile(r"^(<[^>]*>|\w+\([^)]*\)): ")


class Unreachable(ServiceError):
    """The server of a tracking URI gives no answer.

    Args:
        uri: the tracking URI.
        reason: why, in one line.

    Attributes:
        found: what is said where the work goes on all the same.
    """

    def __init__(self, uri: str, reason: str) -> None:
        self.found = f"tracking.uri: no answer from {without_secrets(uri)} ({text_without_secrets(reason)})"
        super().__init__(f"{self.found}: is the MLflow server up?")


def is_remote(uri: str) -> bool:
    """Whether a tracking URI is that of a server.

    Raises:
        UserError: it is no URL.

    Example:
        >>> from hoptimizer.tracking.server import is_remote
        >>> is_remote("https://mlflow.example.org"), is_remote("sqlite:///mlflow.db")
        (True, False)
    """
    try:
        is_http = urlsplit(uri).scheme in ("http", "https")
    except ValueError:
        is_http = True
    if _NOT_WRITABLE.search(uri) or (is_http and not names_host(uri)):
        raise UserError(f"tracking.uri: {without_secrets(uri)} is no URL; expected one such as http://localhost:5000")
    return is_http


def check_server(uri: str) -> None:
    """Make sure that a server, or a database's, answers where a tracking URI points, before MLflow waits for it in
    silence. That none does is known within five seconds.

    Raises:
        Unreachable: none does.
        UserError: it is no URL.

    Example:
        >>> from hoptimizer.tracking.server import check_server
        >>> check_server("sqlite:///mlflow.db")
        >>> check_server("http://127.0.0.1:9")
        Traceback (most recent call last):
        hoptimizer.tracking.server.Unreachable: tracking.uri: no answer from http://127.0.0.1:9 ...
    """
    if is_remote(uri):
        found = _ask(uri)
        if isinstance(found, str) or found >= _SERVER_ERROR:
            raise Unreachable(uri, found if isinstance(found, str) else f"status {found}")
    elif address := _database(uri):
        try:
            socket.create_connection(address, timeout=sum(_TIMEOUT)).close()
        except OSError as error:
            raise Unreachable(uri, str(error)) from error


def store_failure(uri: str, error: Exception) -> UserError | None:
    """What a user is told of an error while a store was used; ``None`` where the error is not the store's.

    Args:
        uri: the tracking URI.
        error: one of :data:`STORE_ERRORS`.

    Returns:
        :class:`Unreachable` where the server gives no answer, another ``ServiceError`` where a local store failed, and
        a ``UserError`` where the server answers, and refuses.
    """
    if isinstance(error, requests.RequestException) and not _is_of(error, uri):
        return None
    if unreachable := outage(uri, error):
        return unreachable
    store, reason = without_secrets(uri), disk_failure(error) or line_without_secrets(error)
    if is_remote(uri):
        return UserError(f"tracking.uri: {store} refuses: {reason}; check what you may do there")
    return ServiceError(
        f"tracking.uri: {store} failed: {reason}; give the same command again once it is back: what was answered is "
        "cached"
    )


def outage(uri: str, error: BaseException) -> Unreachable | None:
    """That the server gives no answer, where an error says so; ``None`` for any other error.

    Args:
        uri: the tracking URI.
        error: one of :data:`STORE_ERRORS`.
    """
    if not is_remote(uri):
        return None
    chain = list(causes(error))
    if any(isinstance(one, _TRANSIENT) and not isinstance(one, requests.exceptions.SSLError) for one in chain):
        return Unreachable(uri, _reason(chain))
    # MLflow tells of some failures in words alone: is the server there now?
    found = _ask(uri)
    if isinstance(found, str):
        return Unreachable(uri, found)
    return Unreachable(uri, f"status {found}") if found >= _SERVER_ERROR else None


@contextlib.contextmanager
def answering(uri: str) -> Iterator[None]:
    """Work that only reads, or whose other failures are handled elsewhere.

    Raises:
        Unreachable: the server of the tracking URI gives no answer.
    """
    try:
        yield
    except STORE_ERRORS as error:
        if unreachable := outage(uri, error):
            raise unreachable from error
        raise


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Within it, MLflow asks a server once: for what is tried, and may fail."""
    given = {name: os.environ.get(name) for name in _ONCE}
    os.environ.update(_ONCE)
    try:
        yield
    finally:
        for name, value in given.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _database(uri: str) -> tuple[str, int] | None:
    """Host and port of the database server that a tracking URI names; ``None`` where it names none."""
    with contextlib.suppress(ValueError):  # a port that is no number: the database's driver says so
        parts = urlsplit(uri)
        port = parts.port or _DATABASE_PORTS.get(parts.scheme.partition("+")[0])
        if port and parts.hostname and parts.scheme.partition("+")[0] in _DATABASE_PORTS:
            return parts.hostname, port
    return None


def point_mlflow_at(uri: str) -> None:
    """Point MLflow at a store, in this process alone: ``MLFLOW_TRACKING_URI`` stays as the user has set it, since
    configs take their store from there where they name none."""
    given = os.environ.get(TRACKING_URI)
    mlflow.set_tracking_uri(uri)
    os.environ.pop(TRACKING_URI, None)
    if given is not None:
        os.environ[TRACKING_URI] = given


def _ask(uri: str) -> int | str:
    """The status with which the server of a tracking URI answers, or why it does not."""
    try:
        with requests.get(
            f"{uri.rstrip('/')}/health", timeout=_TIMEOUT, allow_redirects=False, stream=True
        ) as response:
            return response.status_code
    except _TRANSIENT as error:
        # MLflow has settings of its own for certificates, and says what is wrong with one.
        return 0 if isinstance(error, requests.exceptions.SSLError) else _reason(list(causes(error)))
    except requests.RequestException:
        return 0  # the URI is wrong, which MLflow says


def _reason(chain: list[BaseException]) -> str:
    """The innermost words for why there is no answer, which are the shortest ones."""
    lines = [_OBJECT.sub("", " ".join(str(error).split())) for error in chain]
    return min((line for line in lines if line), key=len, default="no reason is given")


def _is_of(error: requests.RequestException, uri: str) -> bool:
    """Whether an error is that of a request to the server of a tracking URI."""
    url = getattr(error.request, "url", None) or getattr(error.response, "url", None) or ""
    return is_remote(uri) and urlsplit(url).hostname == urlsplit(uri).hostname
