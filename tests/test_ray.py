"""``executor: ray``: what goes wrong is one line, what was answered is kept, and who dies is replaced."""

import asyncio
import contextlib
import re
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import dspy
import pytest
import torch
from chat_server import ChatServer
from dspy.utils.exceptions import LMError
from test_layout import FOLDERS, ROOT, imported, imported_at_once

from hoptimizer import (
    ServiceError,
    Tracker,
    UserError,
    Workbench,
    load_config,
    make_config,
)
from hoptimizer.common.paths import home
from hoptimizer.common.progress import silent
from hoptimizer.eval import load
from hoptimizer.eval.runner import QuestionResult, aevaluate, aevaluate_by
from hoptimizer.executors import answers, head, together
from hoptimizer.executors.answers import AnswerStore, AskedStore
from hoptimizer.executors.connection import connected
from hoptimizer.executors.encoding import _tensors
from hoptimizer.executors.evaluation import Asked, aevaluate_on
from hoptimizer.executors.kept_rows import KeptRows
from hoptimizer.executors.passage_worker import EncodingTask, PassageWorker
from hoptimizer.executors.pool import Pool, Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.task import Node, Refusal, Task, unmasked
from hoptimizer.executors.worker import Worker
from hoptimizer.models import LMSettings, build_lm, disk_cache, slots
from hoptimizer.models.slots import CONNECTIONS
from hoptimizer.models.usage import AnswerCache
from hoptimizer.programs import StepRecord
from hoptimizer.retrieval import Corpus, DenseSettings, Passage, RetrieverSettings, build_retriever
from hoptimizer.study import on_cluster
from hoptimizer.study.cell_worker import CellWorker, Order
from hoptimizer.study.on_cluster import compile_on_cluster
from hoptimizer.variants import Scoring

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


VERSIONS = "Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n    Python: 3.12.1\nThis process ..."


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (ConnectionError("Could not find any running Ray instance"), UserError, "no Ray cluster runs on this machine"),
        (RuntimeError(VERSIONS), UserError, r"auto: Version mismatch: The cluster was started with: Ray: 2\.59\.0 Py"),
        (SystemExit(1), ServiceError, r"no Ray cluster can be reached at auto \(it does not answer as one\)"),
        ("AuthenticationError", UserError, "auto: no token; give the cluster's token in RAY_AUTH_TOKEN"),
    ],
)
def test_a_cluster_that_takes_no_part_is_one_line(monkeypatch, error, kind, line):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def init(**_):
        raise ray.exceptions.AuthenticationError("no token") if isinstance(error, str) else error

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(kind, match=line) as raised:
        connected(RayExecutor(name="ray")).__enter__()
    assert "\n" not in str(raised.value)


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
    kept.keep(rows[2])  # by the command that goes on
    assert list(kept.read(questions).values()) == rows
    assert KeptRows(bench, "another-run").read(questions) == {}
    kept.forget()
    assert kept.read(questions) == {}


class ScriptedRay:
    """Ray's place in tests of control flow: workers in this process, which do as they are told.

    Args:
        answer: ``(number of the worker, question) -> outcome``; ``None`` lets the worker die.
        refusal: what each says to its start.
        starts: whether workers come up at all.
        head: where the head's server is.
    """

    class exceptions:
        class RayError(Exception):
            pass

        class RayActorError(RayError):
            pass

        class RayTaskError(RayError):
            pass

        class ObjectLostError(RayError):
            pass

        class OutOfDiskError(RayError):
            pass

    def __init__(self, answer, refusal=None, starts=True, head="127.0.0.1:9"):
        self.answer, self.refusal, self.starts, self.head = answer, refusal, starts, head
        self.made, self.killed, self.told = 0, [], []

    util = SimpleNamespace(scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None))

    def remote(self, kind):
        made = (lambda _: AnswerStore) if kind is AnswerStore else self._worker
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def cluster_resources(self):
        return {"CPU": 2.0}

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=self.head, get_node_id=lambda: "here")

    def kill(self, worker):
        self.killed.append(worker)

    def cancel(self, answer):
        answer.close()

    def _worker(self, *_):
        number, self.made = self.made, self.made + 1

        async def host():
            await asyncio.sleep(0 if self.starts else 60)
            return f"node-{number}"

        async def start(*told):
            self.told.append(told)
            if isinstance(self.refusal, Exception):
                raise self.refusal
            return self.refusal

        async def answer(question):
            await asyncio.sleep(0.001)
            if (outcome := self.answer(number, question)) is None:
                raise self.exceptions.RayActorError("The actor is dead because its worker process has died.\nmore")
            if isinstance(outcome, Exception):
                raise outcome
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        async def progress():
            return [(f"stage of {number}", 1, 2, "")]

        methods = {"host": host, "start": start, "answer": answer, "progress": progress}
        return SimpleNamespace(**{name: SimpleNamespace(remote=method) for name, method in methods.items()})


