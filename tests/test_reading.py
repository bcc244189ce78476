"""How answers are read, in every prompt format, and how the calls that a step takes are counted."""

import asyncio
import json
from typing import Literal

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import AdapterParseError
from fuzz_search import bounded
from scripted import ScriptedEngine, ScriptedRetriever, passage

from hoptimizer.models import build_adapter
from hoptimizer.models.adapters import LMAdapter, PlainAdapter, SchemaAdapter
from hoptimizer.models.reading import chosen, whole_items
from hoptimizer.models.reading_adapters import ReadingChatAdapter, ReadingJSONAdapter
from hoptimizer.programs import RAG, RAISF
from hoptimizer.programs.record import counts
from hoptimizer.signatures.answering import Answer
from hoptimizer.signatures.decomposing import Decompose
from hoptimizer.signatures.judging import Correctness, Relevance, SelfKnowledge

PARTS = "subquestions"
ADAPTERS = (ReadingChatAdapter, ReadingJSONAdapter, SchemaAdapter, PlainAdapter)


def written(adapter, **outputs):
    """What a model writes in the prompt format of an adapter."""
    if issubclass(adapter, dspy.JSONAdapter):
        return json.dumps(outputs)
    return "\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name, text in outputs.items()), "[[ ## completed ## ]]"])


def said(request, text):
    """A model's answer of this text."""
    return lm15.Response(
        id=None,
        model=request.model,
        message=lm15.Message.assistant(text),
        finish_reason="stop",
        usage=lm15.Usage(input_tokens=1, output_tokens=1),
    )


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("yes", "yes"), ("Yes", "yes"), ("YES", "yes"), ("yes.", "yes"), ("**yes**", "yes"), (" `Yes`!", "yes"),
        ("Yes, the passage says so.", "yes"), ("**No**: it is about Bern.", "no"), ("No.\nIt names nobody.", "no"),
        ("No - it does not", "no"), ("'no'", "no"),
    ],
)  # fmt: skip
def test_a_judgement_is_read_as_people_would(adapter, text, read):
    assert adapter().parse(Relevance, written(adapter, relevant=text)) == {"relevant": read}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("text", "read"), [("True", True), ("**False**", False), ("true, it names the same town.", True), ("False.", False)]
)
def test_a_verdict_is_read_as_people_would(adapter, text, read):
    assert adapter().parse(Correctness, written(adapter, correct=text)) == {"correct": read}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_is_no_verdict_is_not_read_as_one(adapter):
    assert SchemaAdapter().parse(Correctness, '{"correct": true}') == {"correct": True}
    with pytest.raises(AdapterParseError):
        adapter().parse(Correctness, written(adapter, correct="truely, I can't say"))


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("text", ["perhaps", "not relevant", "No doubt it helps", "yes or no", "yesterday", ""])
def test_what_names_no_choice_is_not_read_as_one(adapter, text):
    with pytest.raises(AdapterParseError):
        adapter().parse(Relevance, written(adapter, relevant=text))


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("text", ["[" * 5000, "{" * 2000, '{"a": [' * 1000, "[[ ## relevant ## ]]" * 1000])
def test_brackets_without_end_are_an_answer_that_can_not_be_read(adapter, text):
    with pytest.raises(AdapterParseError):
        adapter().parse(Relevance, text)


@pytest.mark.parametrize("text", ["[" * 5000, "{" * 2000])
def test_a_question_that_is_answered_with_brackets_alone_ends_no_run(text):
    script = ScriptedEngine(None)
    script.answer = lambda request: said(request, text)
    with dspy.context(lm=script.lm(cache=False), adapter=build_adapter()):
        prediction = RAG(ScriptedRetriever({}))(question="Who?")
    assert prediction.answer == ""
    assert prediction.steps[-1].failure


def test_choices_that_differ_in_punctuation_alone_are_kept_apart():
    signs = dspy.Signature(
        {"sign": (Literal[-1, 1], dspy.OutputField()), "mark": (Literal["+", "-"], dspy.OutputField())}
    )
    assert ReadingJSONAdapter().parse(signs, '{"sign": -1, "mark": "-"}') == {"sign": -1, "mark": "-"}
    assert ReadingChatAdapter().parse(signs, written(ReadingChatAdapter, sign="1", mark="+")) == {
        "sign": 1,
        "mark": "+",
    }
    assert chosen("1.", [-1, 1]) is None


def test_the_longer_of_two_choices_is_read_where_both_fit():
    assert chosen("Partly, true", ["partly", "partly, true"]) == "partly, true"


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("opened", ["<think>", "\n<think>\n", ""])
def test_thoughts_are_no_part_of_the_answer(adapter, opened):
    thought = f"{opened}Is it? {written(adapter, relevant='no')} No, it is.</think>\n\n"
    assert adapter().parse(Relevance, thought + written(adapter, relevant="Yes")) == {"relevant": "yes"}


