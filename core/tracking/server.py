"""Whether the server of a tracking URI is there."""

import socket
from urllib.parse import urlsplit

from hoptimizer.common.errors import ServiceError
from hoptimizer.common.urls import without_secrets

_TIMEOUT = 10  # seconds
_PORTS = {"http": 80, "https": 443}


def check_server(uri: str) -> None:
    """Make sure that something listens where a tracking URI points, before MLflow waits for it in silence.

    Raises:
        ServiceError: nothing does.

    Example:
        >>> from hoptimizer.tracking.server import check_server
        >>> check_server("sqlite:///mlflow.db")
        >>> check_server("http://127.0.0.1:9")
        Traceback (most recent call last):
        hoptimizer.common.errors.ServiceError: tracking.uri: no answer from http://127.0.0.1:9 ...
    """
    parts = urlsplit(uri)
    if parts.scheme not in _PORTS or not parts.hostname:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), timeout=_TIMEOUT).close()
    except OSError as error:
        raise ServiceError(
            f"tracking.uri: no answer from {without_secrets(uri)} ({error}): is the MLflow server up?"
        ) from error
