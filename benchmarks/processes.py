"""Commands that a benchmark runs in a folder of their own, and what they took of the machine."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home


@dataclass(frozen=True)
class Usage:
    """What a process took.

    Attributes:
        cpu: seconds of all cores together.
        peak: its resident set at its largest, mapped files included, in bytes.
    """

    cpu: float
    peak: int


def own_home(folder: Path) -> Path:
    """A home in a folder, empty but for the user's models and checkpoints."""
    own = folder / "home"
    own.mkdir()
    for kept in ("models", "checkpoints"):
        (own / kept).symlink_to(home() / kept)
    return own


def own_store(folder: Path) -> dict[str, str]:
    """A ``tracking`` section for a store whose files all lie in a folder."""
    return {"uri": f"sqlite:///{folder}/mlflow.db", "artifacts": (folder / "files").as_uri()}


def usage_of(process: subprocess.Popen[Any], what: str, expected: int = 0) -> Usage:
    """Wait for a process.

    Args:
        process: whose output was read, or goes elsewhere.
        what: what messages call it.
        expected: the exit code that it should end with.

    Raises:
        UserError: it ended with another.
    """
    _, status, usage = os.wait4(process.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) != expected:
        raise UserError(f"{what} ended with exit code {code}; its reason stands above")
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def measured(words: Sequence[str], folder: Path, home: Path, what: str, expected: int = 0) -> tuple[float, Usage]:
    """Run Python in a folder; seconds by the clock, and what it took. What it prints but its errors is left out.

    It keeps compiled modules, as Python does unless ``PYTHONDONTWRITEBYTECODE`` is set: users have them from the
    second command on.

    Args:
        words: its arguments.
        folder: where it runs.
        home: the ``HOPTIMIZER_HOME`` of it.
        what: what messages call it.
        expected: the exit code that it should end with; where that is a failure, its errors are left out, too.

    Raises:
        UserError: it ended with another.
    """
    env = os.environ | {"HOPTIMIZER_HOME": str(home)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if expected else None,
        text=True,
    )
    usage = usage_of(process, what, expected)
    return time.monotonic() - begin, usage


def size(folder: Path) -> int:
    """Bytes of all files below a folder; what links lead to is not counted."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@contextlib.contextmanager
def serving(script: str, *words: str) -> Iterator[str]:
    """The URL of a server that a benchmark of this folder starts, and that prints its URL first.

    Args:
        script: the benchmark's file.
        words: its arguments.
    """
    command = [sys.executable, str(Path(__file__).with_name(script)), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # it is a pipe
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
