"""The calls of one piece of work: kept, counted, and ended by a budget."""

import os
import time
from functools import partial

import dspy
import pytest
from chat_server import ChatServer
from scripted import ScriptedEngine

from hoptimizer.models.usage import BudgetExhausted, CallCache, Usage, UsageMeter
from hoptimizer.optimizers.labels.examples import TrainingExample
from hoptimizer.optimizers.labels.labelling import PendingExample, collect


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


def test_time_goes_on_where_it_was(tmp_path):
    dspy.cache = CallCache(tmp_path / "calls", None)
    meter = UsageMeter(lambda spent: False, seconds=5)
    with dspy.context(meter=meter):
        ScriptedEngine(lambda *_: "words", delay=0.01).lm()("one")
    time.sleep(0.01)
    assert isinstance(meter.spent, Usage)
    assert 5 < CallCache(tmp_path / "calls", None).seconds < meter.spent.seconds
