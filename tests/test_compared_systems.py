"""The systems that the papers compare with: control flow on a scripted model, and all of them on a real one."""

import json

import dspy
import pytest
from dspy.utils import DummyLM
from scripted import ScriptedRetriever, passage

from hoptimizer.programs import DecomposeRAG, IterRetGen, LeastToMost, SelfAsk
from hoptimizer.programs.record import counts

MILL = "Where was the builder of the mill born?"
BUILDER, BORN = "Who built the mill?", "Where was Ada born?"
FOUND = {MILL: [passage("mill"), passage("inn")], BUILDER: [passage("mill")], BORN: [passage("ada"), passage("mill")]}
UNREADABLE = {"wrong": "?"}


def run(program, *said, question=MILL):
    with dspy.context(lm=DummyLM(list(said)), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(question=question)


def steps(prediction):
    return [record.step for record in prediction.steps]


def ids(prediction):
    return [found.id for found in prediction.passages]


def inputs(prediction, step):
    return [record.inputs for record in prediction.steps if record.step == step]


def parts(*texts, field="subquestions"):
    return {field: json.dumps(texts)}


def in_order(*texts):
    return parts(*texts, field="ordered_subquestions")


# ITER-RETGEN: after figure 1 of the paper, where the second retrieval is led by the first, wrong generation.

GUESS = {"reasoning": "The mill was built by Ada, who was born in Rome.", "answer": "Rome"}
LED = f"{MILL} {GUESS['reasoning']} Rome"


def test_iter_retgen_searches_with_the_question_and_all_that_it_said():
    retriever = ScriptedRetriever({MILL: [passage("mill"), passage("inn")], LED: [passage("ada"), passage("mill")]})
    prediction = run(IterRetGen(retriever), GUESS, {"reasoning": "Ada is of Bern.", "answer": "Bern"})
    assert retriever.queries == [MILL, LED]
    assert prediction.answer == "Bern"
    assert ids(prediction) == ["ada", "mill"]
    assert inputs(prediction, "reader") == [
        {"question": MILL, "context": ["mill", "inn"]},
        {"question": MILL, "context": ["ada", "mill"]},
    ]
    expected = {"lm_calls": 2, "retrievals": 2, "iterations": 2, "parse_failures": 0}
    assert counts(prediction.steps) | expected == counts(prediction.steps)


@pytest.mark.parametrize("rounds", [1, 3])
def test_iter_retgen_stops_after_its_rounds(rounds):
    prediction = run(IterRetGen(ScriptedRetriever({}), rounds=rounds), *[GUESS] * rounds)
    assert steps(prediction) == ["retrieve", "reader"] * rounds


@pytest.mark.parametrize(
    ("reader", "said", "query"),
    [
        ("direct", {"answer": "Rome"}, f"{MILL} Rome"),
        ("phrase", {"chain": "Ada did. So the answer is: Rome."}, f"{MILL} Ada did. So the answer is: Rome."),
    ],
)
def test_iter_retgen_searches_with_whatever_its_reader_says(reader, said, query):
    retriever = ScriptedRetriever({})
    assert run(IterRetGen(retriever, reader=reader), said, said).answer == "Rome"
    assert retriever.queries == [MILL, query]


def test_iter_retgen_ends_where_nothing_was_said():
    retriever = ScriptedRetriever(FOUND)
    prediction = run(IterRetGen(retriever, k=1), UNREADABLE)
    assert (prediction.answer, ids(prediction), retriever.queries) == ("", ["mill"], [MILL])


# Self-ask: after figure 3 of the paper, with two hops.


def follow_up(question):
    return {"needs_follow_up": "yes", "next_question": question}


ENOUGH = {"needs_follow_up": "no", "next_question": "Who is Ada?"}


def test_self_ask_looks_each_follow_up_up_and_answers_from_their_answers():
    retriever = ScriptedRetriever(FOUND)
    said = [follow_up(BUILDER), {"answer": "Ada"}, follow_up(BORN), {"answer": "Bern"}, ENOUGH, {"answer": " Bern "}]
    prediction = run(SelfAsk(retriever), *said)
    assert retriever.queries == [BUILDER, BORN]
    assert prediction.answer == "Bern"
    assert ids(prediction) == ["mill", "ada"]
    assert steps(prediction) == ["ask", "retrieve", "reader"] * 2 + ["ask", "combine"]
    answered = [f"{BUILDER} Ada", f"{BORN} Bern"]
    assert [asked["answered"] for asked in inputs(prediction, "ask")] == [[], answered[:1], answered]
    assert inputs(prediction, "reader")[1] == {"question": BORN, "context": ["ada", "mill"]}
    assert inputs(prediction, "combine") == [{"question": MILL, "findings": answered}]
    assert counts(prediction.steps) | {"lm_calls": 6, "iterations": 2} == counts(prediction.steps)


@pytest.mark.parametrize("said", [ENOUGH, follow_up("  "), UNREADABLE])
def test_self_ask_answers_at_once_where_no_follow_up_comes(said):
    prediction = run(SelfAsk(ScriptedRetriever(FOUND)), said, {"answer": "Bern"})
    assert (prediction.answer, prediction.passages, steps(prediction)) == ("Bern", [], ["ask", "combine"])


def test_self_ask_asks_nothing_twice_but_may_ask_the_question_itself():
    retriever = ScriptedRetriever(FOUND)
    said = [follow_up(MILL), UNREADABLE, follow_up(f" {MILL.upper()}"), {"answer": "Bern"}]
    prediction = run(SelfAsk(retriever), *said)
    assert retriever.queries == [MILL]
    assert inputs(prediction, "combine")[0]["findings"] == [f"{MILL} unknown"]


def test_self_ask_asks_no_more_than_it_may():
    retriever = ScriptedRetriever(FOUND)
    said = [follow_up(BUILDER), {"answer": "Ada"}, follow_up(BORN), {"answer": "Bern"}, {"answer": "Bern"}]
    assert steps(run(SelfAsk(retriever, max_steps=1), *said))[-2:] == ["reader", "combine"]
    prediction = run(SelfAsk(retriever, k=2, max_passages=2), *said)
    assert [asked["context"] for asked in inputs(prediction, "reader")] == [["mill"], ["ada"]]
    assert ids(prediction) == ["mill", "ada"]
    assert steps(prediction)[-2:] == ["reader", "combine"]


# Decompose-R


def test_decompose_rag_searches_with_every_subquestion_and_reads_the_union_in_turn():
    retriever = ScriptedRetriever(FOUND | {"Is it old?": [passage("mill"), passage("inn"), passage("pond")]})
    program = DecomposeRAG(retriever, max_passages=3)
    prediction = run(program, parts("Is it old?", f"2. {BORN}", MILL, BORN), {"answer": "Bern"})
    assert retriever.queries == ["Is it old?", BORN]
    assert inputs(prediction, "reader") == [{"question": MILL, "context": ["mill", "ada", "inn"]}]
    assert (prediction.answer, ids(prediction)) == ("Bern", ["mill", "ada", "inn"])
    expected = {"lm_calls": 2, "retrievals": 2, "iterations": 1}
    assert counts(prediction.steps) | expected == counts(prediction.steps)


@pytest.mark.parametrize("said", [parts(), parts(" ", MILL), UNREADABLE])
def test_decompose_rag_searches_with_the_question_where_it_has_no_parts(said):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(DecomposeRAG(retriever), said, {"answer": "Rome"})
    assert (retriever.queries, ids(prediction)) == ([MILL], ["mill", "inn"])


def test_decompose_rag_without_a_reader_only_searches():
    prediction = run(DecomposeRAG(ScriptedRetriever(FOUND), reader="none", max_subquestions=1), parts(BORN, BUILDER))
    assert (prediction.answer, ids(prediction)) == ("", ["ada", "mill"])


# Least-to-most


def test_least_to_most_answers_in_order_with_the_earlier_answers_in_view():
    retriever = ScriptedRetriever(FOUND)
    said = [in_order(BUILDER, "Where was #1 born?"), {"answer": "Ada"}, {"answer": "Bern"}, {"answer": " Bern."}]
    prediction = run(LeastToMost(retriever), *said)
    assert retriever.queries == [BUILDER, BORN]
    assert prediction.answer == "Bern."
    assert ids(prediction) == ["mill", "ada"]
    assert steps(prediction) == ["decompose", *["retrieve", "reader"] * 2, "reader"]
    first, second = f"{BUILDER} Ada", f"{BORN} Bern"
    assert inputs(prediction, "reader") == [
        {"question": BUILDER, "findings": [], "context": ["mill"]},
        {"question": BORN, "findings": [first], "context": ["ada", "mill"]},
        {"question": MILL, "findings": [first, second], "context": ["mill", "ada"]},
    ]
    assert counts(prediction.steps) | {"lm_calls": 4, "retrievals": 2} == counts(prediction.steps)


def test_least_to_most_without_retrieval_answers_from_memory():
    retriever = ScriptedRetriever(FOUND)
    said = [in_order(BUILDER), {"answer": "Ada"}, {"answer": "Bern"}]
    prediction = run(LeastToMost(retriever, retrieval=False), *said)
    assert (prediction.answer, prediction.passages, retriever.queries) == ("Bern", [], [])
    assert inputs(prediction, "reader")[1] == {"question": MILL, "findings": [f"{BUILDER} Ada"]}


@pytest.mark.parametrize("said", [in_order(), in_order(MILL), UNREADABLE])
def test_least_to_most_looks_the_question_up_where_it_has_no_parts(said):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(LeastToMost(retriever, max_passages=1), said, {"answer": "Rome"})
    assert (retriever.queries, prediction.answer) == ([MILL], "Rome")
    assert inputs(prediction, "reader") == [{"question": MILL, "findings": [], "context": ["mill"]}]


def test_least_to_most_goes_on_where_a_part_can_not_be_answered():
    retriever = ScriptedRetriever(FOUND)
    said = [in_order(BUILDER, "Where was #1 born?"), UNREADABLE, {"answer": "Bern"}, UNREADABLE]
    prediction = run(LeastToMost(retriever), *said)
    assert inputs(prediction, "reader")[1]["findings"] == [f"{BUILDER} unknown"]
    assert prediction.answer == ""
