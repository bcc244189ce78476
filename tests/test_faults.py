"""Servers that fail: every question is answered or left out, nothing is asked again that was answered."""

import asyncio
import http.server
import json
import threading
from collections import Counter

import dspy
import pytest
import tenacity
from chat_server import ChatServer
from faulty_server import FAULTS, FaultyServer
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from hoptimizer import (
    answer_all,
    compare_variants,
    compile_variant,
    evaluate_variant,
    load_config,
    load_study,
    run_study,
)
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.eval import Question, evaluate
from hoptimizer.models import LMSettings, build_adapter, build_lm, served
from hoptimizer.programs import Direct
from hoptimizer.retrieval import ColBERTServer, Corpus, Passage
from hoptimizer.tracking.tracker import Tracker

ANSWER = "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"


@pytest.fixture(autouse=True)
def nothing_cached_and_short_waits(monkeypatch, tmp_path):
    cache = dspy.clients.cache.Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    monkeypatch.setattr(dspy, "cache", cache)
    monkeypatch.setattr(served, "_backoff", tenacity.wait_random_exponential(multiplier=0.02, max=0.5))
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))


def questions(n):
    return [Question(id=str(i), question=f"Where is {i}?", answers=["Lyon"]) for i in range(n)]


def answers(server, n, max_unanswered=0.0, **settings):
    lm = build_lm(LMSettings(model="openai/some-model", api_base=server.url, **settings))
    with dspy.context(lm=lm, adapter=build_adapter()):
        return lm, evaluate(Direct(), questions(n), max_unanswered=max_unanswered)


def asked(server):
    return Counter(json.dumps(body["messages"]) for body in server.bodies)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_once_is_asked_once_more(fault):
    with FaultyServer(lambda number, _: fault if number == 1 else None, answer=lambda _: ANSWER, hang=2.0) as server:
        _, evaluation = answers(server, 1, timeout=1.0)
    assert (evaluation.metrics["em"], len(server.bodies)) == (1.0, 2)


def test_all_questions_are_answered_by_a_server_that_fails_on_a_third_of_its_calls():
    with FaultyServer(share=0.3, answer=lambda _: ANSWER, hang=4.0) as server:
        _, evaluation = answers(server, 60, timeout=3.0, num_retries=12)
    assert (evaluation.metrics["em"], evaluation.metrics["unanswered"]) == (1.0, 0.0)
    assert len(server.failed) > 6
    assert len(asked(server)) == 60
    # Whatever got an answer was not asked again.
    assert len(server.bodies) == 60 + sum(server.failed.values())


def test_a_server_that_allows_few_calls_at_once_slows_a_run_and_fails_nothing():
    server = FaultyServer(lambda *_: "429" if server.running >= 5 else None, answer=lambda _: ANSWER, seconds=0.05)
    with server:
        lm, evaluation = answers(server, 100, num_retries=1)
    assert evaluation.metrics["em"] == 1.0
    assert server.failed["429"] > 0
    assert lm.slots.allowed < 20


def test_a_wait_that_is_asked_for_is_kept_and_said(monkeypatch, caplog):
    monkeypatch.setattr(served, "_LONG_WAIT", 0.5)
    with FaultyServer(lambda number, _: "429 with Retry-After" if number == 1 else None) as server:
        lm = build_lm(LMSettings(model="openai/some-model", api_base=server.url))
        assert lm("Where?") == ["words"]
    assert "openai/some-model is busy: its server is asked again in" in caplog.text


@pytest.mark.parametrize("fault", ["429 with Retry-After", "503 with Retry-After"])
def test_a_wait_that_is_too_long_is_none(fault):
    with FaultyServer(lambda *_: fault) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "_LONGEST_WAIT", 0.5)
        with pytest.raises(ServiceError, match="1 of 1 questions got no answer"):
            answers(server, 1)
    assert len(server.bodies) == 1


def test_questions_without_an_answer_are_left_out_of_the_means():
    fails = {"Where is 2?", "Where is 5?"}
    with FaultyServer(answer=lambda _: ANSWER) as server:
        server.faults = lambda _, body: "503" if any(one in str(body) for one in fails) else None
        _, evaluation = answers(server, 20, max_unanswered=0.1, num_retries=1)
        with pytest.raises(ServiceError, match=r"2 of 20 questions got no answer, and max_unanswered=0\.05 allows"):
            answers(server, 20, max_unanswered=0.05, num_retries=1)
    assert [evaluation.metrics[name] for name in ("em", "unanswered", "failures")] == [1.0, 2.0, 0.0]
    assert [row.question.id for row in evaluation.rows if not row.is_answered] == ["2", "5"]
    assert all(not row.scores and "503" not in row.answer for row in evaluation.rows if not row.is_answered)


