"""The calls of one piece of work: kept, counted, and ended by a budget."""

import asyncio
import json
import os
import time
from functools import partial

import dspy
import pytest
from chat_server import ChatServer
from dspy.utils.parallelizer import ParallelExecutor
from safetensors.torch import load_file, save_file
from scripted import ScriptedEngine
from small_models import tiny_lm

from hoptimizer.config import load_config
from hoptimizer.eval import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.models import LMSettings, build_lm
from hoptimizer.models import usage as calls
from hoptimizer.models.engine.engine import generator
from hoptimizer.models.lm import tuned
from hoptimizer.models.settings import server_in_environment
from hoptimizer.models.usage import AnswerCache, BudgetExhausted, CallCache, Usage, UsageMeter
from hoptimizer.optimizers.labels.examples import TrainingExample
from hoptimizer.optimizers.labels.labelling import PendingExample, collect
from hoptimizer.workbench import Workbench, use_cache


@pytest.fixture(autouse=True)
def cache():
    before = dspy.cache
    yield
    dspy.cache = before


def test_time_that_was_spent_ends_no_call_that_was_answered_in_it(tmp_path):
    engine = ScriptedEngine(lambda *_: "words")
    lm = engine.lm(temperature=0.0)
    dspy.cache = CallCache(tmp_path / "calls", None)
    with dspy.context(meter=UsageMeter(lambda spent: spent.seconds > 60)):
        lm("one")
    dspy.cache = CallCache(tmp_path / "calls", None)
    with dspy.context(meter=UsageMeter(lambda spent: spent.seconds > 60, seconds=61)):
        lm("one")
        with pytest.raises(BudgetExhausted):
            lm("two")
    assert engine.calls == 1


@pytest.fixture
def shared(tmp_path):
    return dspy.clients.cache.Cache(
        enable_disk_cache=True, enable_memory_cache=True, disk_cache_dir=str(tmp_path / "shared"), restrict_pickle=True
    )


@pytest.fixture
def priced(monkeypatch):
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return dspy.LM("openai/gpt-4o-mini", engine="litellm", api_key="none", mock_response="words")


def test_money_that_was_spent_ends_no_call_that_was_answered_for_it(tmp_path, priced):
    def budget(spent):
        return spent.usd > 0

    dspy.cache = CallCache(tmp_path / "calls", None)
    with dspy.context(meter=UsageMeter(lambda spent: False)):
        both = priced("one"), priced("two")  # asked before the answer of either
    dspy.cache = CallCache(tmp_path / "calls", None)
    with dspy.context(meter=UsageMeter(budget)):
        assert (priced("one"), priced("two")) == both
        with pytest.raises(BudgetExhausted):
            priced("three")


def test_a_call_through_litellm_has_its_price_also_from_a_cache(tmp_path, shared, priced):
    spent = []
    for folder in ("first", "first", "second"):
        dspy.cache = CallCache(tmp_path / folder, shared)
        meter = UsageMeter(lambda spent: False)
        with dspy.context(meter=meter):
            priced("one")
        spent.append((meter.spent.calls, meter.spent.prompt_tokens, meter.spent.completion_tokens, meter.spent.usd))
    assert len(set(spent)) == 1
    assert min(spent[0]) > 0


def test_the_end_of_a_budget_ends_a_collection_as_itself(tmp_path):
    async def label():
        raise BudgetExhausted

    with pytest.raises(BudgetExhausted):
        collect(
            [PendingExample({"question": f"{n}?"}, label) for n in range(3)],
            tmp_path / "rows.jsonl",
            2,
            lambda *_: None,
        )


def test_a_collection_that_was_killed_spends_what_it_would_have(tmp_path):
    engine = ScriptedEngine(lambda *_: "words")
    lm = engine.lm(temperature=0.0)

    def collected(lm):
        async def label(number):
            return TrainingExample({"question": f"{number}?"}, (await lm.acall(f"{number}?"))[0])

        dspy.cache = CallCache(tmp_path / "calls", None)
        meter = UsageMeter(lambda spent: False)
        pending = [PendingExample({"question": f"{n}?"}, partial(label, n)) for n in range(3)]
        with dspy.context(meter=meter):
            examples = collect(pending, tmp_path / "rows.jsonl", 2, lambda *_: None)
        return examples, meter.spent.calls

    undisturbed = collected(lm)
    assert undisturbed[1] == engine.calls == 3
    assert collected(lm) == undisturbed
    assert engine.calls == 3


def test_a_call_that_a_shared_cache_has_without_its_price_is_made_again(tmp_path, shared, priced):
    dspy.cache = shared  # an evaluation's
    priced("one")
    dspy.cache = CallCache(tmp_path / "calls", shared)
    meter = UsageMeter(lambda spent: False)
    with dspy.context(meter=meter):
        priced("one")
    assert meter.spent.usd > 0
    assert dspy.cache.computed == 1


def test_two_servers_that_call_their_models_alike_share_no_answers(tmp_path):
    dspy.cache = CallCache(tmp_path / "calls", None)
    with ChatServer(lambda body: "of one") as one, ChatServer(lambda body: "of another") as another:
        lms = [dspy.LM("openai/m", api_base=server.url, api_key="none", temperature=0) for server in (one, another)]
        assert [lm("the same")[0] for lm in (*lms, *lms)] == ["of one", "of another"] * 2
        assert [len(server.bodies) for server in (one, another)] == [1, 1]


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_two_servers_that_the_environment_names_share_no_answers(tmp_path, monkeypatch, variable):
    lm = build_lm(LMSettings(model="openai/m", api_key="none", num_retries=0))
    with ChatServer(lambda body: "alpha") as one, ChatServer(lambda body: "beta") as another:
        said = []
        for server in (one, another, one, another):
            monkeypatch.setenv(variable, server.url)
            dspy.cache = CallCache(tmp_path / "calls", AnswerCache(tmp_path / "shared"))
            said += lm("the same")
        assert said == ["alpha", "beta"] * 2
        assert [len(server.bodies) for server in (one, another)] == [1, 1]
        dspy.cache = AnswerCache(tmp_path / "shared")
        assert build_lm(LMSettings(model="openai/m", api_base=another.url, api_key="none"))("the same") == ["beta"]
        assert len(another.bodies) == 1, "it is the same server, whatever names it"


