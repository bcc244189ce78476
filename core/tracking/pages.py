"""MLflow's pages of a store: a server that shows them."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.urls import http_address, without_secrets
from hoptimizer.tracking.holding import SQLITE
from hoptimizer.tracking.server import check_server

_START_SECONDS = 120.0
# litellm, which a job of the server imports, fetches its price list and would wait for the network for ever.
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextlib.contextmanager
def served(uri: str, host: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """MLflow's pages of a local store, for as long as this is entered.

    Args:
        uri: the store's tracking URI.
        host: the address to listen at.
        port: the port to listen at; a free one if that is taken.

    Returns:
        the address of the pages, and the process that shows them.

    Raises:
        UserError: there is no such store, or nothing can listen at that address.
        Unreachable: its database gives no answer.
        ServiceError: MLflow does not start.
    """
    if uri.startswith(SQLITE) and not (file := Path(uri.removeprefix(SQLITE))).is_file():
        raise UserError(f"tracking.uri: there is no store at {file} yet; `hop compile` and `hop eval` make one")
    check_server(uri)
    chosen = _free_port(host, port)
    address = http_address(host, chosen)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    # Everybody on the machine can read arguments, and the URI may hold a password.
    environment = os.environ | _OFFLINE | {"MLFLOW_BACKEND_STORE_URI": uri}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, "--host", host, "--port", str(chosen)], env=environment, stdout=said, stderr=said
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _is_up(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    lines = said.read().decode("utf-8", "replace").strip().splitlines()
                    raise ServiceError(f"MLflow does not start on {without_secrets(uri)}: {lines[-1:] or 'no word'}")
                time.sleep(0.1)
            yield address, process
        finally:
            process.terminate()
            process.wait()


def _is_up(address: str) -> bool:
    with contextlib.suppress(requests.RequestException), requests.Session() as session:
        session.trust_env = False  # no proxy leads to a server of this machine
        return session.get(f"{address}/health", timeout=5).ok
    return False


def _free_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, wanted))
            return int(probe.getsockname()[1])
    raise UserError(f"--host {host}: nothing can listen there; give an address of this machine, such as 127.0.0.1")