@pytest.mark.parametrize(
    ("status", "error"), [(401, "bad key"), (429, "You exceeded your current quota"), (404, "no such model")]
)
def test_what_no_other_call_can_overcome_ends_the_run_at_once(status, error):
    with (
        FaultyServer(lambda *_: None, failing=10**6, status=status, error=error) as server,
        pytest.raises(UserError, match="the language model can't be used") as caught,
    ):
        answers(server, 30, max_concurrency=1)
    assert not isinstance(caught.value, ServiceError)
    assert len(server.bodies) < 5


def config(folder, server, *words, retries=0):
    settings = [f"lm.default.api_base={server.url}", f"lm.default.num_retries={retries}"]
    store = f"tracking.uri=sqlite:///{folder}/mlflow.db"
    return ["program=direct", "lm.default=openai/some-model", *settings, store, *words]


def reply(body):
    """Right for half of the questions, in the chat prompt format."""
    question = body["messages"][-1]["content"]
    return f"[[ ## answer ## ]]\n{(len(question) % 2 and 'yes') or 'no'}\n\n[[ ## completed ## ]]"


def test_a_compile_ends_with_an_outage_and_the_same_command_makes_the_program_that_it_would_have_made(tmp_path):
    words = ["data=atlas", "data.train=12", "data.dev=8", "optimizer=bootstrap_random_search"]
    words += ["optimizer.num_candidate_programs=2", "optimizer.max_bootstrapped_demos=2"]
    states = []
    for name, fails_from in (("undisturbed", 10**9), ("disturbed", 25)):
        with FaultyServer(lambda number, _, fails_from=fails_from: "503" if number > fails_from else None) as server:
            server.answer = reply
            given = load_config(None, config(tmp_path / name, server, *words))
            (tmp_path / name).mkdir()
            if name == "disturbed":
                with pytest.raises(ServiceError, match="the language model gave no answer: LMServerError"):
                    compile_variant(given)
                runs = Tracker(given.tracking.uri, "atlas").client.search_runs(["1"])
                # What the search started from was scored before the outage, and has a run within that of the compile.
                [run] = [run for run in runs if MLFLOW_PARENT_RUN_ID not in run.data.tags]
                assert run.info.status == "FAILED"
                assert len(runs) == 2
                server.faults = lambda *_: None
            variant = compile_variant(given)
            assert max(asked(server).values()) == 2 if name == "disturbed" else 1
        states.append(Tracker(given.tracking.uri, "atlas").load_state(variant.run_id))
    assert states[0] == states[1]


def test_a_study_asks_again_what_got_no_answer(tmp_path):
    file = tmp_path / "twice.yaml"
    with FaultyServer(lambda number, _: "503" if number == 3 else None) as server:
        server.answer = reply
        given = config(tmp_path, server, "data=atlas", "data.dev=20", "workers=1")
        file.write_text("base: {data: atlas}\ngrid: {lm.default.top_p: [0.5]}\n")
        first = run_study(load_study(file, given))
        second = run_study(load_study(file, given))
        third = run_study(load_study(file, given))
        calls = len(server.bodies)
    assert [result.outcomes[0].unanswered for result in (first, second, third)] == [1, 0, 0]
    assert calls == 21
    assert second.run_id == third.run_id
    assert second.outcomes[0].run_id == third.outcomes[0].run_id


