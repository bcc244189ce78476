"""What annotations say: the same for demonstrations, oracles and whatever else learns from them."""

import asyncio
import json

import dspy
import pytest
from scripted import RefusingRetriever, ScriptedLM, ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import folded
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.optimizers.labels.annotations import (
    ANNOTATIONS,
    Case,
    Unannotated,
    annotations,
    check_annotations,
    holding,
)
from hoptimizer.optimizers.labels.decomposition import ordered_subquestions, subquestions
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.labels.oracle import replay
from hoptimizer.optimizers.labels.reasoning import reasoning
from hoptimizer.programs import DSP, RAISF, DecomP, IRCoT, ReciteAndAnswer, SelfAsk, SelfRAG
from hoptimizer.programs.question_tree import REFERENCE
from hoptimizer.programs.question_tree import subquestions as split_into
from hoptimizer.retrieval import Corpus

HOPS = [
    Hop(question="Who built the mill?", answer="Ada", passage="mill"),
    Hop(question="Where was Ada born?", answer="Bern", passage="ada"),
]
ASKED = "Where was the builder of the mill born?"
BOTH = Question(
    id="1", question=ASKED, answers=["Bern"], passages=["mill", "ada"], hops=HOPS, rationale="One sentence, two facts."
)
CORPUS = Corpus([passage("mill"), passage("ada"), passage("other")])
CHAIN = ["Who built the mill: Ada.", "Where was Ada born: Bern.", "So the answer is: Bern."]


def without(**fields):
    return BOTH.model_copy(update=fields)


@pytest.mark.parametrize(
    ("question", "sentences"),
    [
        (BOTH, CHAIN),
        (without(rationale=None), CHAIN),
        (without(hops=[], rationale="Ada built it. She is of Bern."), ["Ada built it.", "She is of Bern.", CHAIN[-1]]),
        (without(hops=[], rationale="It is old. The answer is: Bern."), ["It is old.", CHAIN[-1]]),
    ],
)
def test_reasoning_has_a_sentence_per_hop_and_ends_in_the_answer(question, sentences):
    assert reasoning(question) == sentences


def test_a_demonstration_shows_the_thought_that_an_oracle_thinks():
    questions = [without(id=str(number), rationale=None) for number in range(8)]
    shown = annotate(questions, CORPUS, ScriptedRetriever({}), distractors=1, seed=7)
    assert {example.chain for example in shown} == {" ".join(CHAIN)}
    assert {example.thought for example in shown} == set(CHAIN)
    assert thought(BOTH, thoughts="phrase") == [{"thought": sentence} for sentence in CHAIN]


def thought(question, **options):
    """The outputs of an oracle that thinks for an IRCoT program, in their order."""
    program = IRCoT(ScriptedRetriever({}), reader="none", **options)
    steps = set(annotations(program)) - {"reader"}
    taken = asyncio.run(replay(program, question, CORPUS, steps))
    names = ("thoughts", "known", "facts")
    said = [next(one.inputs[name] for name in names if name in one.inputs) for one in taken]
    return [one.outputs for _, one in sorted(zip(said, taken, strict=True), key=lambda pair: len(pair[0]))]


def test_an_oracle_looks_up_the_next_hop_and_knows_enough_with_the_last_fact():
    first, last = CHAIN[:2]
    assert thought(BOTH) == [
        {"next_thought": first},
        {"look_up": BOTH.hops[1].question, "enough": "no", "final_answer": ""},
        {"next_thought": last},
        {"look_up": "", "enough": "yes", "final_answer": "Bern"},
    ]


def test_without_hops_the_page_of_the_next_fact_is_looked_up():
    facts = "The Mill: It was built by Ada. Ada: She was born in Bern. So the answer is: Bern."
    told = ANNOTATIONS["look_up"].tell
    assert told(Case(without(hops=[], rationale=facts), None), {}, 0) == "Who or what is Ada?"
    assert told(Case(without(hops=[], rationale=facts), None), {}, 1) == ""
    untitled = without(hops=[], rationale="Ada built it. She was born in Bern. So the answer is: Bern.")
    with pytest.raises(Unannotated):
        told(Case(untitled, None), {}, 0)
    shown = annotate([untitled] * 8, CORPUS, ScriptedRetriever({}), distractors=1, seed=7)
    assert {(one.get("look_up"), one.get("enough")) for one in shown} == {(None, None), ("", "yes")}


def test_a_demonstration_of_a_typed_thought_has_the_answer_where_the_facts_suffice():
    questions = [without(id=str(number)) for number in range(8)]
    shown = annotate(questions, CORPUS, ScriptedRetriever({}), distractors=1, seed=7)
    assert {(one.known, one.next_thought, one.facts, one.look_up, one.enough, one.final_answer) for one in shown} == {
        ("", CHAIN[0], CHAIN[0], BOTH.hops[1].question, "no", ""),
        (CHAIN[0], CHAIN[1], " ".join(CHAIN[:2]), "", "yes", "Bern"),
    }
    assert {one.reasoning for one in shown} == {" ".join(CHAIN[:2])}


