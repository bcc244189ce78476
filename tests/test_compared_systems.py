"""The systems that the papers compare with: control flow on a scripted model, and all of them on a real one."""

import json

import dspy
import pytest
from dspy.utils import DummyLM
from pydantic import ValidationError
from scripted import ScriptedLM, ScriptedRetriever, passage

from hoptimizer.common.errors import PartError, UserError
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.optimizers.labels.annotations import annotations
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.prompt.feedback import Feedback
from hoptimizer.programs import (
    DSP,
    REPLUG,
    DecomP,
    DecomposeRAG,
    IterRetGen,
    LeastToMost,
    ReAct,
    ReciteAndAnswer,
    SelfAsk,
    SelfRAG,
)
from hoptimizer.programs.record import counts
from hoptimizer.programs.settings import build_program, settings_model
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage

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


class Sampled(ScriptedLM):
    """Remembers how each sample was asked for, three of them together."""

    def __init__(self, script):
        super().__init__(script, together=3)
        self.sampling = []

    async def acall(self, prompt=None, messages=None, **kwargs):
        self.sampling.append((kwargs.get("temperature"), kwargs.get("rollout_id")))
        return await super().acall(prompt, messages, **kwargs)


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


def test_iter_retgen_can_count_what_every_round_found():
    retriever = ScriptedRetriever({MILL: [passage("mill"), passage("inn")], LED: [passage("ada"), passage("mill")]})
    prediction = run(IterRetGen(retriever, keep="all"), GUESS, {"reasoning": "Ada is of Bern.", "answer": "Bern"})
    assert ids(prediction) == ["mill", "inn", "ada"]
    assert inputs(prediction, "reader")[-1] == {"question": MILL, "context": ["ada", "mill"]}


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


def test_iter_retgen_keeps_an_answer_that_the_next_round_can_not_better():
    prediction = run(IterRetGen(ScriptedRetriever({})), GUESS, UNREADABLE)
    assert (prediction.answer, counts(prediction.steps)["parse_failures"]) == ("Rome", 1)


# Self-ask: after figure 3 of the paper, with two hops.


def follow_up(question):
    return {"next_question": question}


ENOUGH = {"next_question": ""}


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


@pytest.mark.parametrize(
    "said",
    [ENOUGH, follow_up("  "), follow_up("None."), follow_up('""'), follow_up("(empty)"), follow_up("N/A"), UNREADABLE],
)
def test_self_ask_answers_at_once_where_no_follow_up_comes(said):
    prediction = run(SelfAsk(ScriptedRetriever(FOUND)), said, {"answer": "Bern"})
    assert (prediction.answer, prediction.passages, steps(prediction)) == ("Bern", [], ["ask", "combine"])


@pytest.mark.parametrize("again", [f" {MILL.upper()}", f"{MILL} unknown"])
def test_self_ask_asks_nothing_twice_but_may_ask_the_question_itself(again):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(SelfAsk(retriever), follow_up(MILL), UNREADABLE, follow_up(again), {"answer": "Bern"})
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
    assert retriever.queries == [BUILDER, BORN, MILL]
    assert prediction.answer == "Bern."
    assert ids(prediction) == ["mill", "ada", "inn"]
    assert steps(prediction) == ["decompose", *["retrieve", "reader"] * 3]
    first, second = f"{BUILDER} Ada", f"{BORN} Bern"
    assert inputs(prediction, "reader") == [
        {"question": BUILDER, "findings": [], "context": ["mill"]},
        {"question": BORN, "findings": [first], "context": ["ada", "mill"]},
        {"question": MILL, "findings": [first, second], "context": ["mill", "ada", "inn"]},
    ]
    assert counts(prediction.steps) | {"lm_calls": 4, "retrievals": 3} == counts(prediction.steps)


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


@pytest.mark.parametrize("missing", [UNREADABLE, {"answer": "No information available."}])
@pytest.mark.parametrize(("last", "answer"), [({"answer": "Rome"}, "Rome"), (UNREADABLE, "")])
def test_least_to_most_looks_up_no_part_that_refers_to_what_is_unknown(missing, last, answer):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(LeastToMost(retriever), in_order(BUILDER, "Where was #1 born?", "Where was #2?"), missing, last)
    assert retriever.queries == [BUILDER, MILL]
    assert inputs(prediction, "reader")[1]["findings"] == [f"{BUILDER} unknown"]
    assert prediction.answer == answer


