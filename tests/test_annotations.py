"""What annotations say: the same for demonstrations, oracles and whatever else learns from them."""

import asyncio

import pytest
from scripted import ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.optimizers.labels.annotations import ANNOTATIONS, annotations, check_annotations, reasoning
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.labels.oracle import replay
from hoptimizer.programs import IRCoT
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
    taken = asyncio.run(replay(program, question, CORPUS, ["reason"]))
    return [one.outputs for one in sorted(taken, key=lambda one: len(one.inputs["thoughts"]))]


def test_an_oracle_knows_enough_with_the_last_fact():
    first, last = CHAIN[:2]
    assert thought(BOTH) == [
        {"next_thought": first, "enough": "no", "final_answer": ""},
        {"next_thought": last, "enough": "yes", "final_answer": "Bern"},
    ]


def test_a_demonstration_of_a_typed_thought_has_the_answer_where_the_facts_suffice():
    questions = [without(id=str(number)) for number in range(8)]
    shown = annotate(questions, CORPUS, ScriptedRetriever({}), distractors=1, seed=7)
    assert {(one.next_thought, one.enough, one.final_answer) for one in shown} == {
        (CHAIN[0], "no", ""),
        (CHAIN[1], "yes", "Bern"),
        (CHAIN[2], "yes", "Bern"),
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
    assert set(annotations(IRCoT(ScriptedRetriever({})))) == {"reason", "reader"}
    assert ANNOTATIONS["thought"].given(without(rationale=None))
    assert not ANNOTATIONS["thought"].given(without(hops=[], rationale=None))


def test_what_no_question_has_is_said_with_the_split_and_the_remedy():
    splits = {"train": [BOTH], "dev": [without(hops=[])]}
    with pytest.raises(
        UserError, match=r"optimizer.steps: 'decompose' learns .* hops, which no dev question has; .* leave"
    ):
        check_annotations(
            "optimizer.steps",
            "decompose",
            {"subquestions": ANNOTATIONS["subquestions"]},
            splits,
            "or leave the step out",
        )
