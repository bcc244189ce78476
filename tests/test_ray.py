"""``executor: ray``: what goes wrong is one line, what was answered is kept, and who dies is replaced."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from chat_server import ChatServer
from test_layout import FOLDERS, ROOT, imported, imported_at_once

from hoptimizer import ServiceError, Tracker, UserError, Workbench, load_config, make_config
from hoptimizer.common.paths import home
from hoptimizer.eval.runner import QuestionResult, aevaluate, aevaluate_by
from hoptimizer.executors.connection import connected
from hoptimizer.executors.evaluation import Asked, aevaluate_on
from hoptimizer.executors.kept_rows import KeptRows
from hoptimizer.executors.pool import Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.task import Refusal, Task, unmasked
from hoptimizer.executors.worker import Worker
from hoptimizer.programs import StepRecord

CONFIG = {"data": {"name": "atlas", "dev": 12}, "program": {"name": "rag", "reader": "none"}, "retriever": "bm25"}


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("executor=spark", "no executor is called 'spark'; known: in_process, ray"),
        ("executor.tasks=4", "executor.tasks: unknown key; known: name"),
        ("executor={name: ray, task: 4}", "executor.task: unknown key; did you mean 'tasks'?"),
        ("executor={name: ray, tasks: 0}", "executor.tasks: input should be greater than or equal to 1, got 0"),
        ("executor={name: ray, address: 'http://head'}", "executor.address: string should match pattern"),
    ],
)
def test_a_mistake_in_the_section_is_one_line(word, line):
    with pytest.raises(UserError) as raised:
        load_config(None, ["data=atlas", word])
    assert str(raised.value).startswith(line)


def test_the_executor_does_not_decide_on_results():
    assert make_config(CONFIG).digest == make_config(CONFIG | {"executor": {"name": "ray", "tasks": 8}}).digest


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"the package ray is missing; pip install 'hoptimizer\[ray\]'"):
        connected(RayExecutor(name="ray")).__enter__()


def test_a_cluster_that_is_out_of_reach_is_one_line():
    pytest.importorskip("ray")
    with pytest.raises(ServiceError, match=r"no Ray cluster can be reached at 127\.0\.0\.1:9 \(.*refused\)"):
        connected(RayExecutor(name="ray", address="127.0.0.1:9")).__enter__()


def test_no_file_imports_ray_but_the_one_that_connects_to_it_and_only_then():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in files if "ray" in imported(path)] == ["connection.py"]
    assert [path.name for path in files if "ray" in imported_at_once(path)] == []


def test_a_worker_gets_the_keys_that_no_dump_has():
    lm = {"model": "openai/x", "api_base": "http://u:pass@h/v1", "api_key": "sk-1", "extra_headers": {"X": "h"}}
    config = make_config(CONFIG | {"lm": lm})
    there = make_config(unmasked(config)).lm["default"]
    assert there.api_key.get_secret_value() == "sk-1"
    assert (there.api_base, there.extra_headers["X"].get_secret_value()) == ("http://u:pass@h/v1", "h")
    assert make_config(unmasked(config)).digest == config.digest


@pytest.fixture
def bench(tmp_path, monkeypatch):
    (tmp_path / "models").symlink_to(home() / "models")
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path))
    return Workbench(make_config(CONFIG))


def row(question):
    step = StepRecord("reader", "lm", {"question": question.question}, {"answer": "Lyon"}, calls=1, usd=None)
    return QuestionResult(question, "Lyon", ["p"], {"f1": 1 / 3}, [step])


def test_outcomes_are_read_as_they_were_kept_but_for_a_line_that_was_cut_off(bench, tmp_path):
    questions, kept = bench.data.split("dev"), KeptRows(bench, None)
    rows = [row(question) for question in questions[:3]]
    for one in rows:
        kept.keep(one)
    kept.keep(QuestionResult(questions[3], "", [], {}, [], failure="no answer", is_answered=False))
    [file] = (tmp_path / "answers").iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert list(kept.read(questions).values()) == rows[:2]
    assert KeptRows(bench, "another-run").read(questions) == {}
    kept.forget()
    assert kept.read(questions) == {}


class ScriptedRay:
    """Ray's place in tests of control flow: workers in this process, which do as they are told.

    Args:
        answer: ``(number of the worker, question) -> outcome``; ``None`` lets the worker die.
        refusal: what each says to its start.
        starts: whether workers come up at all.
    """

    class exceptions:
        class RayError(Exception):
            pass

        class RayActorError(RayError):
            pass

    def __init__(self, answer, refusal=None, starts=True):
        self.answer, self.refusal, self.starts = answer, refusal, starts
        self.made, self.killed = 0, []

    def remote(self, _):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._worker))

    def cluster_resources(self):
        return {"CPU": 2.0}

    def kill(self, worker):
        self.killed.append(worker)

    def _worker(self):
        number, self.made = self.made, self.made + 1

        async def host():
            await asyncio.sleep(0 if self.starts else 60)
            return f"node-{number}"

        async def start(values, task):
            return self.refusal

        async def answer(question):
            await asyncio.sleep(0.001)
            if (outcome := self.answer(number, question)) is None:
                raise self.exceptions.RayActorError("The actor is dead because its worker process has died.\nmore")
            return outcome

        methods = {"host": host, "start": start, "answer": answer}
        return SimpleNamespace(**{name: SimpleNamespace(remote=method) for name, method in methods.items()})


def evaluated(bench, ray, tasks=2, **options):
    workers = Workers(ray, RayExecutor(name="ray", tasks=tasks, **options))
    with workers:
        return asyncio.run(aevaluate_on(workers, Asked(bench, bench.data.split("dev")), tasks))


def test_what_a_worker_had_in_hand_is_asked_again_when_it_dies(bench, caplog):
    asked = []

    def answer(number, question):
        asked.append(question.id)
        return row(question) if number or asked.count(question.id) > 1 else None

    ray = ScriptedRay(answer)
    evaluation = evaluated(bench, ray)
    assert [one.question.id for one in evaluation.rows] == [one.id for one in bench.data.split("dev")]
    assert (ray.made, len(caplog.messages)) == (3, 1)
    assert caplog.messages[0].startswith("a worker on node-0 died (The actor is dead because its worker process")
    assert max(map(asked.count, asked)) == 2


def test_workers_that_all_die_end_the_work_in_one_line_and_the_same_command_goes_on(bench):
    first = {question.id for question in bench.data.split("dev")[:5]}
    ray = ScriptedRay(lambda _, question: row(question) if question.id in first else None)
    with pytest.raises(ServiceError, match="6 workers in a row died before they answered a question"):
        evaluated(bench, ray)
    asked = []
    evaluated(bench, ScriptedRay(lambda _, question: asked.append(question.id) or row(question)))
    assert len(asked) == 12 - 5
    assert not first & set(asked)


def test_what_a_worker_lacks_is_one_line_with_the_node(bench):
    ray = ScriptedRay(lambda _, question: row(question), Refusal("data: no such folder"))
    with pytest.raises(UserError, match=r"worker on node-\d: data: no such folder"):
        evaluated(bench, ray)
    assert len(ray.killed) == 2


def test_a_cluster_without_room_for_a_worker_is_one_line(bench):
    ray = ScriptedRay(lambda _, question: row(question), starts=False)
    with pytest.raises(ServiceError, match=r"no worker could be started in 0\.1 s; each wants 9 CPUs, and the cluster"):
        evaluated(bench, ray, start_timeout=0.1, cpus=9)


def test_whatever_answers_can_be_scored(bench):
    async def asks(question):
        return row(question)

    evaluation = asyncio.run(aevaluate_by(asks, bench.data.split("dev"), workers=3))
    assert evaluation.metrics["f1"] == pytest.approx(1 / 3)


def started(bench, values=None, **task):
    """A worker, which knows nothing of Ray, and what it says to its start."""
    worker = Worker()
    told = asyncio.run(worker.start(values or unmasked(bench.config), Task(**({"data": bench.data.digest} | task))))
    return worker, told


def test_a_worker_answers_as_this_process_does(bench):
    worker, told = started(bench)
    assert told is None
    questions = bench.data.split("dev")
    with bench.active():
        here = asyncio.run(aevaluate(bench.program(), questions))

    async def answer_all():
        return await asyncio.gather(*map(worker.answer, questions))

    for one, other in zip(asyncio.run(answer_all()), here.rows, strict=True):
        assert (one.answer, one.passages) == (other.answer, other.passages)
        assert [replace(step, seconds=0) for step in one.steps] == [replace(step, seconds=0) for step in other.steps]
        assert one.scores | {"seconds": 0} == other.scores | {"seconds": 0}
    worker.close()


@pytest.mark.parametrize(
    ("task", "changed", "line"),
    [
        ({"versions": {"hoptimizer": "0.0.1"}}, {}, "it has hoptimizer .* and not 0.0.1; install the same versions"),
        ({"data": "another"}, {}, "data: .* holds other data than the driver's; copy it to all nodes"),
        ({}, {"data": "/nowhere/set"}, "/nowhere/set: no such folder"),
        ({}, {"lm": "local/nothing-like-it"}, "lm.default: local/nothing-like-it: neither a name of the weights store"),
    ],
)
def test_what_a_worker_finds_different_or_missing_is_one_line(bench, monkeypatch, task, changed, line):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, told = started(bench, unmasked(bench.config) | changed, **task)
    assert re.match(line, told.message)


# What is above is the control of it; below are real workers.

SLOW = pytest.mark.slow(reason="a Ray cluster of two nodes and its workers take most of a minute to start")
TIMES = ("seconds", "cached_calls")


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Two nodes on this machine, whose workers share a home with the command."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(home() / "models")
    settings = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "HOPTIMIZER_HOME": str(tmp_path / "home")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
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
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-2000:]
    return json.loads(out)


def workers_of(node):
    [raylet] = node.all_processes["raylet"]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [child for child in children if child.name().startswith("ray::Worker")]


def wait_for(found, process):
    deadline = time.monotonic() + 200
    while not (value := found()):
        assert process.poll() is None, process.stderr.read()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


@SLOW
def test_workers_and_a_node_that_are_killed_cost_only_what_they_had_in_hand_and_no_log_has_a_key(cluster, tmp_path):
    thought = "[[ ## reasoning ## ]]\nIt is there.\n\n[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"
    with ChatServer(lambda _: thought, seconds=0.4) as server:
        lm = {"model": "openai/x", "api_base": server.url, "api_key": "sk-canary-1"}
        words = [
            "eval",
            "data={name: atlas, test: 120}",
            "program=rag",
            "retriever=bm25",
            f"lm.default={json.dumps(lm)}",
        ]
        words += ["workers=4", "--split", "test", "--json"]
        alone = result(hop(tmp_path, *words, HOPTIMIZER_HOME=str(tmp_path / "home" / "other")))
        needed = len(server.bodies)
        server.bodies.clear()
        process = hop(tmp_path, *words, f"executor={{name: ray, address: '{cluster.address}', tasks: 2, cpus: 2}}")

        def kept():
            return sum(len(file.read_bytes().splitlines()) for file in (tmp_path / "home" / "answers").glob("*"))

        wait_for(lambda: kept() >= 20, process)
        workers_of(cluster.head_node)[0].send_signal(signal.SIGKILL)
        cluster.remove_node(cluster.second, allow_graceful=False)
        assert kept() < 120
        spread = result(process)
        assert needed <= len(server.bodies) <= needed + 4 * 3
    store = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "atlas")
    tables = [store.predictions(run["run_id"], "test").table for run in (alone, spread)]
    columns = [name for name in tables[0] if name not in TIMES]
    assert tables[0][columns].equals(tables[1][columns])
    assert list((tmp_path / "home" / "answers").iterdir()) == []
    logs = [file for file in Path(cluster.head_node.get_session_dir_path()).rglob("*") if file.is_file()]
    assert logs
    assert [file for file in logs if b"sk-canary-1" in file.read_bytes()] == []


@SLOW
def test_a_study_on_a_cluster_has_the_table_of_one_in_a_process(cluster, tmp_path):
    base = {"data": {"name": "atlas", "dev": 20}, "program": {"name": "rag", "reader": "none"}, "retriever": "bm25"}
    (tmp_path / "study.yaml").write_text(json.dumps({"base": base, "grid": {"retriever.k": [1, 2, 3]}}))
    words = ["study", "study.yaml", "--json"]
    ray = f"executor={{name: ray, address: '{cluster.address}', tasks: 2}}"
    tables = [
        result(hop(tmp_path, *words, f"tracking.uri=sqlite:///{name}.db", *more))["cells"]
        for name, more in (("alone", []), ("spread", [ray]))
    ]
    cells = [
        [{name: value for name, value in cell["metrics"].items() if "seconds" not in name} for cell in table]
        for table in tables
    ]
    assert cells[0] == cells[1]
    assert [cell["status"] for cell in tables[1]] == ["finished"] * 3
