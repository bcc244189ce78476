"""A real MLflow server, behind an address at which it can be out of reach."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import requests


class MlflowServer:
    """An MLflow server on this machine; it is used with ``with``.

    Args:
        folder: an empty one, for its database and its artifacts.

    Attributes:
        url: the address that leads to it while it is within reach.
    """

    def __init__(self, folder):
        self.folder = folder
        self._listening, self._pipes = None, []

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        store = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db", "--artifacts-destination", self.folder]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *store, "--port", str(self._port), "--workers", "1"],
            cwd=self.folder,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"http://127.0.0.1:{self._port}/health", timeout=5).ok:
                    break
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._outer = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._outer}"
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self._process.terminate()
        self._process.wait()

    def start(self):
        """Be within reach."""
        if self._listening is None:
            self._listening = socket.create_server(("127.0.0.1", self._outer), reuse_port=False)
            threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def stop(self):
        """Be out of reach: connections are refused, and those that are open end."""
        listening, self._listening = self._listening, None
        if listening:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.shutdown(socket.SHUT_RDWR)

    def _accept(self, listening):
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._pipes += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