# Demonstrate-search-predict


def test_dsp_searches_with_what_the_first_query_found_and_reads_all():
    retriever = ScriptedRetriever(FOUND)
    said = [{"first_query": f" {BUILDER} "}, {"search_query": BORN}, {"reasoning": "Ada is of Bern.", "answer": "Bern"}]
    prediction = run(DSP(retriever), *said)
    assert retriever.queries == [BUILDER, BORN]
    assert (prediction.answer, ids(prediction)) == ("Bern", ["mill", "ada"])
    assert steps(prediction) == ["first_query", "retrieve", "next_query", "retrieve", "reader"]
    assert inputs(prediction, "next_query") == [{"found": ["mill"], "question": MILL}]
    assert inputs(prediction, "reader") == [{"question": MILL, "context": ["mill", "ada"]}]
    assert counts(prediction.steps) | {"lm_calls": 3, "iterations": 2} == counts(prediction.steps)


@pytest.mark.parametrize("again", [UNREADABLE, {"search_query": " "}, {"search_query": MILL.lower()}])
def test_dsp_takes_the_question_where_no_query_comes_and_asks_none_twice(again):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(DSP(retriever, reader="direct", hops=3), UNREADABLE, again, {"answer": "Rome"})
    assert (retriever.queries, ids(prediction)) == ([MILL], ["mill", "inn"])


def test_dsp_collects_no_more_than_it_may():
    retriever = ScriptedRetriever(FOUND)
    prediction = run(DSP(retriever, max_passages=1, reader="none"), {"first_query": BORN})
    assert (retriever.queries, ids(prediction)) == ([BORN], ["ada"])


def test_dsp_fuses_what_sampled_queries_find_and_lets_answers_vote():
    found = {BUILDER: [passage("mill"), passage("inn")], MILL: [passage("ada"), passage("inn")]}
    queries, answers = iter([BUILDER, MILL, BUILDER.lower()]), iter(["Rome", "Bern", "bern"])
    lm = Sampled(lambda field, inputs: next(queries) if field == "first_query" else next(answers))
    retriever = ScriptedRetriever(found)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        prediction = DSP(retriever, k=2, hops=1, reader="direct", samples=3, temperature=0.9)(question=MILL)
    assert lm.sampling == [(None, None), (0.9, 1), (0.9, 2)] * 2
    # The one that both queries find comes first; a query that was asked twice is searched with once.
    assert (len(retriever.queries), ids(prediction)) == (2, ["inn", "mill"])
    assert prediction.answer.lower() == "bern"
    assert steps(prediction) == ["first_query"] * 3 + ["retrieve"] * 2 + ["reader"] * 3


# Recitation

RECITED = ["Ada built the mill.", "Ada was born in Bern."]


def recited(*texts):
    return parts(*texts, field="recited")


def test_recite_answers_from_what_it_recites():
    prediction = run(ReciteAndAnswer(recitations=1), recited(*RECITED), {"answer": " Bern "})
    assert (prediction.answer, prediction.passages) == ("Bern", [])
    assert inputs(prediction, "reader") == [{"question": MILL, "recited": RECITED}]
    assert counts(prediction.steps) | {"lm_calls": 2, "retrievals": 0} == counts(prediction.steps)


@pytest.mark.parametrize(("temperature", "sampled"), [(0.0, 0.7), (None, None)])
def test_recitations_are_sampled_together_and_their_answers_vote(temperature, sampled):
    answers = iter(["Rome", "bern", "Bern"])
    lm = Sampled(lambda field, inputs: json.dumps(RECITED) if field == "recited" else next(answers))
    lm.kwargs["temperature"] = temperature  # reasoning models are given none, and refuse one
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        prediction = ReciteAndAnswer(recitations=3)(question=MILL)
    assert prediction.answer.lower() == "bern"
    assert lm.most == 3
    assert lm.sampling[:3] == [(None, None), (sampled, 1), (sampled, 2)]
    assert steps(prediction) == ["recite", "reader"] * 3


def test_recite_without_an_answer_that_can_be_read_has_none():
    prediction = run(ReciteAndAnswer(recitations=1), UNREADABLE, UNREADABLE)
    assert (prediction.answer, inputs(prediction, "reader")[0]["recited"]) == ("", [])


