"""What many calls have in common is written once, and is what DSPy would write for each."""

import asyncio

import dspy
import pytest
from chat_server import ChatServer
from dspy.utils.callback import BaseCallback

from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.adapters import PlainAdapter, SchemaAdapter
from hoptimizer.models.reading_adapters import ReadingChatAdapter, ReadingJSONAdapter
from hoptimizer.programs import Direct
from hoptimizer.signatures import Read

ADAPTERS = [ReadingChatAdapter, ReadingJSONAdapter, SchemaAdapter, PlainAdapter]
INPUTS = {"question": "Where?", "context": ["Lyon lies on the Rhône."]}
DEMOS = [dspy.Example(INPUTS, answer="in Lyon", hops=[dspy.Example(of="another step")])]


@pytest.mark.parametrize(
    ("kind", "dspys"),
    [(ReadingChatAdapter, dspy.ChatAdapter), (ReadingJSONAdapter, dspy.JSONAdapter), (SchemaAdapter, dspy.JSONAdapter)],
)
def test_the_first_and_later_prompts_are_dspys(kind, dspys):
    adapter, expected = kind(), dspys().format(Read, DEMOS, INPUTS)
    assert [adapter.format(Read, DEMOS, INPUTS) for _ in range(2)] == [expected, expected]


@pytest.mark.parametrize("kind", ADAPTERS)
def test_whoever_changes_a_prompt_changes_no_other(kind):
    adapter = kind()
    first = adapter.format(Read, DEMOS, INPUTS)
    expected = [dict(message) for message in first]
    for message in first:
        message["content"] = "changed"
    assert adapter.format(Read, DEMOS, INPUTS) == expected


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_prompt_is_of_the_demonstrations_and_the_instructions_as_they_are_now(kind):
    adapter, signature = kind(), Read.with_instructions("Answer.")
    before = adapter.format(signature, DEMOS, INPUTS)
    signature.instructions = "Answer in French."
    demos = [DEMOS[0].copy(answer="à Lyon")]
    after = adapter.format(signature, demos, INPUTS)
    assert "French" in after[0]["content"]
    assert "à Lyon" in after[2]["content"]
    assert [len(before), before[1]["content"]] == [len(after), after[1]["content"]]


def test_values_that_look_alike_as_json_are_told_apart():
    adapter, signature = ReadingChatAdapter(), dspy.Signature("names -> answer")
    shown = [
        adapter.format(signature, [{"names": names, "answer": "x"}], {"names": "y"})[1]["content"]
        for names in (["Ann", "Bea"], ("Ann", "Bea"))
    ]
    assert "[1] «Ann»" in shown[0]
    assert '["Ann", "Bea"]' in shown[1]


def test_a_demonstration_may_hold_what_only_dspy_can_show():
    picture = dspy.Image("https://example.org/lyon.png")
    signature = dspy.Signature("picture: dspy.Image -> answer")
    messages = ReadingChatAdapter().format(signature, [{"picture": picture, "answer": "Lyon"}], {"picture": picture})
    assert [part["type"] for part in messages[1]["content"]].count("image_url") == 1


class Heard(BaseCallback):
    """Counts what a callback hears."""

    def __init__(self):
        self.begun = self.ended = 0

    def on_lm_start(self, call_id, instance, inputs):
        self.begun += 1

    def on_lm_end(self, call_id, outputs, exception=None):
        self.ended += 1


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("by", ["settings", "lm"])
def test_callbacks_hear_once_of_a_call_that_is_made_three_times(by, asynchronous, monkeypatch):
    heard = Heard()
    monkeypatch.setattr("hoptimizer.models.served._backoff", lambda _: 0.0)
    with ChatServer(failing=2, status=503) as server:
        lm = build_lm(LMSettings(model="openai/some-model", api_base=server.url, cache=False))
        lm.callbacks = [heard] if by == "lm" else []
        with dspy.context(callbacks=[heard] if by == "settings" else []):
            asyncio.run(lm.acall("Where?")) if asynchronous else lm("Where?")
    assert (heard.begun, heard.ended, len(server.bodies)) == (1, 1, 3)


def test_a_step_tells_of_its_own_calls_whatever_else_listens():
    heard = Heard()
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon") as server:
        lm = build_lm(LMSettings(model="openai/some-model", api_base=server.url, cache=False))
        with dspy.context(lm=lm, adapter=build_adapter(), callbacks=[heard]):
            lm("A call of no step.")
            [record] = Direct()(question="Where?").steps
            [again] = Direct()(question="And where?").steps
    assert (record.calls, again.calls, heard.begun) == (1, 1, 3)


def test_calls_of_an_adapters_own_language_model_are_counted_too():
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon") as server:
        first, second = (
            build_lm(LMSettings(model=f"openai/{name}", api_base=server.url, cache=False)) for name in ("one", "two")
        )
        with dspy.context(lm=first, adapter=dspy.TwoStepAdapter(second)):
            [record] = Direct()(question="Where?").steps
    assert (record.calls, record.completion_tokens) == (2, 20)