@pytest.mark.parametrize(("status", "kind"), [(503, ServiceError), (401, UserError)])
def test_a_question_that_is_asked_alone_fails_in_one_line(status, kind):
    with FaultyServer(lambda *_: None, failing=9, status=status) as server:
        lm = build_lm(LMSettings(model="openai/some-model", api_base=server.url, num_retries=0))
        with dspy.context(lm=lm, adapter=build_adapter()), pytest.raises(UserError, match="overloaded") as caught:
            answer_all(Direct(), ["Where is it?"])
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_a_retriever_that_fails_once_is_asked_again_and_one_that_is_down_ends_the_run(monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.colbert.server._BACKOFF", tenacity.wait_none())
    replies = [(502, {}), (200, {"topk": [{"text": "Lyon | A city.", "pid": 1, "score": 2.0}]})]
    with ChatServer() as server:
        server.get = lambda: replies.pop(0) if replies else (502, {})
        retriever = ColBERTServer(server.url, Corpus([]))
        [[passage]] = retriever.search(["Where?"], 1)
        with pytest.raises(ServiceError, match=r"no answer from .* \(502\)"):
            retriever.search(["Where?"], 1)
    assert passage.title == "Lyon"
    assert len(server.headers) == 2 + 4


def test_a_servers_passage_is_not_the_one_that_the_corpus_gave_its_number():
    corpus = Corpus([Passage("1", "Oslo", "A city.")])
    with ChatServer() as server:
        texts = ["Lyon | A city.", "Oslo | A city.", "Bonn | A city."]
        server.get = lambda: (200, {"topk": [{"text": text, "pid": n} for n, text in enumerate(texts, 1)]})
        [found] = ColBERTServer(server.url, corpus).search(["Where?"], 3)
    assert [(passage.id, passage.title) for passage in found] == [("server/1", "Lyon"), ("1", "Oslo"), ("3", "Bonn")]


def test_a_passage_that_the_corpus_has_twice_is_the_one_that_the_server_names():
    corpus = Corpus([Passage("a", "Oslo", "A city."), Passage("b", "Oslo", "A city.")])
    with ChatServer() as server:
        server.get = lambda: (200, {"topk": [{"text": "Oslo | A city.", "pid": pid} for pid in ("a", "b")]})
        [found] = ColBERTServer(server.url, corpus).search(["Where?"], 2)
    assert [passage.id for passage in found] == ["a", "b"]


def test_a_retriever_that_breaks_off_is_asked_again(monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.colbert.server._BACKOFF", tenacity.wait_none())
    whole = json.dumps({"topk": [{"text": "Lyon | A city.", "pid": 1, "score": 2.0}]}).encode()
    bodies = [whole[:10], whole]

    class BreakingOff(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(bodies.pop(0))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BreakingOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        [[passage]] = ColBERTServer(f"http://127.0.0.1:{server.server_port}", Corpus([])).search(["Where?"], 1)
        server.shutdown()
    assert (passage.title, bodies) == ("Lyon", [])


def test_a_retriever_gets_the_key_of_the_environment(monkeypatch):
    with ChatServer() as server:
        server.get = lambda: (
            (200, {"topk": []}) if "authorization" in server.headers[-1] else (401, {"error": "no key"})
        )
        retriever = ColBERTServer(server.url, Corpus([]))
        with pytest.raises(UserError, match=r"refuses \(401\): .*no key.*; a key comes from .* COLBERT_API_KEY"):
            retriever.search(["Where?"], 1)
        monkeypatch.setenv("COLBERT_API_KEY", "a-key")
        assert retriever.search(["Where?"], 1) == [[]]
        assert server.headers[-1]["authorization"] == "Bearer a-key"


def test_a_slow_retriever_is_asked_for_many_questions_at_once():
    together = threading.Barrier(32, timeout=10)  # no answer before so many were asked for

    def found():
        together.wait()
        return 200, {"topk": [{"text": "Lyon | A city.", "pid": 1, "score": 2.0}]}

    async def searches(retriever):
        return await asyncio.gather(*(retriever.asearch(f"Where is {n}?", 1) for n in range(64)))

    with ChatServer() as server:
        server.get = found
        rankings = asyncio.run(searches(ColBERTServer(server.url, Corpus([]))))
    assert [[passage.title for passage in ranking] for ranking in rankings] == [["Lyon"]] * 64


@pytest.mark.parametrize(
    "answered",
    [
        [],
        {"topk": 5},
        {"topk": [5]},
        {"topk": [{"text": 5, "pid": 1, "score": 2.0}]},
        {"topk": [{"text": "Lyon", "pid": 1, "score": "high"}]},
        {"topk": [{"text": "\ud800", "pid": 1, "score": 2.0}]},
    ],
)
def test_a_retriever_that_answers_something_else_is_no_retriever(answered):
    with ChatServer() as server:
        server.get = lambda: (200, answered)
        with pytest.raises(UserError, match="answered without 'topk' passages"):
            ColBERTServer(server.url, Corpus([])).search(["Where?"], 1)


def test_a_run_with_too_few_answers_has_failed(tmp_path):
    with FaultyServer(lambda number, _: "503" if number > 10 else None) as server:
        server.answer = reply
        given = load_config(None, config(tmp_path, server, "data=atlas", "data.dev=20", "workers=1"))
        with pytest.raises(ServiceError, match="2 of 20 questions got no answer"):
            evaluate_variant(given)
        tracker = Tracker(given.tracking.uri, "atlas")
        assert tracker.runs() == []
        [run] = tracker.client.search_runs([tracker.experiment.experiment_id])
        assert (run.info.status, "2 of 20 questions" in run.data.tags["hop.failure"]) == ("FAILED", True)
        given = load_config(None, config(tmp_path, server, "data=atlas", "data.dev=20", "max_unanswered=0.5"))
        partly = evaluate_variant(given)
        server.faults = lambda *_: None
        whole = evaluate_variant(given)
    compared = compare_variants(tracker, [whole.run_id, partly.run_id])
    assert [variant.unanswered for variant in compared.variants] == [0, 10]
    assert (compared.differences[0].n, compared.differences[0].difference) == (10, 0.0)
    # Ten were answered the first time, two got no answer then, and all ten got none the second time.
    assert Counter(asked(server).values()) == {1: 10, 2: 8, 3: 2}
