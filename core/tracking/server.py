"""Whether the server of a tracking URI answers, MLflow's or a database's, and which errors say that it does not."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import mlflow
import requests
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as S3ConnectionError
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from hoptimizer.common.disk import disk_failure
from hoptimizer.common.errors import ServiceError, UserError, causes
from hoptimizer.common.urls import line_without_secrets, names_host, text_without_secrets, without_secrets
from hoptimizer.tracking.databases import absence, check_database, hasty, is_database, wait_for
from hoptimizer.tracking.settings import TRACKING_URI

# What neither a path nor a URL can hold: a zero byte and halves of a character.
_NOT_WRITABLE = re.compile("[\0\ud800-\udfff]")
# Seconds for a connection, and for the first byte of an answer: that there is none is said within five.
_TIMEOUT = (2, 3)
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
_log = logging.getLogger(__name__)


class Unreachable(ServiceError):
    """The server of a tracking URI gives no answer.

    Args:
        uri: the tracking URI.
        reason: why, in one line.
        what: is out of reach; by default what is at the URI.

    Attributes:
        found: what is said where the work goes on all the same.
    """

    def __init__(self, uri: str, reason: str, what: str = "") -> None:
        place = f"the {what} of {without_secrets(uri)}" if what else without_secrets(uri)
        self.found = f"tracking.uri: no answer from {place} ({text_without_secrets(reason)})"
        what = what or ("database" if is_database(uri) else "MLflow server")
        super().__init__(f"{self.found}: is the {what} up?")


def store_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What MLflow raises itself, and what comes through from its database, its connections and its artifact store.

    Args:
        more: what else is handled in the same way.
    """
    return (*more, MlflowException, SQLAlchemyError, requests.RequestException, *_s3_errors())


def _s3_errors() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error  # a fifth of a second, which only an error is worth

    return Boto3Error, BotoCoreError, ClientError


def is_remote(uri: str) -> bool:
    """Whether a tracking URI is that of a server which may be away for a while, MLflow's or a database's.

    Raises:
        UserError: it is no URL.

    Example:
        >>> from hoptimizer.tracking.server import is_remote
        >>> [is_remote(uri) for uri in ("https://mlflow.example.org", "postgresql://db/mlflow", "sqlite:///mlflow.db")]
        [True, True, False]
    """
    return is_mlflow_server(uri) or is_database(uri)


def is_mlflow_server(uri: str) -> bool:
    """Whether a tracking URI is that of an MLflow server.

    Raises:
        UserError: it is no URL.
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
        UserError: it is no URL, or a database refuses, or has no driver here.

    Example:
        >>> from hoptimizer.tracking.server import check_server
        >>> check_server("sqlite:///mlflow.db")
        >>> check_server("http://127.0.0.1:9")
        Traceback (most recent call last):
        hoptimizer.tracking.server.Unreachable: tracking.uri: no answer from http://127.0.0.1:9 ...
    """
    if is_mlflow_server(uri):
        found = _ask(uri)
        if isinstance(found, str) or found >= _SERVER_ERROR:
            raise Unreachable(uri, found if isinstance(found, str) else f"status {found}")
    elif is_database(uri):
        if reason := check_database(uri):
            raise Unreachable(uri, reason)
        wait_for(uri)


def store_failure(uri: str, error: Exception) -> UserError | None:
    """What a user is told of an error while a store was used; ``None`` where the error is not the store's.

    Args:
        uri: the tracking URI.
        error: one of :func:`store_errors`.

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
        error: one of :func:`store_errors`.
    """
    if not is_remote(uri):
        return None
    chain = list(causes(error))
    for one in chain:
        if isinstance(one, S3ConnectionError | HTTPClientError):
            return Unreachable(uri, line_without_secrets(one), "artifact store")
        if isinstance(one, _s3_errors()):
            return None
    if is_database(uri):
        reason = absence(chain)
        return Unreachable(uri, reason) if reason else None
    if any(isinstance(one, _TRANSIENT) and not isinstance(one, requests.exceptions.SSLError) for one in chain):
        return Unreachable(uri, _reason(chain))
    # MLflow tells of some failures in words alone: is the server there now?
    found = _ask(uri)
    if isinstance(found, str):
        return Unreachable(uri, found)
    return Unreachable(uri, f"status {found}") if found >= _SERVER_ERROR else None


class Refusals:
    """What a server refuses of several runs: that of one is not the end of the others.

    Args:
        uri: the tracking URI.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._found: dict[str, list[str]] = {}  # the names of runs, by the reason
        self._kind = UserError

    def done(self, name: str, step: Callable[[], None]) -> bool:
        """Whether a step of a run's way to the server was done, or refused.

        Raises:
            Unreachable: the server gives no answer.
        """
        try:
            step()
        except store_errors(UserError) as error:
            failure = error if isinstance(error, UserError) else store_failure(self._uri, error)
            if failure is None or isinstance(failure, Unreachable):
                raise
            self._found.setdefault(str(failure), []).append(name)
            self._kind = ServiceError if isinstance(failure, ServiceError) else self._kind
            return False
        return True

    def error(self, rest: str) -> UserError | None:
        """What is said at the end, a line for each reason; all but the last are told.

        Args:
            rest: what more is to be said.
        """
        lines = []
        for reason, names in self._found.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"can't deliver {names[0]!r}{more}: {reason}")
        for line in lines[:-1]:
            _log.warning(line)
        return self._kind(f"{lines[-1]}; {rest}") if lines else None


@contextlib.contextmanager
def answering(uri: str) -> Iterator[None]:
    """Work that only reads, or whose other failures are handled elsewhere.

    Raises:
        Unreachable: the server of the tracking URI gives no answer.
    """
    try:
        yield
    except store_errors() as error:
        if unreachable := outage(uri, error):
            raise unreachable from error
        raise


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Within it, a server is asked once: for what is tried, and may fail."""
    given = {name: os.environ.get(name) for name in _ONCE}
    os.environ.update(_ONCE)
    try:
        with hasty():
            yield
    finally:
        for name, value in given.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


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
    return is_mlflow_server(uri) and urlsplit(url).hostname == urlsplit(uri).hostname