def evaluated(bench, ray, tasks=2, **options):
    workers = Workers(ray, RayExecutor(name="ray", tasks=tasks, **options), Worker)
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


def test_a_question_whose_workers_die_gets_no_answer_and_keeps_none_from_the_others(bench):
    deadly, *others = (question.id for question in bench.data.split("dev"))
    asked = []

    def outcome(_, question):
        asked.append(question.id)
        return None if question.id == deadly else slowly(question)

    async def slowly(question):
        await asyncio.sleep(0.02)
        return row(question)

    bench = Workbench(bench.config.model_copy(update={"max_unanswered": 1 / len(others)}))
    evaluation = evaluated(bench, ScriptedRay(outcome))
    assert [one.question.id for one in evaluation.rows if not one.is_answered] == [deadly]
    assert "each of the 3 workers that were asked it died" in evaluation.rows[0].failure
    assert asked.count(deadly) == 3


def test_workers_that_all_die_end_the_work_in_one_line_and_the_same_command_goes_on(bench):
    first = {question.id for question in bench.data.split("dev")[:5]}
    ray = ScriptedRay(lambda _, question: row(question) if question.id in first else None)
    patient = Workbench(bench.config.model_copy(update={"max_unanswered": 0.9}))
    with pytest.raises(ServiceError, match="6 workers in a row died before they answered a question"):
        evaluated(patient, ray)
    asked = []
    evaluated(bench, ScriptedRay(lambda _, question: asked.append(question.id) or row(question)))
    assert len(asked) == 12 - 5
    assert not first & set(asked)


def test_what_a_worker_lacks_is_one_line_with_the_node(bench):
    ray = ScriptedRay(lambda _, question: row(question), Refusal("data: no such folder"))
    with pytest.raises(UserError, match=r"worker on node-\d: data: no such folder"):
        evaluated(bench, ray)
    assert len(ray.killed) == 2


NO_SPACE = "no space is left on the disk ([Errno 28] No space left on device: '/data/x')"


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Refusal(NO_SPACE, is_outage=True), r"worker on node-\d: no space is left on the disk \(\[Errno 28\]"),
        (Refusal("lm.default: no answer", is_outage=True), r"worker on node-\d: lm\.default: no answer"),
        (
            ScriptedRay.exceptions.OutOfDiskError("Local disk is full\nThe object cannot be created"),
            r"executor=ray: no space is left on a node's disk, .* \(Local disk is full\); free some",
        ),
    ],
)
def test_what_a_node_can_do_no_more_is_one_line(bench, outcome, line):
    with pytest.raises(ServiceError, match=line) as raised:
        evaluated(bench, ScriptedRay(lambda _, question: outcome))
    assert "\n" not in str(raised.value)


def test_an_answer_that_is_lost_on_its_way_is_asked_for_again(bench):
    lost = ScriptedRay.exceptions.ObjectLostError("Failed to retrieve object 00ff")
    ray = ScriptedRay(lambda number, question: row(question) if number > 1 else lost)
    assert len(evaluated(bench, ray).rows) == 12
    assert ray.made == 4


def test_what_a_workers_code_raises_leaves_its_place_to_the_next(bench):
    ray = ScriptedRay(
        lambda _, question: ScriptedRay.exceptions.RayTaskError("a bug") if question == "bad" else question
    )

    async def asked():
        async with Pool(Workers(ray, RayExecutor(name="ray", tasks=1), Worker), 1, ({}, None), share=1) as pool:
            for _ in range(3):
                with pytest.raises(ScriptedRay.exceptions.RayTaskError):
                    await pool.ask("bad")
            return await asyncio.wait_for(pool.ask("good"), 10)

    assert asyncio.run(asked()) == "good"


class Unmade(ScriptedRay.exceptions.RayActorError):
    actor_init_failed = True