def test_musique_has_demonstrations_for_chains_of_thought(published, tmp_path):
    files = sorted((published / "musique").glob("train*"))
    import_published("musique", files[0], tmp_path / "musique", sizes={"train": 0.5, "dev": 0.5})
    data = load(str(tmp_path / "musique"))
    train = data.split("train", 20)
    assert not any(question.rationale for question in train)
    shown = annotate(train, data.corpus, None, distractors=0, seed=7)
    assert all(example.thought and example.chain.endswith(f"So the answer is: {example.answer}.") for example in shown)


def test_every_step_that_annotations_tell_is_in_the_table():
    assert set(annotations(IRCoT(ScriptedRetriever({})))) == {"reason", "follow_up", "reader"}
    assert ANNOTATIONS["thought"].given(without(rationale=None))
    assert not ANNOTATIONS["thought"].given(without(hops=[], rationale=None))


def test_a_question_without_reasoning_teaches_no_thought():
    for field in ("thought", "next_thought", "look_up", "enough", "final_answer"):
        with pytest.raises(Unannotated):
            ANNOTATIONS[field].tell(Case(without(hops=[], rationale=None), None), {}, 0)
    with pytest.raises(Unannotated):  # the chain is at its end
        ANNOTATIONS["thought"].tell(Case(BOTH, None), {}, 99)


def test_what_no_question_has_is_said_with_the_split_and_the_remedy():
    splits, known = {"train": [BOTH], "dev": [without(hops=[])]}, {"subquestions": ANNOTATIONS["ordered_subquestions"]}
    with pytest.raises(
        UserError, match=r"optimizer.steps: 'decompose' learns .* hops, which no dev question has; .* leave"
    ):
        check_annotations("optimizer.steps", "decompose", known, splits, "or leave the step out")


APART = Question(
    id="2",
    question="Which is older, the mill or the inn?",
    answers=["the inn"],
    passages=["mill", "inn"],
    hops=[
        Hop(question="When was the mill built?", answer="1720", passage="mill"),
        Hop(question="When was the inn built?", answer="1650", passage="inn"),
    ],
)


def hops(*pairs):
    return [Hop(question=question, answer=answer) for question, answer in pairs]


@pytest.mark.parametrize(
    ("asked", "chain", "split"),
    [
        (ASKED, HOPS, ["Who built the mill?", "Where was #1 born?"]),
        (
            "When did the eldest child of the king of Åland who rode die?",
            hops(("Who rode?", "Åke Ö."), ("Who was Ake O's child?", "Åke"), ("When did Åke die?", "1900")),
            ["Who rode?", "Who was #1's child?", "When did #2 die?"],
        ),
        (
            "Do the films of A and B come from one land?",
            hops(("Whence A?", "Chad"), ("Whence B?", "Chad"), ("Is Chad Chad?", "yes")),
            ["Whence A?", "Whence B?", "Is #2 #2?"],
        ),
        ("Who led Chad when Ada sang?", hops(("When did Ada sing?", "1990"), ("Who led Chad in 1990?", "B")), None),
        ("Who led Chad?", hops(("What is Chad?", "Chad"), ("Who led Chad?", "B")), ["What is Chad?", "Who led Chad?"]),
        ("Who rode in the year after 19?", hops(("What?", "19"), ("Who in 1990?", "B")), ["What?", "Who in 1990?"]),
    ],
)
def test_a_hop_that_names_an_earlier_answer_refers_to_it(asked, chain, split):
    question = without(question=asked, hops=chain)
    split = split or ["When did Ada sing?", "Who led Chad in #1?"]
    assert ordered_subquestions(question) == split
    complete = not any("#" in part for part in split)
    assert subquestions(question) == (split if complete else [])


