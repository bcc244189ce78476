"""The example that each method's paper works through, in our words, with a scripted model: which hop finds what.

Those of RA-ISF, Self-RAG, REPLUG, SKR, Iter-RetGen and Self-Ask are in the tests of these programs.
"""

import asyncio
import json

import dspy
from dspy.utils import DummyLM
from scripted import ScriptedLM, ScriptedRetriever

from hoptimizer.programs import DSP, DecomP, DecomposeRAG, EfficientRAG, IRCoT, LeastToMost, ReAct, ReciteAndAnswer
from hoptimizer.retrieval import Passage


def run(program, question, *said):
    with dspy.context(lm=DummyLM(list(said)), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(question=question)


def found(prediction):
    return [passage.id for passage in prediction.passages]


# IRCoT, figure 1: the maker is named by the first step alone, and only then can its country be found.

COASTER = "In which country was the roller coaster Lost Gravity made?"
GRAVITY = Passage("gravity", "Lost Gravity (roller coaster)", "Lost Gravity was made by Mack Rides.")
RIDES = Passage("rides", "Mack Rides", "Mack Rides is a German maker of amusement rides.")


def test_ircot_finds_the_country_of_a_maker_that_the_question_does_not_name():
    made, german = "Lost Gravity was made by Mack Rides.", "Mack Rides is German."
    retriever = ScriptedRetriever({COASTER: [GRAVITY], made: [RIDES], german: [RIDES]})
    said = [{"thought": thought} for thought in (made, german, "So the answer is: Germany.")]
    program = IRCoT(retriever, thoughts="phrase", reader="direct", fill=False)
    prediction = run(program, COASTER, *said, {"answer": "Germany"})
    assert retriever.queries == [COASTER, made, german]
    assert (prediction.answer, found(prediction)) == ("Germany", ["gravity", "rides"])


# EfficientRAG, figure 3: labelled words of the first chunk make the next query, and nothing writes text.

MALL = "How large is the shopping mall in which KGOT has its studios?"
KGOT = Passage("kgot", "KGOT", "KGOT is a radio station with studios in the Dimond Center.")
CENTER = Passage("center", "Dimond Center", "The Dimond Center has 728,000 square feet.")


def test_efficient_rag_asks_for_the_mall_that_the_first_chunk_names():
    asked = []

    async def labeler(inputs):
        if "radio" in inputs["passage"]:
            return {"tag": "continue", "useful": ["Dimond Center"], "probability": 0.9}
        return {"tag": "finish", "useful": ["728,000 square feet"], "probability": 0.8}

    async def filter(inputs):
        asked.append((inputs["query"], inputs["known"]))
        return {"next_query": "How large Dimond Center"}

    retriever = ScriptedRetriever({MALL: [KGOT], "How large Dimond Center": [CENTER]})
    program = EfficientRAG(retriever, k=1, reader="direct")
    program.models = {"labeler": labeler, "filter": filter}
    lm = ScriptedLM(lambda field, inputs: "728,000 square feet")
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        prediction = asyncio.run(program.acall(question=MALL))
    assert retriever.queries == [MALL, "How large Dimond Center"]
    assert asked == [(MALL, "Dimond Center")]
    assert found(prediction) == ["kgot", "center"]
    assert len(lm.asked) == 1  # the one that reads


# DSP (Khattab et al., 2022), figure 1: the castle that a man inherited, and how many storeys it has.

CASTLE = "How many storeys has the castle that David Gregory inherited?"
GREGORY = Passage("gregory", "David Gregory (physician)", "Gregory inherited Kinnairdy Castle in 1664.")
KINNAIRDY = Passage("kinnairdy", "Kinnairdy Castle", "It is a tower house of five storeys and a garret.")


def test_dsp_searches_for_the_castle_that_its_first_search_found():
    first, second = "Which castle did David Gregory inherit?", "How many storeys has Kinnairdy Castle?"
    retriever = ScriptedRetriever({first: [GREGORY], second: [KINNAIRDY]})
    said = [{"first_query": first}, {"search_query": second}, {"reasoning": "It has five.", "answer": "five"}]
    prediction = run(DSP(retriever), CASTLE, *said)
    assert retriever.queries == [first, second]
    assert (prediction.answer, found(prediction)) == ("five", ["gregory", "kinnairdy"])


# ReAct (Yao et al., 2023), figure 1: what else controls the program that a remote control was made for.

REMOTE = "What besides the Apple Remote controls the program that it was made for?"
APPLE = Passage("apple", "Apple Remote", "It was made to control the program Front Row.")
ROW = Passage(
    "row", "Front Row (software)", "Front Row is controlled by an Apple Remote or the keyboard's function keys."
)


def test_react_looks_up_the_program_that_its_first_observation_names():
    def action(thought, name, **args):
        return {"next_thought": thought, "next_tool_name": name, "next_tool_args": json.dumps(args)}

    retriever = ScriptedRetriever({"Apple Remote": [APPLE], "Front Row (software)": [ROW]})
    said = [
        action("I need the program.", "search", query="Apple Remote"),
        action("It is Front Row.", "search", query="Front Row (software)"),
        action("Function keys.", "finish"),
        {"reasoning": "The passage on Front Row says so.", "answer": "the keyboard's function keys"},
    ]
    prediction = run(ReAct(retriever), REMOTE, *said)
    assert retriever.queries == ["Apple Remote", "Front Row (software)"]
    assert (prediction.answer, found(prediction)) == ("the keyboard's function keys", ["apple", "row"])


# RECITE (Sun et al., 2023), figure 1: the tenth decimal, after the model has said the digits to itself.

DIGITS = "The first decimals of pi are 1415926535."


def test_recite_reads_the_decimal_from_what_it_said_to_itself():
    said = [{"recited": json.dumps([DIGITS])}, {"answer": "5"}]
    prediction = run(ReciteAndAnswer(recitations=1), "What is the tenth decimal of pi?", *said)
    [read] = [record.inputs for record in prediction.steps if record.step == "reader"]
    assert read["recited"] == [DIGITS]
    assert (prediction.answer, prediction.passages) == ("5", [])


# Least-to-most (Zhou et al., 2023), figure 1: how long one ride takes, before how many fit.

SLIDE = "Climbing takes Amy 4 minutes and sliding 1; the slide closes in 15. How often can she slide?"
ONE = "How long does one ride take her?"


def test_least_to_most_answers_the_easier_question_first():
    said = [{"ordered_subquestions": json.dumps([ONE])}, {"answer": "5 minutes"}, {"answer": "3 times"}]
    prediction = run(LeastToMost(ScriptedRetriever({}), retrieval=False), SLIDE, *said)
    first, last = (record.inputs for record in prediction.steps if record.step == "reader")
    assert (first["question"], first["findings"]) == (ONE, [])
    assert (last["question"], last["findings"]) == (SLIDE, [f"{ONE} 5 minutes"])
    assert prediction.answer == "3 times"


# Decomposed prompting (Khot et al., 2023), section 4.3: sub-questions for a search, one after the other. The chain is
# that of the castle, and Decompose-R, which EfficientRAG's paper compares with, searches for both parts at once.

WHICH, STOREYS = "Which castle did David Gregory inherit?", "How many storeys has Kinnairdy Castle?"


def test_decomp_asks_the_second_subquestion_by_the_first_answer():
    retriever = ScriptedRetriever({WHICH: [GREGORY], STOREYS: [KINNAIRDY]})
    said = [
        {"task_question": WHICH, "task": "search"},
        {"answer": "Kinnairdy Castle"},
        {"task_question": STOREYS, "task": "search"},
        {"answer": "five"},
        {"task_question": "", "task": "end"},
    ]
    prediction = run(DecomP(retriever), CASTLE, *said)
    plans = [record.inputs["answered"] for record in prediction.steps if record.step == "plan"]
    assert plans == [[], [f"{WHICH} Kinnairdy Castle"], [f"{WHICH} Kinnairdy Castle", f"{STOREYS} five"]]
    assert (prediction.answer, found(prediction)) == ("five", ["gregory", "kinnairdy"])


def test_decompose_rag_searches_for_all_parts_and_reads_once():
    general = "How many storeys has the castle?"
    retriever = ScriptedRetriever({WHICH: [GREGORY], general: [KINNAIRDY]})
    said = [{"subquestions": json.dumps([WHICH, general])}, {"answer": "five"}]
    prediction = run(DecomposeRAG(retriever), CASTLE, *said)
    assert sorted(retriever.queries) == sorted([WHICH, general])
    assert (prediction.answer, found(prediction)) == ("five", ["gregory", "kinnairdy"])