FOREIGN = "The actor with name Worker failed to import on the worker.\n\nTraceback ...\nModuleNotFoundError: none"


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (
            Unmade("The actor died because of an error raised in its creation task, ray::W (ip=10.0.0.7)\nx: y"),
            UserError,
            r"a worker can't start on 10\.0\.0\.7 \(x: y\); install the same versions",
        ),
        (
            ScriptedRay.exceptions.RayTaskError(FOREIGN),
            UserError,
            r"a worker can't start on a node \(ModuleNotFoundError: none\); install the same versions",
        ),
        (ScriptedRay.exceptions.RayTaskError("a bug"), ScriptedRay.exceptions.RayTaskError, "a bug"),
    ],
)
def test_a_worker_that_can_never_start_ends_the_work_at_once(bench, monkeypatch, error, kind, line):
    ray = ScriptedRay(lambda _, question: row(question))
    monkeypatch.setattr(ray, "refusal", error)
    with pytest.raises(kind, match=line):
        evaluated(bench, ray)
    assert ray.made == 2


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_head_that_stays_away_ends_the_work_in_one_line_with_what_was_answered_kept(bench, monkeypatch, comes_back):
    monkeypatch.setattr(head, "_PAUSE", 0.02)
    monkeypatch.setattr(head, "_LIMIT", 0.3)
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    asked = []

    def answer(_, question):
        asked.append(question.id)
        return row(question) if comes_back or len(asked) < 6 else asyncio.sleep(60)

    ray = ScriptedRay(answer, head=f"127.0.0.1:{address[1]}")
    server.close()
    if comes_back:
        with socket.create_server(address):
            assert len(evaluated(bench, ray).rows) == 12
        return
    line = r"the cluster's head at 127\.0\.0\.1:\d+ has given no answer for 0\.3 s; what was answered is kept"
    with pytest.raises(ServiceError, match=line):
        evaluated(bench, ray)
    assert 1 <= len(KeptRows(bench, None).read(bench.data.split("dev"))) <= 6


def test_a_study_ends_with_the_head_and_no_cell_of_it_counts_as_failed(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(head, "_PAUSE", 0.02)
    monkeypatch.setattr(head, "_LIMIT", 0.3)
    ray = ScriptedRay(lambda _, question: asyncio.sleep(60))
    monkeypatch.setattr(together, "connected", lambda _: contextlib.nullcontext(ray))
    scorings = [Scoring(bench.config, "dev", None, lambda *_: None) for _ in range(5)]
    ended = together.answer_on_cluster(scorings, Tracker(f"sqlite:///{tmp_path}/m.db", "x"), RayExecutor(name="ray"))
    with pytest.raises(ServiceError, match=r"head at .* has given no answer for 0\.3 s"):
        list(ended)
    assert ray.made == RayExecutor(name="ray").tasks  # no cell was begun after that


@pytest.mark.parametrize(("limit", "workers", "share"), [(9, 3, 3), (2, 2, 1), (None, 3, CONNECTIONS)])
def test_cells_that_are_compiled_at_once_share_the_calls_at_once(bench, monkeypatch, limit, workers, share):
    ray = ScriptedRay(lambda *_: "compiled")
    monkeypatch.setattr(together, "connected", lambda _: contextlib.nullcontext(ray))
    values = unmasked(bench.config) | {"lm": {"default": {"max_concurrency": limit}, "judge": {"max_concurrency": 16}}}
    orders = [Order(values, "", Node.for_models(()), {}) for _ in range(3)]
    assert len(list(compile_on_cluster(orders, [silent] * 3, RayExecutor(name="ray", tasks=8)))) == 3
    assert ray.told == [(workers,)] * workers
    monkeypatch.setattr(slots, "_processes", [1])
    asyncio.run(CellWorker().start(*ray.told[0]))
    assert build_lm(LMSettings(model="openai/x", max_concurrency=limit)).slots.number == share


@pytest.mark.parametrize(("limit", "workers", "share"), [(9, 3, 3), (2, 2, 1), (None, 3, CONNECTIONS)])
def test_workers_that_answer_share_the_calls_at_once(monkeypatch, tmp_path, limit, workers, share):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path))
    monkeypatch.setattr(slots, "_processes", [1])
    ray = ScriptedRay(lambda _, question: row(question))
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon") as server:
        lm = {"model": "openai/x", "api_base": server.url, "api_key": "x", "max_concurrency": limit}
        data = {"name": "atlas", "dev": 12}
        evaluated(Workbench(make_config({"data": data, "program": "direct", "lm": lm})), ray, tasks=3)
        assert len(ray.told) == workers
        worker = Worker()
        assert asyncio.run(worker.start(*ray.told[0])) is None
        assert worker._bench.lms["default"].slots.number == share
        worker.close()


