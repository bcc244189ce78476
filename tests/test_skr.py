"""SKR: the vote of similar questions decides whether to retrieve; scripted language models, the embedded encoder."""

import asyncio

import dspy
import pytest
from scripted import Listener, ScriptedLM, ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.small.card import read_card
from hoptimizer.models.small.loading import load_step_model
from hoptimizer.optimizers import CompileContext
from hoptimizer.optimizers.tuning.distill import Distill
from hoptimizer.programs import RAISF, SKR, SelfRAG, build_program, settings_model
from hoptimizer.retrieval import Corpus

# After figure 1 of the paper: what everybody knows is answered from memory, what changes with time from passages.
CAPITALS = [f"What is the capital of {place}?" for place in ("France", "Italy", "Spain", "Norway", "Peru", "Japan")]
COACHES = [f"Who coached the {team} in 1987?" for team in ("Lions", "Bears", "Eagles", "Rams", "Jets", "Hawks")]
QUESTIONS = [
    Question(id=str(n), question=text, answers=["right"], passages=["p"]) for n, text in enumerate(CAPITALS + COACHES)
]
TRAIN, DEV = QUESTIONS[:5] + QUESTIONS[6:11], [QUESTIONS[5], QUESTIONS[11]]
FOUND = {question.question: [passage("p")] for question in QUESTIONS}


def script(field, inputs):
    """Knows the capitals; reads the coaches of all teams but the Jets."""
    if field == "knows":
        return "no"
    text = inputs["question"]
    return "right" if "capital" in text or ("context" in inputs and "Jets" not in text) else "wrong"


def distilled(folder, program, train=TRAIN, **options):
    lm = ScriptedLM(script)
    program.lms = dict.fromkeys(program.step_names, lm)
    report = Listener(lambda *told: None)
    context = CompileContext(
        program, train, DEV, Corpus([passage("p")]), Objective.parse("em"), None, 7, 4, folder, report
    )
    optimizer = Distill(steps=["self_knowledge"], **{"self_knowledge": "knn", **options})
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        optimizer.check(context)
        return optimizer.compile(context), lm


def asked(program, question):
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        prediction = program(question=question)
    return prediction, [record.step for record in prediction.steps]


def test_similar_questions_decide_whether_to_retrieve(tmp_path):
    program, _ = distilled(tmp_path, SKR(ScriptedRetriever(FOUND)), k=3)
    known, steps = asked(program, CAPITALS[5])
    assert (known.answer, known.passages, steps) == ("right", [], ["self_knowledge", "closed_book"])
    assert known.steps[0].outputs == {"knows": "yes", "probability": 1.0}
    looked_up, steps = asked(program, COACHES[5])
    assert (looked_up.answer, steps) == ("right", ["self_knowledge", "retrieve", "reader"])
    assert looked_up.steps[0].calls == 0


def test_what_is_right_neither_with_nor_without_passages_says_nothing(tmp_path):
    program, lm = distilled(tmp_path, SKR(ScriptedRetriever(FOUND)))
    card = program.models["self_knowledge"].card
    assert card.train.classes == {"no": 4, "yes": 5}  # the Jets' coach is left out
    assert card.threshold == pytest.approx(5 / 9)
    assert card.scores["balanced_accuracy"] == 1.0
    assert {field for field, _ in lm.asked} == {"answer"}


def test_the_vote_is_kept_in_a_folder_and_loaded_for_any_program(tmp_path):
    program, _ = distilled(tmp_path, SKR(ScriptedRetriever(FOUND)), k=3)
    folder = tmp_path / "self_knowledge"
    assert sorted(file.name for file in folder.iterdir()) == ["card.json", "neighbours.safetensors"]
    assert (read_card(folder).kind, program.dump_state()["program"]["models"]) == ("knn", ["self_knowledge"])
    settings = settings_model("skr")(name="skr", reader="cot", steps={"self_knowledge": str(folder)})
    again = build_program(settings, ScriptedRetriever(FOUND), k=1)
    lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=24))
    with dspy.context(lm=lm, adapter=build_adapter()):
        known, looked_up = (again(question=questions[5]) for questions in (CAPITALS, COACHES))
    assert [record.step for record in known.steps] == ["self_knowledge", "closed_book"]
    assert [record.step for record in looked_up.steps] == ["self_knowledge", "retrieve", "reader"]


def test_ra_isf_can_have_its_questions_voted_on(tmp_path):
    program, _ = distilled(tmp_path, RAISF(ScriptedRetriever(FOUND), max_depth=0), k=3)
    prediction, steps = asked(program, CAPITALS[5])
    assert (prediction.answer, steps[:2]) == ("right", ["self_knowledge", "closed_book"])


def test_uncompiled_the_model_is_asked_whether_it_knows():
    for program in (SKR(ScriptedRetriever(FOUND)), SelfRAG(ScriptedRetriever(FOUND))):
        program.lms = dict.fromkeys(program.step_names, ScriptedLM(lambda field, _: "yes" if field == "knows" else "x"))
        prediction, steps = asked(program, COACHES[0])
        assert (prediction.answer, steps) == ("x", ["self_knowledge", "closed_book"])


def test_what_is_said_to_be_known_and_can_not_be_read_is_looked_up():
    program = SKR(ScriptedRetriever(FOUND))
    said = {"knows": "yes", "answer": ""}
    program.lms = dict.fromkeys(program.step_names, ScriptedLM(lambda field, _: said[field]))
    assert asked(program, COACHES[0])[1] == ["self_knowledge", "closed_book", "retrieve", "reader"]


def test_a_judgement_by_probability_asks_for_the_answer_once(tmp_path):
    lm = ScriptedLM(script, likelihood=lambda field, inputs: 0.9 if "capital" in inputs["question"] else 0.2)
    program = SKR(ScriptedRetriever(FOUND))
    program.lms = dict.fromkeys(program.step_names, lm)
    context = CompileContext(
        program, TRAIN, DEV, Corpus([passage("p")]), Objective.parse("em"), None, 7, 4, tmp_path, Listener(print)
    )
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        compiled = Distill(steps=["self_knowledge"]).compile(context)
    assert asked(compiled, CAPITALS[5])[1] == ["closed_book", "self_knowledge"]
    assert asked(compiled, COACHES[5])[1] == ["closed_book", "self_knowledge", "retrieve", "reader"]


def test_a_vote_without_both_labels_is_one_line(tmp_path):
    with pytest.raises(UserError, match="none of the 5 train examples has the label 'no'"):
        distilled(tmp_path, SKR(ScriptedRetriever(FOUND)), train=TRAIN[:5])
    with pytest.raises(UserError, match="compares answers with and without passages"):
        distilled(tmp_path, RAISF(ScriptedRetriever(FOUND), relevance="none"))


def test_broken_neighbours_are_one_line(tmp_path):
    distilled(tmp_path, SKR(ScriptedRetriever(FOUND)))
    folder = tmp_path / "self_knowledge"
    (folder / "neighbours.safetensors").write_bytes(b"?")
    with pytest.raises(UserError, match=r"neighbours.safetensors: is broken"):
        load_step_model(str(folder), "self_knowledge")


def test_votes_of_calls_under_way_together_are_each_their_own(tmp_path):
    program, _ = distilled(tmp_path, SKR(ScriptedRetriever(FOUND)), k=3)
    model = program.models["self_knowledge"]

    async def together():
        return await asyncio.gather(*(model({"question": text}) for text in (CAPITALS[5], COACHES[5])))

    assert [judged["knows"] for judged in asyncio.run(together())] == ["yes", "no"]
