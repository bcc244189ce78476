"""A compile that was killed continues when the same command is given again."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest

from hoptimizer.common.paths import home

COMMAND = [
    "compile", "data=atlas", "data.train=16", "data.dev=8", "program=rag", "retriever=bm25", "retriever.k=2",
    "optimizer=bootstrap_random_search", "optimizer.num_candidate_programs=2", "optimizer.max_bootstrapped_demos=2",
    "optimizer.max_labeled_demos=2", "workers=2", "--json",
]  # fmt: skip


@pytest.fixture
def fresh(tmp_path):
    """A folder with a home of its own, whose weights are the shared ones."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(home() / "models")
    return tmp_path


def start(folder: Path) -> subprocess.Popen:
    environment = os.environ | {"HOPTIMIZER_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "hoptimizer.cli", *COMMAND],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen) -> dict:
    out, err = process.communicate()
    assert process.returncode == 0, err[-2000:]
    return json.loads(out)


def cached_calls(folder: Path) -> int:
    """Finished language model calls."""
    count = 0
    for shard in (folder / "home" / "cache").glob("*/*/cache.db"):
        # A cache that is just being made has no table yet, or is locked, which must not hold the kill up: what it
        # holds is counted the next time.
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(shard, timeout=0.01) as connection:
            count += connection.execute("select count(*) from Cache").fetchone()[0]
    return count


def kill_after(process: subprocess.Popen, folder: Path, calls: int, how: signal.Signals) -> None:
    deadline = time.monotonic() + 300
    while cached_calls(folder) < calls:
        assert process.poll() is None, process.stderr.read()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(how)
    process.wait()


def run_state(folder: Path, run_id: str) -> tuple[dict, mlflow.entities.Run, int]:
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    run = client.get_run(run_id)
    path = Path(folder / run.info.artifact_uri.removeprefix("file://")) / "variant" / "program.json"
    runs = client.search_runs([run.info.experiment_id])
    candidates = [child for child in runs if child.data.tags["hop.kind"] == "candidate"]
    return json.loads(path.read_text()), run, (len(runs) - len(candidates), sorted(map(score, candidates)))


def score(candidate: mlflow.entities.Run) -> tuple[int, float]:
    return int(candidate.data.tags["hop.candidate"]), candidate.data.metrics["score"]


@pytest.mark.slow(reason="kills real processes: only these show that a compile survives them")
def test_a_killed_compile_continues_without_repeating_finished_work(fresh, tmp_path_factory):
    whole = tmp_path_factory.mktemp("whole")
    (whole / "home").mkdir()
    (whole / "home" / "models").symlink_to(home() / "models")
    undisturbed = finish(start(whole))
    expected, run, scored = run_state(whole, undisturbed["run_id"])
    total = cached_calls(whole)

    kill_after(start(fresh), fresh, total // 3, signal.SIGKILL)
    process = start(fresh)
    # Not before it is at work: what it imports may catch a KeyboardInterrupt.
    kill_after(process, fresh, max(3 * total // 5, cached_calls(fresh) + 1), signal.SIGINT)
    assert process.returncode == 130
    finished = cached_calls(fresh)
    result = finish(start(fresh))

    state, run, runs = run_state(fresh, result["run_id"])
    assert runs == (1, scored[1]), "the killed run is the one that is finished, and each candidate has one"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["workings/computed_lm_calls"] <= cached_calls(fresh) - finished
    assert run.data.metrics["workings/computed_lm_calls"] < total / 2
    assert state == expected
    assert result["after"]["f1"] == undisturbed["after"]["f1"]
