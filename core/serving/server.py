"""A server's process: its address, and how it ends."""

import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hoptimizer.common.errors import UserError
from hoptimizer.common.urls import http_address

if TYPE_CHECKING:
    from fastapi import FastAPI

_BACKLOG = 2048
# Seconds beyond its timeout that a request is given to end when the server does.
_GRACE = 5


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket at an address; nobody can connect before the server is ready.

    Args:
        host: the address to listen at.
        port: the port; 0 for a free one.

    Raises:
        UserError: nothing can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UserError(
                f"--host {host} --port {port}: nothing can listen there ({reason}); give an address of this machine "
                "and another port, or --port 0 for a free one"
            ) from None
        yield listener


def address(listener: socket.socket) -> str:
    """The URL of a socket that listens."""
    return http_address(*listener.getsockname()[:2])


def serve(app: "FastAPI", listener: socket.socket, timeout: float) -> None:
    """Serve until SIGTERM or Ctrl-C comes; what was taken on is answered first. A second Ctrl-C ends it at once.

    Args:
        app: what is served.
        listener: where.
        timeout: seconds of a request, at most.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
    """
    import uvicorn  # of the extra "server", which an address alone does not need

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # which would write questions down
        timeout_graceful_shutdown=int(timeout) + _GRACE,
        backlog=_BACKLOG,
    )
    server, came = uvicorn.Server(config), set[int]()

    def end(number: int, _: object) -> None:
        """Before the server listens it ends by this; once it has ended, uvicorn raises the signal again.

        What a handler raises is lost where a finalizer happens to run, so that it is only noted.
        """
        came.add(number)
        server.should_exit = True

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in came:
        raise KeyboardInterrupt