# Self-RAG: after figure 1 of the paper: the second passage's answer is supported, the first one's is not.


def critique(field, inputs):
    seen = inputs.get("passage", inputs.get("context", ""))
    says = {
        "knows": "no",
        "relevant": "no" if "Inn" in seen else "yes",
        "answer": "Bern" if "Ada" in seen else "Rome",
        "supported": "fully" if "Ada" in seen else "no",
        "useful": {"Bern": "mostly", "Rome": "completely"}.get(inputs.get("candidate")),
    }
    return says[field]


def criticized(program, script=critique):
    lm = ScriptedLM(script, together=4)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(question=MILL), lm


def test_self_rag_gives_the_answer_that_its_critique_puts_first():
    retriever = ScriptedRetriever({MILL: [passage("inn"), passage("ada")]})
    prediction, lm = criticized(SelfRAG(retriever))
    assert (prediction.answer, ids(prediction)) == ("Bern", ["inn", "ada"])
    assert steps(prediction) == ["self_knowledge", "retrieve", *["relevance", "reader", "support", "usefulness"] * 2]
    assert inputs(prediction, "support")[1] == {"question": MILL, "candidate": "Bern", "passage": "ada"}
    assert inputs(prediction, "reader")[0] == {"question": MILL, "context": ["inn"]}
    assert lm.most == 4
    assert counts(prediction.steps) | {"lm_calls": 9, "retrievals": 1} == counts(prediction.steps)


@pytest.mark.parametrize(
    ("weights", "answer"),
    [
        ({}, "Bern"),
        ({"relevant_weight": 0, "supported_weight": 0}, "Rome"),
        ({"relevant_weight": 0, "supported_weight": 0, "useful_weight": 0}, "Rome"),  # of equal ones the first
    ],
)
def test_self_rag_weighs_its_decisions(weights, answer):
    retriever = ScriptedRetriever({MILL: [passage("inn"), passage("ada")]})
    prediction, _ = criticized(SelfRAG(retriever, always_retrieve=True, **weights))
    assert prediction.answer == answer
    assert "self_knowledge" not in steps(prediction)


def test_self_rag_answers_from_memory_what_the_model_knows():
    retriever = ScriptedRetriever({MILL: [passage("ada")]})
    prediction = run(SelfRAG(retriever), {"knows": "yes"}, {"answer": "Bern"})
    assert (prediction.answer, prediction.passages, retriever.queries) == ("Bern", [], [])
    assert steps(prediction) == ["self_knowledge", "closed_book"]


def test_self_rag_puts_last_what_it_can_not_read():
    retriever = ScriptedRetriever({MILL: [passage("inn"), passage("ada")]})

    def script(field, inputs):
        if field != "answer":
            return ("?",)
        return ("?",) if "Inn" in inputs["context"] else "Bern"

    prediction, _ = criticized(SelfRAG(retriever), script)
    assert prediction.answer == "Bern"
    assert counts(prediction.steps)["parse_failures"] == 6
    assert criticized(SelfRAG(ScriptedRetriever({})))[0].answer == ""


# REPLUG: after figure 2 of the paper: two passages of little weight agree, and outweigh the first.


def plugged(scores, likelihood, **options):
    """What three passages say: Rome, Bern and bern."""
    found = [passage(id).scored(score) for id, score in zip(("inn", "mill", "ada"), scores, strict=True)]
    answers = {"Inn": "Rome", "Mill": "Bern", "Ada": "bern."}

    def script(field, inputs):
        return next(answer for name, answer in answers.items() if name in inputs["context"])

    said = None if likelihood is None else lambda field, inputs: likelihood[script(field, inputs)]
    lm = ScriptedLM(script, likelihood=said, together=3)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return REPLUG(ScriptedRetriever({MILL: found}), **options)(question=MILL), lm


SURE = {"Rome": 0.8, "Bern": 0.8, "bern.": 0.8}