@pytest.mark.parametrize("variable", ["AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_RESOURCE", "AZURE_API_BASE"])
def test_a_deployment_of_azures_is_another_one_on_another_resource(monkeypatch, variable):
    found = []
    for value in ("https://one.example.org", "https://another.example.org"):
        monkeypatch.setenv(variable, value)
        found.append(server_in_environment("azure/deployed"))
    assert found == ["https://one.example.org", "https://another.example.org"]


def test_a_judge_is_asked_once_about_an_answer_from_threads_and_from_async_code(tmp_path):
    dspy.cache = CallCache(tmp_path / "calls", None)
    meter, answer = UsageMeter(lambda spent: False), dspy.Prediction(answer="the city of Lyon", passages=[], steps=[])
    question = Question(id="1", question="Where is it?", answers=["Lyon"])
    with (
        ChatServer(lambda body: "[[ ## correct ## ]]\nTrue\n\n[[ ## completed ## ]]", seconds=0.3) as server,
        dspy.context(meter=meter, adapter=dspy.ChatAdapter()),
    ):
        judge = build_lm(LMSettings(model="openai/judge", api_base=server.url, api_key="none"))
        objective = Objective((("accuracy", 1.0),), judge=judge)
        threads = ParallelExecutor(num_threads=6, disable_progress_bar=True)
        assert threads.execute(lambda one: objective(one, answer), [question] * 6) == [1.0] * 6
        assert asyncio.run(objective.ascore(question, answer, judge)).values["accuracy"] == 1.0
        assert (len(server.bodies), meter.spent.calls) == (1, 1)


def test_dspys_own_cache_keeps_no_answer_of_a_server_that_the_environment_names(monkeypatch):
    dspy.cache = dspy.clients.cache.Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    lm = build_lm(LMSettings(model="openai/m", api_key="none"))
    assert lm.cache
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert not lm.cache


def retrain(folder):
    """Other weights in a model's folder, as a training leaves them."""
    file = folder / "model.safetensors"
    # With them the likeliest token is the least likely.
    save_file({name: -weights for name, weights in load_file(file).items()}, file, {"format": "pt"})


@pytest.mark.parametrize("fine_tuned", [True, False])
def test_a_model_that_was_trained_again_in_its_folder_does_not_answer_with_its_earlier_weights(tmp_path, fine_tuned):
    base, folder = tiny_lm(tmp_path / "base"), tiny_lm(tmp_path / "lm")

    def asked(command):
        dspy.cache = CallCache(tmp_path / command, AnswerCache(tmp_path / "shared"))
        settings = LMSettings(model=f"local/{base if fine_tuned else folder}", max_tokens=8)
        lm = tuned(build_lm(settings), f"local/{folder}") if fine_tuned else build_lm(settings)
        return lm("Where is Ulm?"), dspy.cache.computed

    earlier, _ = asked("first")
    assert asked("second") == (earlier, 0)
    retrain(folder)
    later, computed = asked("third")
    assert computed == 1
    assert later != earlier


def test_weights_are_looked_at_once_for_all_calls_of_a_model(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(calls, "fingerprints", lambda names: looked.extend(names) or "weights")
    dspy.cache = AnswerCache(tmp_path / "shared")
    lm = build_lm(LMSettings(model=f"local/{tiny_lm(tmp_path / 'lm')}", max_tokens=4))
    for question in ("Where is Ulm?", "Where is Bonn?"):
        lm(question)
    assert looked == [str(tmp_path / "lm")]


def test_time_goes_on_where_it_was(tmp_path):
    dspy.cache = CallCache(tmp_path / "calls", None)
    meter = UsageMeter(lambda spent: False, seconds=5)
    with dspy.context(meter=meter):
        ScriptedEngine(lambda *_: "words", delay=0.01).lm()("one")
    time.sleep(0.01)
    assert isinstance(meter.spent, Usage)
    assert 5 < CallCache(tmp_path / "calls", None).seconds < meter.spent.seconds


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_same_call_of_a_model_here_is_decoded_once(tmp_path, temperature):
    dspy.cache = AnswerCache(tmp_path)
    settings = LMSettings(model="local/smollm2-135m-instruct", max_tokens=8, temperature=temperature)
    lm, model = build_lm(settings), generator("local/smollm2-135m-instruct")

    async def answers():
        before = model.counts.completion_tokens
        return await asyncio.gather(*(lm.acall("Where?") for _ in range(8))), model.counts.completion_tokens - before

    said, written = asyncio.run(answers())
    assert len({*map(str, said)}) == 1
    assert 0 < written <= 8


def test_the_judge_of_another_work_leaves_the_readers_answers_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path))
    with ChatServer() as server:
        for judge in ("one", "another"):
            names = {"default": "reader", "judge": judge}
            models = {role: {"model": f"openai/{name}", "api_base": server.url} for role, name in names.items()}
            config = load_config(None, ["data=atlas", "program=direct", f"lm={json.dumps(models)}"])
            use_cache(config)
            lms = Workbench(config).lms
            for role in lms:
                lms[role]("Where?")
    assert [body["model"] for body in server.bodies] == ["reader", "one", "another"]
