"""vLLM as ``hop models serve`` starts it, and other servers, for as long as a benchmark needs them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from hoptimizer.common.errors import UserError

START = 900.0
"""Seconds that a server may take to start."""


@contextlib.contextmanager
def serving_vllm(model: str, python: str | None, extra: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What ``hop models serve`` tells of vLLM, which ends at the end with all its processes.

    Args:
        model: a name of the weights store.
        python: of an environment with vLLM; by default HOP_VLLM_PYTHON.
        extra: arguments of vLLM.

    Raises:
        UserError: it does not start.
    """
    words = [sys.executable, "-m", "hoptimizer.cli", "models", "serve", model, "--json", "--port", "0"]
    words += ["--python", python] if python else []
    with _running([*words, "--", *extra], subprocess.PIPE) as process:
        assert process.stdout is not None  # it is a pipe
        line = process.stdout.readline()
        if not line:
            raise UserError(f"vLLM did not start (exit code {process.wait()}); its reason stands above")
        told: dict[str, Any] = json.loads(line)
        _wait(process, f"{told['url']}/health", "vLLM")
        yield told


@contextlib.contextmanager
def serving(words: Sequence[str], url: str) -> Iterator[None]:
    """A server that a command starts, once it is there; it ends at the end with all its processes.

    Args:
        words: the command.
        url: says whether it is there, such as ``http://127.0.0.1:8100/health``.

    Raises:
        UserError: it does not start.
    """
    with _running(words, None) as process:
        _wait(process, url, words[0])
        yield


@contextlib.contextmanager
def _running(words: Sequence[str], stdout: int | None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stdout=stdout, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, name: str) -> None:
    deadline = time.monotonic() + START
    while not _is_up(url):
        if process.poll() is not None:
            raise UserError(f"{name} did not start (exit code {process.returncode}); its reason stands above")
        if time.monotonic() > deadline:
            raise UserError(f"{name} did not start in {START:.0f} s; what it says stands above")
        time.sleep(1)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False