@pytest.mark.parametrize(
    ("scores", "likelihood", "options", "answer"),
    [
        ((1.0, 0.9, 0.9), SURE, {}, "Bern"),
        ((9.0, 1.0, 1.0), SURE, {}, "Rome"),
        ((9.0, 1.0, 1.0), SURE, {"temperature": 100}, "Bern"),
        ((1.0, 0.9, 0.9), SURE | {"Bern": 0.2, "bern.": 0.1}, {}, "Rome"),
        ((None, None, None), SURE, {}, "Bern"),
    ],
)
def test_replug_mixes_the_answers_of_passages_by_their_weights(scores, likelihood, options, answer):
    prediction, lm = plugged(scores, likelihood, **options)
    assert (prediction.answer, ids(prediction)) == (answer, ["inn", "mill", "ada"])
    assert steps(prediction) == ["retrieve", "reader", "reader", "reader"]
    assert prediction.steps[1].outputs == {"answer": "Rome", "probability": pytest.approx(likelihood["Rome"])}
    assert lm.most == 3


def test_replug_with_a_model_that_tells_no_probabilities_is_one_line():
    with pytest.raises(UserError, match=r"replug mixes answers by their probabilities.* take a local model") as error:
        plugged((1.0, 1.0, 1.0), None)
    assert "\n" not in str(error.value)


def test_replug_without_an_answer_that_can_be_read_has_none():
    retriever = ScriptedRetriever({MILL: [passage("inn").scored(1.0)]})
    assert run(REPLUG(retriever), UNREADABLE).answer == ""
    assert run(REPLUG(ScriptedRetriever({}))).answer == ""


# ReAct


def action(name, **args):
    return {"next_thought": "Hm.", "next_tool_name": name, "next_tool_args": json.dumps(args)}


CONCLUDED = {"reasoning": "Ada is of Bern.", "answer": " Bern "}


def test_react_searches_until_it_finishes_and_answers_from_what_it_saw():
    retriever = ScriptedRetriever(FOUND)
    said = [action("search", query=BUILDER), action("search", query=BORN), action("finish"), CONCLUDED]
    prediction = run(ReAct(retriever), *said)
    assert retriever.queries == [BUILDER, BORN]
    assert (prediction.answer, ids(prediction)) == ("Bern", ["mill", "ada"])
    assert steps(prediction) == ["act", "retrieve", "act", "retrieve", "act", "reader"]
    *_, seen = (asked["trajectory"] for asked in inputs(prediction, "act"))
    assert str(passage("ada")) in seen
    assert inputs(prediction, "reader")[0]["question"] == MILL
    assert counts(prediction.steps) | {"lm_calls": 4, "iterations": 2} == counts(prediction.steps)


@pytest.mark.parametrize(
    ("args", "queries"),
    [
        ({"words": BORN}, [BORN]),
        ({"query": {"type": "string", "description": BORN}}, [BORN]),
        ({"query": ["Ada", BORN], "k": 3}, [BORN]),
        ({"query": {"type": "string"}}, ["Hm."]),  # its thought
        ({"query": 5}, ["Hm."]),
        ({"query": BORN, "reason": "I need to know where the builder of the mill was born."}, [BORN]),
        ({}, ["Hm."]),
    ],
)
def test_react_searches_with_the_text_of_its_arguments_and_shows_no_traceback(args, queries):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(ReAct(retriever), action("search", **args), action("finish", answer="Bern"), CONCLUDED)
    assert (retriever.queries, prediction.answer) == (queries, "Bern")
    assert "Traceback" not in inputs(prediction, "reader")[0]["trajectory"]


def test_react_does_not_search_for_nothing():
    retriever = ScriptedRetriever(FOUND)
    prediction = run(ReAct(retriever), action("search") | {"next_thought": " "}, action("finish"), CONCLUDED)
    assert (retriever.queries, prediction.passages, prediction.answer) == ([], [], "Bern")


@pytest.mark.parametrize("error", [OSError("the index is gone"), ValueError("the index is broken")])
def test_react_does_not_go_on_where_the_retriever_fails(error):
    class Broken(ScriptedRetriever):
        def search(self, queries, k):
            raise error

    with pytest.raises(PartError, match="the index is") as raised:
        run(ReAct(Broken({})), action("search", query=BORN), action("finish"), CONCLUDED)
    assert raised.value.__cause__ is error


def test_react_answers_from_what_it_saw_where_no_action_can_be_read():
    retriever = ScriptedRetriever(FOUND)
    prediction = run(ReAct(retriever), action("search", query=BORN), UNREADABLE, CONCLUDED)
    assert (prediction.answer, steps(prediction)) == ("Bern", ["act", "retrieve", "act", "reader"])


