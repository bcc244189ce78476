"""What a question costs: tokens, price and latency, the same when answers come from a cache."""

import asyncio
import io
import json

import dspy
import mlflow
import pytest
from chat_server import ChatServer
from dspy.utils.exceptions import ContextWindowExceededError
from rich.console import Console
from scripted import ScriptedEngine, ScriptedLM, ScriptedRetriever

from hoptimizer import evaluate_variant, load_config
from hoptimizer.cli.screen import tables
from hoptimizer.eval import Question, evaluate
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.usage import AnswerCache, CallCache, UsageMeter
from hoptimizer.programs import RAG, Direct, StepRecord
from hoptimizer.programs.record import COST, counts

ANSWER = "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 10,
    "total_tokens": 1010,
    "prompt_tokens_details": {"cached_tokens": 600},
}
QUESTIONS = [Question(id=str(n), question=f"Where is {n}?", answers=["Lyon"], type="place") for n in range(4)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path / "answers"))


def costs(lm, program=None, questions=QUESTIONS):
    with dspy.context(lm=lm, adapter=build_adapter()):
        metrics = evaluate(program or Direct(), questions).metrics
    return {name: metrics[name] for name in COST if name in metrics}


# gpt-4o-mini: $0.15 per million prompt tokens, half of that where they were cached, $0.60 per million tokens written.
PRICE = (400 * 0.15 + 600 * 0.075 + 10 * 0.6) / 1e6


@pytest.mark.parametrize("through_litellm", [False, True])
def test_a_question_costs_the_same_when_its_answer_comes_from_a_cache(through_litellm, tmp_path):
    more = {"extra_body": {"key": 1}} if through_litellm else {}
    with ChatServer(lambda _: ANSWER, usage=USAGE) as server:
        settings = LMSettings(model="openai/gpt-4o-mini", api_base=server.url, **more)
        asked, repeated = costs(build_lm(settings)), costs(build_lm(settings))
        dspy.cache = AnswerCache(tmp_path / "answers")  # as another process opens it
        resumed = costs(build_lm(settings))
    assert len(server.bodies) == len(QUESTIONS)
    assert asked == repeated == resumed
    assert asked == {"prompt_tokens": 1000, "completion_tokens": 10, "cached_tokens": 600, "usd": pytest.approx(PRICE)}


def test_a_price_that_is_not_known_is_not_nothing():
    with ChatServer(lambda _: ANSWER) as server:
        found = costs(build_lm(LMSettings(model="openai/some-model", api_base=server.url)))
    assert found == {"prompt_tokens": 100, "completion_tokens": 10, "cached_tokens": 0}


def test_tokens_are_unknown_where_one_call_does_not_tell_them():
    with ChatServer(lambda _: ANSWER, usage=lambda body: None if "Where is 2?" in str(body) else USAGE) as server:
        lm = build_lm(LMSettings(model="openai/some-model", api_base=server.url))
        assert costs(lm) == {}
        assert costs(lm, questions=QUESTIONS[:2])["prompt_tokens"] == 1000
    assert costs(ScriptedLM(lambda *_: "Lyon")) == {}


def test_a_question_on_which_the_program_fails_costs_an_unknown_amount():
    class Failing(ScriptedEngine):
        def answer(self, request):
            if "Where is 2?" in request.messages[-1].text:
                raise ContextWindowExceededError(message="overloaded")
            return super().answer(request)

    lm = Failing(lambda *_: "Lyon").lm(num_retries=0)
    with dspy.context(lm=lm, adapter=build_adapter()):
        evaluation = evaluate(Direct(), QUESTIONS)
    assert [("prompt_tokens" in row.scores) for row in evaluation.rows] == [True, True, False, True]
    assert evaluation.metrics["completion_tokens"] == 10


def test_what_no_language_model_was_asked_for_costs_nothing():
    free = counts(asyncio.run(RAG(ScriptedRetriever({}), reader="none").acall(question="Where?")).steps)
    assert {name: free[name] for name in COST} == dict.fromkeys(COST, 0.0)
    records = [StepRecord("reader", "lm", {}, {}, calls=1, usd=0.1), StepRecord("reader", "lm", {}, {}, usd=None)]
    assert "usd" not in counts(records)
    assert counts(records)["prompt_tokens"] == 0


