"""``executor: ray`` on a real cluster: two nodes on this machine, whose workers and nodes are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from chat_server import ChatServer
from rounding import BATCHES_ROUND
from test_notebooks import finished_calls

from hoptimizer import Tracker, evaluate_variant, load_config, load_study, run_study
from hoptimizer.common.paths import home
from hoptimizer.eval import load
from hoptimizer.executors.encoding import encoders_on
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.retrieval import Corpus, DenseSettings, build_retriever

SLOW = pytest.mark.slow(reason="a Ray cluster of two nodes and its workers take most of a minute to start")
# Columns of a run that no other one shares, and what depends on who asked first.
OWN = ("trace", "seconds", "cached_calls", "cached_tokens")
THOUGHT = "[[ ## reasoning ## ]]\nIt is there.\n\n[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"
# Seconds that a command may take: it starts processes that take a minute of CPU, of which a busy machine gives little.
LIMIT = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes on this machine, whose workers share a home with the command; the last test takes one of them away."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "home").mkdir()
    (folder / "home" / "models").symlink_to(home() / "models")
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
        "HOPTIMIZER_HOME": str(folder / "home"),
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # sums of AMX depend on what is computed together
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        node = {"num_cpus": 2, "object_store_memory": 80 << 20}
        found = cluster_utils.Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
        found.second = found.add_node(**node)
        yield found
        found.shutdown()


def hop(folder, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "hoptimizer.cli", *words],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err[-2000:]
    return json.loads(out)


def evaluation(server):
    """Words of a config whose language model is a server."""
    lm = {"model": "openai/x", "api_base": server.url, "api_key": "sk-canary-1"}
    words = ["data={name: atlas, test: 60}", "program=rag", "retriever=bm25", f"lm.default={json.dumps(lm)}"]
    return [*words, "workers=4", "tracking.uri=sqlite:///mlflow.db"]


def kept(files=None):
    """The number of outcomes that commands have kept, of all of them by default."""
    files = (home() / "answers").glob("*") if files is None else files
    return sum(bool(line) for file in files for line in file.read_bytes().splitlines())


def workers_of(node):
    [raylet] = node.all_processes["raylet"]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [child for child in children if child.name().startswith(("ray::Worker", "ray::Passage", "ray::LMWorker"))]


def wait_for(found, process):
    deadline = time.monotonic() + LIMIT
    while not (value := found()):
        assert process.poll() is None, process.stderr.read()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def wait_until_none(found):
    deadline = time.monotonic() + LIMIT
    while found():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@SLOW
def test_a_study_on_a_cluster_has_the_table_of_one_in_a_process(cluster, tmp_path, monkeypatch):
    base = {"data": {"name": "atlas", "dev": 20}, "program": {"name": "rag", "reader": "none"}, "retriever": "bm25"}
    (tmp_path / "study.yaml").write_text(json.dumps({"base": base, "grid": {"retriever.k": [1, 2, 3]}}))
    monkeypatch.chdir(tmp_path)
    alone = run_study(load_study(Path("study.yaml"), ["tracking.uri=sqlite:///alone.db"]))
    ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2}}"
    spread = result(hop(tmp_path, "study", "study.yaml", "--json", "tracking.uri=sqlite:///spread.db", ray))["cells"]

    def untimed(metrics):
        return {name: value for name, value in metrics.items() if "seconds" not in name}

    assert [untimed(cell.metrics) for cell in alone.outcomes] == [untimed(cell["metrics"]) for cell in spread]
    assert [cell["status"] for cell in spread] == ["finished"] * 3


@SLOW
def test_cells_that_compile_are_compiled_by_workers_as_in_a_process(cluster, tmp_path, monkeypatch):
    lm = {"default": {"model": "local/smollm2-135m-instruct", "max_tokens": 12}}
    base = {"data": {"name": "atlas", "train": 6, "dev": 4}, "program": {"name": "rag", "reader": "direct"}, "lm": lm}
    cells = [
        {"name": "few", "optimizer": {"name": "labeled_few_shot", "k": 2}},
        {"name": "one", "optimizer": {"name": "labeled_few_shot", "k": 1}},
        {"name": "refused", "optimizer": {"name": "distill", "steps": ["relevance"]}},
        {"name": "bootstrapped", "optimizer": {"name": "bootstrap_few_shot"}},
    ]
    study = {"base": base | {"retriever": {"name": "bm25", "k": 2}}, "cells": cells, "compile": True}
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    monkeypatch.chdir(tmp_path)
    alone = run_study(load_study(Path("study.yaml"), ["tracking.uri=sqlite:///alone.db"]))
    ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2}}"
    words = ("study", "study.yaml", "--json", "tracking.uri=sqlite:///spread.db", ray)
    process = hop(tmp_path, *words)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, err[-2000:]  # one cell can't be compiled
    assert "bootstrapped: " in err, "the progress of a cell"
    spread = json.loads(out)["cells"]

    def told(cells):
        return [
            {
                name: value
                for name, value in cell["metrics"].items()
                if "seconds" not in name and name not in ("compile_minutes", "cached_tokens")
            }
            for cell in cells
        ]

    assert told([cell.as_dict() for cell in alone.outcomes]) == told(spread)
    assert [cell["status"] for cell in spread] == ["finished", "finished", "failed", "finished"]
    assert spread[2]["failure"].startswith("worker on ")
    assert "RAG has no step 'relevance'" in spread[2]["failure"]
    tracker = Tracker("sqlite:///spread.db", "study")
    parents = {tracker.get(cell["run_id"]).data.tags.get("mlflow.parentRunId") for cell in spread}
    assert parents == {json.loads(out)["run_id"]}


@SLOW
def test_calls_that_cells_have_in_common_are_made_once_though_workers_come_to_them_at_once(
    cluster, tmp_path, monkeypatch
):
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]", seconds=0.3) as server:
        lm = {"model": "openai/x", "api_base": server.url, "api_key": "sk-canary-1"}
        base = {"data": {"name": "atlas", "train": 8, "dev": 24}, "program": "direct", "lm": lm, "workers": 4}
        # All are scored on dev before they are compiled, when they are the same.
        cells = [{"name": f"{k}", "optimizer": {"name": "labeled_few_shot", "k": k}} for k in (1, 2)]
        (tmp_path / "study.yaml").write_text(json.dumps({"base": base, "cells": cells, "compile": True}))
        monkeypatch.chdir(tmp_path)
        ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2}}"
        result(hop(tmp_path, "study", "study.yaml", "--json", "tracking.uri=sqlite:///spread.db", ray))
    asked = [json.dumps(body["messages"]) for body in server.bodies]
    assert max(map(asked.count, asked)) == 1


@SLOW
def test_an_index_by_workers_one_of_which_is_killed_is_the_one_of_a_process(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.encoders.windows.WINDOW", 16)
    corpus = Corpus(load("atlas").corpus.passages[:160])
    there, models, killed = home(), home() / "models", []

    def kill_once(done, total):
        if not killed:
            killed.append(next(worker for node in cluster.list_all_nodes() for worker in workers_of(node)))
            killed[0].send_signal(signal.SIGKILL)

    elsewhere = encoders_on(RayExecutor(name="ray", address=cluster.address, tasks=2))
    build_retriever(DenseSettings(), corpus, progress=kill_once, elsewhere=elsewhere)
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "alone"))
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "models").symlink_to(models)
    build_retriever(DenseSettings(), corpus)
    [alone] = (tmp_path / "alone" / "indexes").glob("*/vectors.f16")
    spread = there / "indexes" / alone.parent.name / alone.name
    assert killed
    if not BATCHES_ROUND:
        assert spread.read_bytes() == alone.read_bytes()
    vectors = [np.fromfile(file, np.float16) for file in (spread, alone)]
    np.testing.assert_allclose(*vectors, atol=1e-2)


@SLOW
def test_a_compile_by_workers_one_of_which_is_killed_is_the_one_of_a_process(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["data={name: atlas, train: 8, dev: 6}", "program=rag", "retriever=bm25", "lm.default.max_tokens=16"]
    search = "num_candidate_programs: 2, max_bootstrapped_demos: 2, prompt_formats: [plain, json]"
    words = [*words, f"optimizer={{name: bootstrap_random_search, {search}}}"]
    (tmp_path / "models").symlink_to(home() / "models")
    alone = hop(tmp_path, "compile", *words, "tracking.uri=sqlite:///alone.db", "--json", HOPTIMIZER_HOME=str(tmp_path))
    alone = result(alone)["run_id"]
    ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2}}"
    process = hop(tmp_path, "compile", *words, ray, "tracking.uri=sqlite:///spread.db", "--json")

    wait_for(lambda: finished_calls(home().parent) >= 15, process)
    wait_for(lambda: [one for node in cluster.list_all_nodes() for one in workers_of(node)], process)[0].kill()
    run = result(process)["run_id"]
    stores = [Tracker(f"sqlite:///{name}.db", "atlas") for name in ("alone", "spread")]
    states = [store.load_state(one) for store, one in zip(stores, (alone, run), strict=True)]
    assert states[0] == states[1]
    tables = [store.predictions(one, "dev").table for store, one in zip(stores, (alone, run), strict=True)]
    assert [name for name in tables[0] if not tables[0][name].equals(tables[1][name]) and name not in OWN] == []


@SLOW
def test_another_command_whose_workers_are_elsewhere_asks_the_server_nothing(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "node"  # a home that neither the command nor the other nodes have
    there.mkdir()
    node = cluster.add_node(num_cpus=2, object_store_memory=80 << 20, env_vars={"HOPTIMIZER_HOME": str(there)})
    try:
        with ChatServer(lambda _: THOUGHT, seconds=0.1) as server:
            ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 3, cpus: 2}}"  # one on each node
            words = ("eval", *evaluation(server), "retriever.k=4", ray, "--split", "test", "--json")
            first = result(hop(tmp_path, *words))
            needed = len(server.bodies)
            second = result(hop(tmp_path, *words))
            assert needed == len(server.bodies) == 60
            evaluate_variant(load_config(None, [*evaluation(server), "retriever.k=4"]), split="test")
            assert len(server.bodies) == 60
    finally:
        cluster.remove_node(node, allow_graceful=False)
    assert (there / "indexes").is_dir()  # one of the workers was there
    assert not (there / "cache" / "answers").exists()
    assert first["run_id"] != second["run_id"]


@SLOW
def test_workers_and_a_node_that_are_killed_cost_only_what_they_had_in_hand_and_no_log_has_a_key(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with ChatServer(lambda _: THOUGHT, seconds=0.4) as server:
        words = evaluation(server)
        with monkeypatch.context() as other:  # whose cache has the answers
            other.setenv("HOPTIMIZER_HOME", str(tmp_path))
            alone = evaluate_variant(load_config(None, words), split="test").run_id
        needed = len(server.bodies)
        server.bodies.clear()
        ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2, cpus: 2}}"
        process = hop(tmp_path, "eval", *words, ray, "--split", "test", "--json")

        wait_for(lambda: kept() >= 10, process)
        wait_for(lambda: workers_of(cluster.head_node), process)[0].send_signal(signal.SIGKILL)
        cluster.remove_node(cluster.second, allow_graceful=False)
        assert kept() < 60
        spread = result(process)["run_id"]
        assert needed <= len(server.bodies) <= needed + 4 * 3
    store = Tracker("sqlite:///mlflow.db", "atlas")
    tables = [store.predictions(run, "test").table for run in (alone, spread)]
    assert [name for name in tables[0] if not tables[0][name].equals(tables[1][name]) and name not in OWN] == []
    assert list((home() / "answers").iterdir()) == []
    logs = [file for file in Path(cluster.head_node.get_session_dir_path()).rglob("*") if file.is_file()]
    assert logs
    assert [file for file in logs if b"sk-canary-1" in file.read_bytes()] == []


@SLOW
def test_ctrl_c_ends_the_work_and_the_same_command_goes_on(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ChatServer(lambda _: THOUGHT, seconds=1) as server:
        words = [*evaluation(server), "retriever.k=3"]
        ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2, cpus: 1}}"
        process = hop(tmp_path, "eval", *words, ray, "--split", "test", "--json")
        wait_for(lambda: kept() >= 8, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in err
        known = kept()
        assert 8 <= known < 60
        wait_until_none(lambda: [one for node in cluster.list_all_nodes() for one in workers_of(node)])
        server.seconds = 0
        server.bodies.clear()
        result(hop(tmp_path, "eval", *words, ray, "--split", "test", "--json"))
        assert len(server.bodies) <= 60 - known


@SLOW
def test_a_head_that_is_killed_early_ends_the_command_in_one_line_and_the_same_goes_on_elsewhere(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with ChatServer(lambda _: THOUGHT, seconds=4) as server:
        words = evaluation(server)
        ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 1, cpus: 1}}"
        process = hop(tmp_path, "eval", *words, ray, "--split", "test", "--json")
        wait_for(lambda: kept() >= 4, process)
        [own] = (home() / "answers").iterdir()
        lm = {"model": "openai/x", "api_base": server.url, "api_key": "x"}
        base = {"data": {"name": "atlas", "dev": 60}, "program": "direct", "workers": 2, "lm": {"default": lm}}
        (tmp_path / "study.yaml").write_text(json.dumps({"base": base, "grid": {"data.dev": [55, 56, 57, 58, 59, 60]}}))
        study = hop(tmp_path, "study", "study.yaml", "tracking.uri=sqlite:///study.db", ray)
        wait_for(lambda: sum(len(workers_of(node)) for node in cluster.list_all_nodes()) == 2, study)
        cluster.head_node.kill_gcs_server(check_alive=False)
        for command in (process, study):
            _, err = command.communicate(timeout=LIMIT)
            [line] = [line for line in err.splitlines() if line.startswith("hop: ")]
            assert "head at" in line
            assert "has given no answer for 20 s; what was answered is kept" in line
            assert command.returncode == 1
            assert "Traceback" not in err
        known = kept([own])
        assert 4 <= known < 60
        server.seconds = 0
        server.bodies.clear()
        config = load_config(None, [*words, "executor={name: ray, address: local, tasks: 1}"])
        assert len(evaluate_variant(config, split="test").after.rows) == 60
        assert len(server.bodies) <= 60 - known