def test_progress_of_cells_that_workers_compile_is_told_where_the_study_runs(monkeypatch):
    monkeypatch.setattr(on_cluster, "_LOOK", 0.01)

    async def compiled():
        await asyncio.sleep(0.2)
        return "compiled"

    ray, told = ScriptedRay(lambda *_: compiled()), []
    monkeypatch.setattr(together, "connected", lambda _: contextlib.nullcontext(ray))
    orders = [Order({"lm": {}}, "", Node.for_models(()), {}) for _ in range(2)]
    reports = [lambda *given, name=name: told.append((name, *given)) for name in "ab"]
    assert len(list(compile_on_cluster(orders, reports, RayExecutor(name="ray")))) == 2
    assert {("a", "stage of 0", 1, 2, ""), ("b", "stage of 1", 1, 2, "")} == {*told}


def test_a_worker_that_compiles_a_cell_says_how_far_it_is(tmp_path):
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon") as server:
        lm = {"model": "openai/x", "api_base": server.url, "api_key": "x"}
        store, optimizer = f"sqlite:///{tmp_path}/runs.db", {"name": "labeled_few_shot", "k": 1}
        config = make_config(
            CONFIG | {"program": "direct", "lm": lm, "optimizer": optimizer, "tracking": {"uri": store}}
        )
        Tracker(store, "x")  # makes the store, without which a worker would not have the driver's
        order = Order(unmasked(config), Workbench(config).data.digest, Node.for_models(()), {"split": "dev"})
        worker = CellWorker()
        assert asyncio.run(worker.answer(order)) is None
    stages = {stage: (done, total) for stage, done, total, _ in asyncio.run(worker.progress())}
    assert (12, 12) in stages.values()
    assert asyncio.run(worker.progress()) == []


def test_one_watch_of_the_head_serves_all_who_need_it_and_ends_them_all(monkeypatch):
    monkeypatch.setattr(head, "_PAUSE", 0.2)
    monkeypatch.setattr(head, "_LIMIT", 0.3)
    looks = []

    async def waits(watched):
        async with watched.needed():
            await asyncio.sleep(60)

    async def look(_, writer):
        looks.append(writer)
        writer.close()

    async def ended():
        server = await asyncio.start_server(look, "127.0.0.1", 0)
        watched = head.Head(ScriptedRay(None, head=f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        waiting = [asyncio.create_task(waits(watched)) for _ in range(20)]
        while not looks:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # others would look now, too
        looked = len(looks)
        server.close()
        return looked, await asyncio.gather(*waiting, return_exceptions=True)

    looked, outcomes = asyncio.run(ended())
    assert looked < 20
    assert all(isinstance(outcome, ServiceError) for outcome in outcomes)


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
    task = {"data": bench.data.digest, "node": Node.for_models(())} | task
    told = asyncio.run(worker.start(values or unmasked(bench.config), Task(**task)))
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


class Here:
    """An actor's handle, in tests of what is asked of it: the actor is an object of this process, with its own loop."""

    def __init__(self, actor):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        for name in ("get", "set", "claim", "release"):
            setattr(self, name, SimpleNamespace(remote=partial(self._ask, getattr(actor, name))))

    def _ask(self, method, *words):
        async def asked():
            found = method(*words)
            return await found if asyncio.iscoroutine(found) else found

        answer = asyncio.run_coroutine_threadsafe(asked(), self._loop)
        return SimpleNamespace(future=lambda: answer)


@pytest.mark.parametrize("cache", [True, False])
def test_a_worker_keeps_answers_with_the_driver_and_asks_it_first(bench, tmp_path, monkeypatch, cache):
    monkeypatch.setattr(disk_cache, "_elsewhere", [])
    monkeypatch.setattr(dspy, "cache", dspy.cache)
    store = AnswerStore(tmp_path / "driver")
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "node"))
    questions = bench.data.split("dev")[:3]
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon") as server:
        lm = {"model": "openai/x", "api_base": server.url, "api_key": "x", "cache": cache}
        config = make_config({"data": "atlas", "program": "direct", "lm": lm})
        for _ in range(2):  # the second one, on any node, has the first one's answers
            worker = Worker(Here(store))
            task = Task(Workbench(config).data.digest, Node.for_models(()))
            assert asyncio.run(worker.start(unmasked(config), task)) is None
            assert [asyncio.run(worker.answer(question)).answer for question in questions] == ["Lyon"] * 3
            worker.close()
        assert len(server.bodies) == (3 if cache else 6)
    assert not (tmp_path / "node" / "cache" / "answers").exists()
    assert len(AnswerCache(tmp_path / "driver").disk_cache._disk) == (3 if cache else 0)