def test_both_calls_of_a_step_that_is_asked_twice_are_paid_for():
    def answer(body):
        return json.dumps({"answer": "Lyon"}) if "JSON" in str(body["messages"]) else "no such field"

    with ChatServer(answer) as server:
        found = costs(build_lm(LMSettings(model="openai/some-model", api_base=server.url)))
    assert (found["prompt_tokens"], found["completion_tokens"]) == (200, 20)


def test_tokens_of_a_model_in_this_process_are_counted():
    lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=8))
    asked, repeated = costs(lm, questions=QUESTIONS[:2]), costs(lm, questions=QUESTIONS[:2])
    assert asked == repeated
    assert asked["completion_tokens"] > 0
    assert asked["prompt_tokens"] > asked["cached_tokens"] >= 0
    assert "usd" not in asked


def test_a_compile_finds_the_price_of_what_an_evaluation_asked(tmp_path):
    with ChatServer(lambda _: ANSWER, usage=USAGE) as server:
        lm = build_lm(LMSettings(model="openai/gpt-4o-mini", api_base=server.url, extra_body={"key": 1}))
        lm("one")
        dspy.cache = CallCache(tmp_path / "calls", dspy.cache)
        meter = UsageMeter(lambda spent: False)
        with dspy.context(meter=meter):
            lm("one")
    assert len(server.bodies) == 1
    assert meter.spent.usd == pytest.approx(PRICE)


@pytest.mark.parametrize("through_litellm", [False, True])
def test_a_question_whose_calls_all_came_from_a_cache_says_nothing_of_latency(through_litellm):
    more = {"extra_body": {"key": 2}} if through_litellm else {"temperature": 0.7}
    with ChatServer(lambda _: ANSWER, usage=USAGE) as server:
        lm = build_lm(LMSettings(model="openai/gpt-4o-mini", api_base=server.url, **more))
        with dspy.context(lm=lm, adapter=build_adapter()):
            first, again, whole = (evaluate(Direct(), asked) for asked in (QUESTIONS[:2], QUESTIONS[:2], QUESTIONS))
    assert first.scores("cached_calls") == [0, 0]
    assert again.scores("cached_calls") == [1, 1]
    assert first.metrics["seconds_n"] == 2
    assert "seconds_median" in first.metrics
    assert again.metrics["seconds_n"] == 0
    assert not {"seconds_median", "seconds_p95"} & set(again.metrics)
    assert whole.metrics["seconds_n"] == len(QUESTIONS) - 2
    assert whole.metrics["seconds_median"] == pytest.approx(sum(whole.scores("seconds")[2:]) / 2)


def test_latency_is_given_as_median_and_95th_percentile():
    engine = ScriptedEngine(lambda *_: "Lyon", delay=0.02)
    with dspy.context(lm=engine.lm(cache=False), adapter=build_adapter()):
        evaluation = evaluate(Direct(), QUESTIONS, workers=1)
    seconds = sorted(evaluation.scores("seconds"))
    assert seconds[1] <= evaluation.metrics["seconds_median"] <= seconds[2]
    assert seconds[2] <= evaluation.metrics["seconds_p95"] <= seconds[3]
    assert evaluation.metrics["seconds_median"] > 0.02


def test_costs_are_in_the_run_and_in_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ChatServer(lambda _: ANSWER, usage=USAGE) as server:
        words = ["data=atlas", "data.dev=2", "program=direct", "lm.default.model=openai/some-model"]
        words += [f"lm.default.api_base={server.url}", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
        variant = evaluate_variant(load_config(None, words))
    logged = mlflow.get_run(variant.run_id).data.metrics
    assert logged["workings/dev/prompt_tokens"] == variant.as_dict()["metrics"]["prompt_tokens"] == 1000
    assert logged["workings/dev/cached_tokens"] == 600
    assert "dev/usd" not in logged
    assert {"workings/dev/seconds_median", "workings/dev/seconds_p95"} <= set(logged)
    table = mlflow.load_table("predictions/dev-after.json", [variant.run_id])
    assert list(table["completion_tokens"]) == [10, 10]
    console = Console(width=160, file=io.StringIO())
    console.print(tables.scores(variant))
    shown = console.file.getvalue()
    assert "1000.0" in shown
    assert "unknown" in shown