@pytest.mark.parametrize("begin", ["[[ ## knows ## ]]\n", "[[ ## knows ## ]] ", "So: [[ ## knows ## ]]\n"])
def test_a_mark_at_the_end_of_a_line_is_none_of_the_text_before_it(begin):
    assert ReadingChatAdapter().parse(SelfKnowledge, f"{begin}yes [[ ## completed ## ]]") == {"knows": "yes"}
    answer = f"{begin}Paris [[ ## completed ## ]]".replace("knows", "answer")
    assert ReadingChatAdapter().parse(Answer, answer) == {"answer": "Paris"}
    mention = "[[ ## answer ## ]]\nAfter [[ ## answer ## ]] comes Paris\n\n[[ ## completed ## ]]"
    assert ReadingChatAdapter().parse(Answer, mention) == {"answer": "After [[ ## answer ## ]] comes Paris"}


def test_thoughts_that_came_to_no_end_are_no_answer():
    with pytest.raises(AdapterParseError, match="nothing but thoughts; raise max_tokens"):
        ReadingChatAdapter().parse(SelfKnowledge, "<think>[[ ## knows ## ]]\nyes")


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("items", "read"),
    [
        ('["Who built it?", "What is the name of the', ["Who built it?"]),
        ('["Who built it?", "Where, when and for', ["Who built it?"]),
        ('["Who built it?", "Where?"', ["Who built it?", "Where?"]),
        ('["Who built it?", ', ["Who built it?"]),
        ('["Who built it?", "', ["Who built it?"]),
        ('["Who built', []),
        ("[", []),
        ('["Who wrote [1]?", "What is the', ["Who wrote [1]?"]),
        ('["Who wrote [1]?"]', ["Who wrote [1]?"]),
        ('["Who built it?", "Where?"]', ["Who built it?", "Where?"]),
    ],
)
def test_the_item_at_which_the_tokens_ran_out_is_left_out(adapter, items, read):
    before = f'{{"{PARTS}": ' if issubclass(adapter, dspy.JSONAdapter) else f"[[ ## {PARTS} ## ]]\n"
    assert adapter().parse(Decompose, before + items) == {PARTS: read}


def test_a_list_that_is_cut_off_is_read_once():
    with bounded():
        assert whole_items('{"items": ["' + "a, " * 200_000, "items") == 0


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_halves_of_characters_are_read_as_question_marks(adapter):
    """Else the predictions of a whole evaluation could not be written."""
    half = "Lyon \ud83d"
    answer = written(adapter, answer=half)
    assert json.dumps(adapter().parse(Answer, answer), ensure_ascii=False).encode() == b'{"answer": "Lyon ?"}'


class _Rambling(ScriptedEngine):
    """Writes fields no adapter finds, until it is asked for JSON."""

    def answer(self, request):
        response = super().answer(request)
        if response.message.text.startswith("{"):
            return response
        message = lm15.Message.assistant("Let me think about it.")
        return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=response.usage)


@pytest.mark.parametrize("cached", [False, True])
def test_a_step_that_is_asked_twice_counts_two_calls_cached_or_not(cached, tmp_path, monkeypatch):
    cache = dspy.clients.cache.Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    monkeypatch.setattr(dspy, "cache", cache)
    engine = _Rambling(lambda field, *_: "Lyon")
    lm = engine.lm(temperature=0.0)
    with dspy.context(lm=lm, adapter=build_adapter()):
        for _ in range(1 + cached):
            prediction = RAG(ScriptedRetriever({}))(question="Where?")
    assert prediction.answer == "Lyon"
    assert counts(prediction.steps)["lm_calls"] == 2
    assert counts(prediction.steps)["parse_failures"] == 0
    assert engine.calls == 2


def test_steps_at_the_same_time_count_their_own_calls(monkeypatch):
    class Mixed(_Rambling):
        def answer(self, request):
            if "Twice" in request.messages[-1].text:
                return super().answer(request)
            return ScriptedEngine.answer(self, request)

    program = RAG(ScriptedRetriever({}))
    lm = Mixed(lambda field, *_: "Lyon", delay=0.01).lm(cache=False)

    async def both():
        return await asyncio.gather(program.acall(question="Once?"), program.acall(question="Twice?"))

    with dspy.context(lm=lm, adapter=LMAdapter()):
        found = asyncio.run(both())
    assert [counts(prediction.steps)["lm_calls"] for prediction in found] == [1, 2]


def test_calls_that_were_made_twice_use_up_the_most_calls_of_a_question():
    engine = _Rambling(lambda field, *_: "yes" if field == "relevant" else "no" if field == "knows" else "Lyon")
    program = RAISF(ScriptedRetriever({"Where?": [passage("a")]}), max_calls=4)
    with dspy.context(lm=engine.lm(cache=False), adapter=LMAdapter()):
        prediction = program(question="Where?")
    # Two calls each for what it knows and for the passage leave none for the reading.
    assert prediction.answer == "unknown"
    assert prediction.steps[-1].outputs["why"] == "calls"
    assert engine.calls == counts(prediction.steps)["lm_calls"] == 4