@pytest.mark.parametrize("answered", [True, False])
def test_workers_that_wait_for_a_call_of_another_one_go_on_together_when_it_ends(tmp_path, answered):
    handle = Here(AnswerStore(tmp_path))
    made = []

    async def call(store, seconds):
        await store.claim("call", 60)
        if not await asyncio.to_thread(store.get, "call"):
            made.append(store)
            await asyncio.sleep(seconds)
            if answered:
                await asyncio.to_thread(store.set, "call", "Lyon")
        store.release("call")

    async def calls():
        first, *others = [AskedStore(handle) for _ in range(4)]
        going = asyncio.create_task(call(first, 0.3))
        await asyncio.sleep(0.1)
        start = time.monotonic()
        await asyncio.gather(going, *(call(other, 0.3) for other in others))
        return time.monotonic() - start

    assert asyncio.run(calls()) < 0.8  # one after the other would take 1.2
    assert len(made) == (1 if answered else 4)


@pytest.mark.parametrize(("silence", "patience"), [(0.2, 60), (60, 0.2)], ids=["dead", "slow"])
def test_one_worker_alone_takes_over_a_call_that_never_ends(tmp_path, monkeypatch, silence, patience):
    monkeypatch.setattr(answers, "_SILENCE", silence)

    async def calls():
        store = AnswerStore(tmp_path)
        await store.claim("call", "first", patience)
        waiting = [asyncio.create_task(store.claim("call", str(n), patience)) for n in range(9)]
        await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert sum(task.done() for task in waiting) == 1
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        await asyncio.wait_for(store.claim("another", "last", patience), 1)

    asyncio.run(calls())


def test_a_call_that_is_cancelled_or_fails_is_claimed_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "_elsewhere", [])
    store = AnswerStore(tmp_path)
    disk_cache.keep_elsewhere(elsewhere := AskedStore(Here(store)))
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path / "node", disk=elsewhere))
    with ChatServer(seconds=0.3, failing=9, status=400) as server:
        lm = build_lm(LMSettings(model="openai/x", api_base=server.url, api_key="x", num_retries=0))

        async def calls():
            cancelled = asyncio.create_task(lm.acall("Where?"))
            failing = asyncio.create_task(lm.acall("When?"))
            while len(server.bodies) < 2:
                await asyncio.sleep(0.01)
            claimed = len(store._claims)
            cancelled.cancel()
            with pytest.raises(LMError):
                await failing
            await asyncio.sleep(0.1)
            return claimed

        assert asyncio.run(calls()) == 2
    assert not store._claims


@pytest.mark.parametrize(
    ("task", "changed", "line"),
    [
        ({"node": Node({"hoptimizer": "0.0.1"})}, {}, "it has hoptimizer .* and not 0.0.1; install the same versions"),
        ({"data": "another"}, {}, "data: .* holds other data than the driver's; copy it to all nodes"),
        ({}, {"data": "/nowhere/set"}, "/nowhere/set: no such folder"),
        ({}, {"lm": "local/nothing-like-it"}, "lm.default: local/nothing-like-it: neither a name of the weights store"),
    ],
)
def test_what_a_worker_finds_different_or_missing_is_one_line(bench, monkeypatch, task, changed, line):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, told = started(bench, unmasked(bench.config) | changed, **task)
    assert re.match(line, told.message)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"node": Node({"hoptimizer": "0.0.1"})}, "it has hoptimizer .* and not 0.0.1; install the same versions"),
        ({"data": "another"}, "data: .* holds other data than the driver's; copy it to all nodes"),
        ({}, "tracking.uri: the driver's file of runs is not here; give a server's"),
    ],
)
def test_what_a_worker_lacks_that_is_to_compile_a_cell_is_one_line(bench, tmp_path, changed, line):
    values = unmasked(bench.config) | {"tracking": {"uri": f"sqlite:///{tmp_path}/elsewhere.db"}}
    order = replace(Order(values, bench.data.digest, Node.for_models(()), {}), **changed)
    assert re.match(line, asyncio.run(CellWorker().answer(order)).message)
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_disk_that_takes_no_more_is_what_a_worker_says(bench, monkeypatch):
    worker, told = started(bench)
    assert told is None

    async def full(*_):
        raise RuntimeError("a library's own words") from OSError(28, "No space left on device", "/data/x")

    monkeypatch.setattr("hoptimizer.executors.worker.ask", full)
    outcome = asyncio.run(worker.answer(bench.data.split("dev")[0]))
    assert (outcome.message, outcome.is_outage) == (f"{NO_SPACE}; mend that, and give the same command again", True)
    worker.close()


