"""The language model is swapped by config alone: the same compile on a real OpenAI-compatible server."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import pytest

from hoptimizer import compile_variant, load_config
from hoptimizer.models.weights.store import pull

# The same compile, but for the language model.
WORDS = [
    "data=atlas", "data.train=4", "data.dev=2", "program=rag", "retriever=bm25", "retriever.k=1",
    "optimizer=labeled_few_shot", "optimizer.k=2", "optimizer.distractors=0", "lm.default.max_tokens=48",
]  # fmt: skip


@pytest.fixture(scope="module")
def server():
    """``transformers serve`` with the embedded model's weights; gives its URL and the model's name there."""
    folder = pull("smollm2-135m-instruct")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("transformers"), "serve", folder, "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--dtype", "bfloat16", "--device", "cpu"],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            break
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(1)
    yield url, str(folder)
    process.terminate()
    process.wait()


@pytest.mark.slow(reason="starts a real OpenAI-compatible server: no stand-in shows that a swap by config works")
def test_the_same_compile_runs_on_a_server_and_in_process(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, name = server
    words = [*WORDS, f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
    local = compile_variant(load_config(None, words))
    swap = [f"lm.default.model=openai/{name}", f"lm.default.api_base={url}/v1", "lm.default.api_key=none"]
    remote = compile_variant(load_config(None, [*words, *swap]))
    assert remote.after.metrics["failures"] == 0
    assert remote.after.metrics["lm_calls"] >= 1
    assert any(row.answer for row in remote.after.rows)
    states = [mlflow.artifacts.load_dict(f"runs:/{v.run_id}/variant/program.json") for v in (local, remote)]
    assert states[0]["reader"]["demos"] == states[1]["reader"]["demos"]
    assert mlflow.get_run(remote.run_id).data.params["lm.default.api_base"] == f"{url}/v1"