def test_react_shows_no_more_than_it_may():
    retriever = ScriptedRetriever(FOUND)
    said = [action("search", query=BUILDER), action("search", query=BORN), action("finish"), CONCLUDED]
    prediction = run(ReAct(retriever, max_passages=1), *said)
    assert ids(prediction) == ["mill"]
    assert str(passage("ada")) not in inputs(prediction, "reader")[0]["trajectory"]


def test_the_steps_of_an_agent_are_its_programs_and_go_with_a_copy():
    program = ReAct(ScriptedRetriever(FOUND))
    assert [name for name, _ in program.named_predictors()] == ["act", "reader"]
    copied = program.deepcopy()
    copied.act.demos = [dspy.Example(question="?", trajectory="", **action("finish"))]
    copied.load_state(copied.dump_state())
    assert run(copied, action("finish"), CONCLUDED).answer == "Bern"
    assert program.act.demos == []


def test_react_shows_no_demonstration_without_actions():
    program = ReAct(ScriptedRetriever(FOUND))
    annotated = dspy.Example(question="annotated?", next_thought="Hm.", answer="x", reasoning="y")
    run_before = dspy.Example(question="run before?", trajectory="", **action("finish"))
    program.act.demos = program.reader.demos = [annotated, run_before]
    lm = DummyLM([action("finish"), CONCLUDED])
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        program(question=MILL)
    prompts = [str(entry["messages"]) for entry in lm.history]
    assert ["run before?" in prompt for prompt in prompts] == [True, False]
    assert not any("annotated?" in prompt for prompt in prompts)


# Decomposed prompting: sub-tasks for a search and for what needs none.

YEARS = "Which is older, the mill or the inn?"


def task(question, handler="search"):
    return {"task_question": question, "task": handler}


def test_decomp_hands_each_subtask_to_its_handler_and_ends_with_the_last_answer():
    mill, inn, older = "When was the mill built?", "When was the inn built?", "Which is earlier, 1720 or 1650?"
    retriever = ScriptedRetriever({mill: [passage("mill")], inn: [passage("inn"), passage("mill")]})
    said = [task(mill), {"answer": "1720"}, task(inn), {"answer": "1650"}]
    said += [task(older, "combine"), {"answer": " the inn "}, task("", "end")]
    prediction = run(DecomP(retriever), *said, question=YEARS)
    assert retriever.queries == [mill, inn]
    assert (prediction.answer, ids(prediction)) == ("the inn", ["mill", "inn"])
    assert steps(prediction) == [*["plan", "retrieve", "reader"] * 2, "plan", "combine", "plan"]
    answered = [f"{mill} 1720", f"{inn} 1650"]
    assert inputs(prediction, "combine") == [{"question": older, "findings": answered}]
    assert inputs(prediction, "plan")[-1]["answered"] == [*answered, f"{older} the inn"]
    assert counts(prediction.steps) | {"lm_calls": 7, "retrievals": 2} == counts(prediction.steps)


@pytest.mark.parametrize("said", [task("", "search"), task(BORN, "end"), UNREADABLE])
def test_decomp_searches_for_a_question_without_parts(said):
    retriever = ScriptedRetriever(FOUND)
    prediction = run(DecomP(retriever), said, {"answer": "Bern"})
    assert (retriever.queries, prediction.answer, ids(prediction)) == ([MILL], "Bern", ["mill", "inn"])


def test_decomp_asks_nothing_twice_and_no_more_than_it_may():
    retriever = ScriptedRetriever(FOUND)
    for again in (MILL.upper(), f"{MILL} What is the answer to this question?"):
        prediction = run(DecomP(retriever), task(MILL), {"answer": "Rome"}, task(again))
        assert prediction.answer == "Rome"
    assert retriever.queries == [MILL]
    said = [task(BUILDER), {"answer": "Ada"}, task(BORN), UNREADABLE]
    assert run(DecomP(retriever, max_steps=1), *said).answer == "Ada"
    prediction = run(DecomP(retriever, max_passages=2), *said)
    assert (prediction.answer, ids(prediction)) == ("", ["mill", "ada"])


# All of them