def test_the_references_of_musique_are_found_again(published, tmp_path):
    file = published / "musique" / "train_100.jsonl"
    import_published("musique", file, tmp_path / "musique", sizes={"train": 0.5, "dev": 0.5})
    data = load(str(tmp_path / "musique"))
    items = {item["id"]: item for item in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    for question in [*data.split("train"), *data.split("dev")]:
        own = [set(REFERENCE.findall(step["question"])) for step in items[question.id]["question_decomposition"]]
        assert [set(REFERENCE.findall(part)) for part in ordered_subquestions(question)] == own, question.id


def test_targets_in_order_filled_in_are_the_hops_again(published, tmp_path):
    file = published / "2wikimultihopqa" / "train_500.json"
    import_published("2wikimultihopqa", file, tmp_path / "wiki", sizes={"train": 0.5, "dev": 0.5})
    for question in load(str(tmp_path / "wiki")).split("train"):
        answers = {number: hop.answer for number, hop in enumerate(question.hops, 1)}
        parts = split_into(ordered_subquestions(question), question.question, 9, references=True)
        filled = {folded(part.filled_in(answers)) for part in parts}
        assert filled <= {folded(hop.question) for hop in question.hops}, question.id


def test_subquestions_of_independent_hops_are_the_hops_with_and_without_references():
    assert subquestions(APART) == ordered_subquestions(APART) == [hop.question for hop in APART.hops]
    assert subquestions(without(hops=HOPS[:1])) == ordered_subquestions(without(hops=HOPS[:1])) == []


@pytest.mark.parametrize(
    ("question", "ids"),
    [
        (BOTH, ["ada"]),  # the first hop's passage holds an answer, but not the question's
        (without(passages=["mill"], hops=[]), ["mill"]),
        (APART, []),
        (without(hops=[]), ["inn"]),
        (without(hops=[], question="Was Ada born in Bern or in Rome?"), []),
        (without(hops=[], answers=["no"]), []),
    ],
)
def test_a_passage_holds_the_answer_by_itself_or_not(question, ids):
    corpus = Corpus([passage("mill"), passage("ada"), passage("inn", "She was born in Bern: no doubt.")])
    given = question if question.hops else without(**{**dict(question), "passages": [*question.passages[:1], "inn"]})
    given = question if question.passages == ["mill"] else given
    assert holding(given, corpus) == ids


def judged(program, steps, found):
    solver = RAISF(ScriptedRetriever(found), self_knowledge=False, decomposition=False, max_depth=0, relevance=program)
    lm = ScriptedLM(lambda field, inputs: "?")
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        return asyncio.run(replay(solver, BOTH, CORPUS, steps))


def test_the_first_hops_passage_is_not_relevant_to_the_whole_question():
    taken = judged("passage", ["relevance"], {ASKED: [passage("mill"), passage("other")]})
    assert {one.inputs["passage"]: one.outputs["relevant"] for one in taken} == {
        str(passage("mill")): "no",
        str(passage("other")): "no",
    }


@pytest.mark.parametrize(
    ("found", "sufficient"), [(["ada"], "no"), (["mill", "other"], "no"), (["other", "ada", "mill"], "yes")]
)
def test_all_supporting_passages_suffice_for_the_whole_question_and_no_fewer(found, sufficient):
    [one] = judged("sufficiency", ["sufficiency"], {ASKED: [passage(id) for id in found]})
    assert one.outputs == {"sufficient": sufficient}
    assert one.inputs["retrieved"] == [str(passage(id)) for id in found]


def test_demonstrations_of_judging_agree_with_the_table():
    found = {ASKED: [passage("other"), passage("mill"), passage("spare")]}
    corpus = Corpus([*CORPUS, passage("spare")])
    questions = [without(id=str(number)) for number in range(20)]
    shown = annotate(questions, corpus, ScriptedRetriever(found), distractors=1, seed=7)
    case = Case(BOTH, corpus)
    for example in shown:
        inputs = example.toDict()
        assert example.relevant == ANNOTATIONS["relevant"].tell(case, inputs, 0)
        assert example.sufficient == ANNOTATIONS["sufficient"].tell(case, inputs, 0)
        assert len(example.retrieved) == 3
        assert example.ordered_subquestions == ["Who built the mill?", "Where was #1 born?"]
        assert "subquestions" not in example
    assert {example.relevant for example in shown} == {example.sufficient for example in shown} == {"yes", "no"}
    assert str(passage("mill")) in {example.passage for example in shown if example.relevant == "no"}


def test_a_replay_solves_what_refers_to_an_answer_after_it():
    found = {
        "Who built the mill?": [passage("mill")],
        "Where was Ada born?": [passage("ada")],
        ASKED: [passage("mill")],
    }
    program = RAISF(ScriptedRetriever(found), self_knowledge=False, ordered_subquestions=True)
    taken = asyncio.run(replay(program, BOTH, CORPUS, ["relevance", "reader", "decompose", "combine"]))
    outputs = {(one.step, one.inputs["question"]): next(iter(one.outputs.values())) for one in taken}
    assert outputs["decompose", ASKED] == ["Who built the mill?", "Where was #1 born?"]
    assert outputs["reader", "Where was Ada born?"] == "Bern"
    assert outputs["combine", ASKED] == "Bern"


def test_self_ask_asks_for_the_hops_one_after_the_other():
    program = SelfAsk(ScriptedRetriever({}))
    taken = asyncio.run(replay(program, BOTH, CORPUS, ["ask", "reader", "combine"]))
    first, last = (f"{hop.question} {hop.answer}" for hop in HOPS)
    asked = {tuple(one.inputs["answered"]): one.outputs for one in taken if one.step == "ask"}
    assert asked == {
        (): {"next_question": HOPS[0].question},
        (first,): {"next_question": HOPS[1].question},
        (first, last): {"next_question": ""},
    }
    shown = annotate(
        [without(id=str(number)) for number in range(20)], CORPUS, ScriptedRetriever({}), distractors=1, seed=7
    )
    demonstrated = {tuple(one.answered): {"next_question": one.next_question} for one in shown}
    assert demonstrated == asked


def test_the_queries_of_demonstrate_search_predict_are_the_hops():
    taken = asyncio.run(replay(DSP(ScriptedRetriever({})), BOTH, CORPUS, ["first_query", "next_query", "reader"]))
    asked = {one.step: one.outputs for one in taken}
    assert asked["first_query"] == {"first_query": HOPS[0].question}
    assert asked["next_query"] == {"search_query": HOPS[1].question}
    [shown] = annotate([BOTH], CORPUS, ScriptedRetriever({ASKED: [passage("other")]}), distractors=1, seed=7)
    assert (shown.first_query, shown.search_query) == (HOPS[0].question, HOPS[1].question)
    assert sorted(shown.found) == [str(passage("mill")), str(passage("other"))]


def test_what_is_recited_is_the_supporting_passages():
    texts = [str(passage("mill")), str(passage("ada"))]
    [recited, _] = asyncio.run(replay(ReciteAndAnswer(recitations=1), BOTH, CORPUS, ["recite", "reader"]))[::-1]
    assert recited.outputs == {"recited": texts}
    [shown] = annotate([BOTH], CORPUS, None, distractors=1, seed=7)
    assert shown.recited == texts


@pytest.mark.parametrize(
    ("seen", "candidate", "supported"),
    [("ada", "bern", "fully"), ("mill", "Bern", "partially"), ("other", "Bern", "no"), ("ada", "Ada", "no")],
)
def test_a_passage_supports_the_right_answer_that_it_holds(seen, candidate, supported):
    inputs = {"question": ASKED, "passage": str(passage(seen)), "candidate": candidate}
    assert ANNOTATIONS["supported"].tell(Case(BOTH, CORPUS), inputs, 0) == supported
    assert ANNOTATIONS["useful"].tell(Case(BOTH, CORPUS), inputs, 0) == (
        "not at all" if candidate == "Ada" else "completely"
    )


def test_a_question_whose_search_is_refused_is_annotated_without_passages_and_the_others_with_theirs():
    questions = [without(id=str(number), question=f"{number}?") for number in range(3)]
    retriever = RefusingRetriever({f"{number}?": [passage("other")] for number in range(3)}, "0?")
    shown = annotate(questions, CORPUS, retriever, distractors=1, seed=7)
    assert ["context" in example for example in shown] == [False, True, True]


def test_demonstrations_of_critique_agree_with_the_table():
    questions = [without(id=str(number)) for number in range(30)]
    found = ScriptedRetriever({ASKED: [passage("other")]})
    shown = annotate(questions, CORPUS, found, distractors=1, seed=7)
    for example in shown:
        for name in ("supported", "useful"):
            assert example[name] == ANNOTATIONS[name].tell(Case(BOTH, CORPUS), example.toDict(), 0)
    assert {(one.candidate, one.useful) for one in shown} == {("Bern", "completely"), ("Ada", "not at all")}
    assert {one.supported for one in shown} == {"fully", "partially", "no"}
    for answers, wrong in ((["yes"] * 20, {"no"}), (["Bern", "Lyon"] * 10, {"Bern", "Lyon"})):
        questions = [without(id=str(n), hops=[], answers=[answer]) for n, answer in enumerate(answers)]
        shown = annotate(questions, CORPUS, found, distractors=1, seed=7)
        assert {one.candidate for one in shown if one.useful == "not at all"} == wrong
    assert set(annotations(SelfRAG(found))) == {"relevance", "reader", "support", "usefulness"}


@pytest.mark.parametrize(
    ("question", "tasks"),
    [
        (BOTH, [(HOPS[0].question, "search"), (HOPS[1].question, "search"), ("", "end")]),
        (
            APART,
            [*((hop.question, "search") for hop in APART.hops), (APART.question, "combine"), ("", "end")],
        ),
    ],
)
def test_decomposed_prompting_combines_what_the_last_hop_does_not_answer(question, tasks):
    corpus = Corpus([*CORPUS, passage("inn")])
    taken = asyncio.run(replay(DecomP(ScriptedRetriever({})), question, corpus, ["plan", "reader", "combine"]))
    planned = sorted((one for one in taken if one.step == "plan"), key=lambda one: len(one.inputs["answered"]))
    assert [(one.outputs["task_question"], one.outputs["task"]) for one in planned] == tasks