@pytest.fixture
def vectors(monkeypatch, tmp_path):
    """An index in a home of its own, of a corpus of three windows, with two passages that are too long; gives
    ``elsewhere -> the bytes of its files``."""
    monkeypatch.setattr("hoptimizer.retrieval.encoders.windows.WINDOW", 12)
    long = [Passage(name, "", f"The {name} sleeps. " * 150) for name in ("owl", "cat")]
    corpus = Corpus([*long, *load("atlas").corpus.passages[:28]])
    models = home() / "models"

    def build(settings, name, elsewhere=None):
        if not (tmp_path / name).exists():
            (tmp_path / name).mkdir()
            (tmp_path / name / "models").symlink_to(models)
        monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / name))
        told = []
        build_retriever(settings, corpus, elsewhere=elsewhere, progress=lambda *done: told.append(done))
        assert told[-1] == (30, 30)
        files = sorted(file for file in (tmp_path / name / "indexes").rglob("*") if file.is_file())
        return {file.name: file.read_bytes() for file in files}

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a worker has one; with AMX, sums depend on how many there are
    yield build
    torch.set_num_threads(threads)


def encoding_elsewhere(sizes, windows_until_the_end=None):
    """What encodes windows as a worker does, and ends after so many; ``sizes`` gets those of the windows it took."""

    @contextlib.contextmanager
    def elsewhere(settings, digest, passages):
        worker, threads = PassageWorker(), torch.get_num_threads()
        torch.set_num_threads(1)  # as Ray does for a worker with one CPU
        assert asyncio.run(worker.start(EncodingTask(settings.model_dump(), digest))) is None

        def each(windows):
            ahead = list(windows)  # other processes take several at once
            sizes.extend(map(len, ahead))
            for number, window in enumerate(ahead):
                if number == windows_until_the_end:
                    raise ServiceError("the cluster's head has given no answer")
                yield _tensors(asyncio.run(worker.answer(window)))

        try:
            yield each
        finally:
            torch.set_num_threads(threads)

    return elsewhere


VECTORS = pytest.mark.parametrize(
    "settings", [DenseSettings(), RetrieverSettings(index="exact")], ids=["dense", "colbert"]
)


@VECTORS
def test_an_index_of_vectors_from_elsewhere_is_the_one_of_this_process(vectors, settings):
    sizes = []
    assert vectors(settings, "elsewhere", encoding_elsewhere(sizes)) == vectors(settings, "here")
    assert sizes == [12, 12, 6]


@VECTORS
def test_what_is_cut_elsewhere_is_said_here(vectors, settings, caplog):
    vectors(settings, "elsewhere", encoding_elsewhere([]))
    [record] = caplog.records
    assert record.getMessage().startswith("retriever: 2 of the encoded passages are longer than ")


@VECTORS
def test_an_index_that_others_began_goes_on_with_others_and_here(vectors, settings):
    sizes = []
    for _ in range(2):
        with pytest.raises(ServiceError, match="no answer"):
            vectors(settings, "elsewhere", encoding_elsewhere(sizes, 1))
    assert sizes == [12, 12, 6, 12, 6]  # the second time without the first window
    assert vectors(settings, "elsewhere") == vectors(settings, "here")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"node": Node({"torch": "1.0"})}, "it has torch .* and not 1.0; install the same versions on all nodes"),
        ({"digest": "another"}, "dense all-minilm-l6-v2: its model there is another one than the driver's; copy it"),
        (
            {"settings": {"name": "dense", "model": "/nowhere/x"}},
            "retriever.model: '/nowhere/x' is no folder and no hub id",
        ),
    ],
)
def test_what_an_encoding_worker_lacks_is_one_line(changed, line):
    task = {"settings": DenseSettings().model_dump(), "digest": ""} | changed
    told = asyncio.run(PassageWorker().start(EncodingTask(**task)))
    assert re.match(line, told.message)
