"""A real PostgreSQL server on this machine, of the binaries that Debian's package brings, and a real S3-like one."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

_PASSWORD = "canary-postgres-2f9b"


def binaries():
    """The folder with ``initdb`` and ``postgres``, or ``None`` where PostgreSQL's server is not installed."""
    installed = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    found = shutil.which("postgres")
    return max(installed, default=Path(found).parent if found else None, key=lambda path: float(path.parts[-2]))


class Postgres:
    """A database server that is used with ``with``; root starts it as the user ``postgres``, as it has to be.

    Attributes:
        password: of its only user.
    """

    password = _PASSWORD

    def __enter__(self):
        # Not below pytest's folders, which are closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="hop-postgres-", dir="/tmp"))
        self._bin = binaries()
        self._user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        word = self._folder / "password"
        word.write_text(self.password)
        if self._user:
            for path in (self._folder, word):
                shutil.chown(path, "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        words = ["--username=team", "--auth=scram-sha-256", f"--pwfile={word}", "--no-sync", "--encoding=UTF8"]
        self._run("initdb", *words, "--locale=C")
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, name, *words):
        made = subprocess.run(
            [self._bin / name, "-D", self._folder / "data", *words],
            cwd=self._folder, capture_output=True, text=True, check=False, **self._user,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr

    def start(self):
        """Be within reach."""
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self._folder}
        settings |= {"max_connections": 100, "log_statement": "none"}
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [
                    self._bin / "postgres",
                    "-D",
                    self._folder / "data",
                    *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                **self._user,
            )
        deadline = time.monotonic() + 60
        ready = [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self):
        """Be out of reach: what is under way is ended at once, as by a restart of the machine's service."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def create(self, name):
        """The URI of a new, empty database."""
        uri = f"postgresql://team:{self.password}@127.0.0.1:{self.port}"
        subprocess.run([self._bin / "psql", "-q", f"{uri}/postgres", "-c", f'CREATE DATABASE "{name}"'], check=True)
        return f"{uri}/{name}"

    def dump(self, uri):
        """All that a database holds, as text."""
        return subprocess.run([self._bin / "pg_dump", uri], check=True, capture_output=True, text=True).stdout