SMALL = {
    "iter_retgen": {},
    "self_ask": {"max_steps": 1},
    "decompose_rag": {"max_subquestions": 2},
    "least_to_most": {"max_subquestions": 1},
    "react": {"max_steps": 1},
    "recite": {"recitations": 2},
    "dsp": {"samples": 2},
    "self_rag": {"always_retrieve": True},
    "decomp": {"max_steps": 1},
    "skr": {},
    "replug": {},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_system_runs_through_with_a_real_model(name):
    retriever = BM25Retriever(Corpus([Passage("mill", "The mill", "Ada built it."), Passage("ada", "Ada", "Of Bern.")]))
    program = build_program(settings_model(name)(name=name, **SMALL[name]), retriever, k=1)
    lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=24))
    with dspy.context(lm=lm, adapter=build_adapter()):
        prediction = program(question=MILL)
    assert isinstance(prediction.answer, str)
    assert counts(prediction.steps)["lm_calls"] >= 1
    assert {record.step for record in prediction.steps} <= {"retrieve", *program.step_names}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("iter_retgen", "rounds", 0),
        ("iter_retgen", "reader", "none"),
        ("self_ask", "max_steps", 0),
        ("decompose_rag", "max_passages", 0),
        ("least_to_most", "retrieval", "sometimes"),
        ("react", "max_steps", 0),
        ("recite", "temperature", 0),
        ("dsp", "hops", 0),
        ("dsp", "samples", 0),
        ("self_rag", "useful_weight", -1),
        ("decomp", "max_steps", 0),
        ("skr", "reader", "none"),
        ("replug", "temperature", 0),
    ],
)
def test_an_option_that_can_not_be_is_refused(name, option, value):
    with pytest.raises(ValidationError, match=option):
        settings_model(name)(name=name, **{option: value})


BOTH = Question(
    id="1",
    question=MILL,
    answers=["Bern"],
    passages=["mill", "ada"],
    hops=[Hop(question=BUILDER, answer="Ada", passage="mill"), Hop(question=BORN, answer="Bern", passage="ada")],
)
APART = BOTH.model_copy(
    update={"hops": [BOTH.hops[0], Hop(question="Where is the inn?", answer="Bern", passage="ada")]}
)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "react"])
def test_a_step_that_is_annotated_has_whole_demonstrations(name):
    corpus = Corpus([passage("mill"), passage("ada"), passage("inn")])
    retriever = ScriptedRetriever(FOUND)
    program = build_program(settings_model(name)(name=name), retriever, k=1)
    shown = annotate([BOTH, APART], corpus, retriever, distractors=1, seed=7)
    known = annotations(program)
    assert known
    for step in known:
        fields = set(getattr(program, step).signature.fields)
        assert any(fields <= set(example.keys()) for example in shown), step


def test_gepa_is_told_what_should_have_been_asked():
    corpus = Corpus([passage("mill"), passage("ada"), passage("inn")])
    feedback, gold = Feedback(lambda *_: 0.0, corpus), BOTH.to_dspy()
    said = [
        follow_up(BUILDER.lower()),
        {"answer": "Ada"},
        follow_up("Who is Ada?"),
        {"answer": "x"},
        ENOUGH,
        {"answer": "x"},
    ]
    prediction = run(SelfAsk(ScriptedRetriever(FOUND)), *said)
    told = feedback(gold, prediction, pred_name="ask").feedback
    assert f"Number 2 was 'Who is Ada?'. Right would be: {BORN}" in told
    assert "Number 1" not in told
    assert "Number 3" not in told
    said[4] = follow_up("Who is Bern?")
    prediction = run(SelfAsk(ScriptedRetriever(FOUND)), *said, {"answer": "x"}, ENOUGH)
    told = feedback(gold, prediction, pred_name="ask").feedback
    assert "Number 3 was 'Who is Bern?'. Right would be: nothing more" in told
    prediction = run(DSP(ScriptedRetriever(FOUND)), UNREADABLE, {"search_query": BORN}, CONCLUDED)
    assert f"Number 1 was ''. Right would be: {BUILDER}" in feedback(gold, prediction, pred_name="first_query").feedback
    assert "Number" not in feedback(gold, prediction, pred_name="next_query").feedback
    prediction = run(DecomP(ScriptedRetriever(FOUND)), task(BUILDER), {"answer": "Ada"}, task("", "end"))
    assert f"Number 2 was ''. Right would be: {BORN}" in feedback(gold, prediction, pred_name="plan").feedback
