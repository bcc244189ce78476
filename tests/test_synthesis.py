"""Questions that a teacher writes about passages, each checked; a scripted language model is the teacher."""

from collections.abc import Callable
from pathlib import Path

import dspy
import pytest
from scripted import ScriptedLM

from hoptimizer.common.errors import UserError
from hoptimizer.eval import check, load
from hoptimizer.eval.synthesis.checks import DroppedError, check_form, check_joined, gives, is_new
from hoptimizer.eval.synthesis.links import find_links
from hoptimizer.eval.synthesis.synthesizing import Synthesized, synthesize
from hoptimizer.retrieval import Corpus, Passage

ALMA = Passage("alma", "Alma", "The ferry Alma is commanded by Ines Moreau since the spring of 2011.")
INES = Passage("ines", "Ines Moreau", "She was born in Lyon, studied there, and has lived in Oslo since then.")
OSLO = Passage("oslo", "Oslo", "It lies at the end of a fjord and was founded by Harald Hardrada in 1048.")
CORPUS = Corpus([ALMA, INES, OSLO], name="ships")
JOINED = "Where was the commander of the ferry Alma born?"


def said(field: str, inputs: dict[str, str]) -> str:
    """What a good teacher says of the passages above."""
    passage, context = inputs.get("passage", ""), inputs.get("context", "")
    if field == "question" and "first_question" in inputs:
        return JOINED if inputs["name"] == "Ines Moreau" else "Who founded the city in which Ines Moreau has lived?"
    if field == "question" and inputs.get("answer"):
        return "Who commands the ferry Alma?" if passage.startswith("Alma") else "In which city has Ines Moreau lived?"
    if field == "question":
        asked = {"Alma": "Since when is the Alma commanded by Ines Moreau?", "Ines": "Where was Ines Moreau born?"}
        return asked.get(passage[:4], "Who founded the city of Oslo?")
    if field == "answer" and passage:
        return {"Alma": "2011", "Ines": "Lyon"}.get(passage[:4], "Harald Hardrada")
    # The reader: it knows what its passages say.
    question = inputs["question"]
    if question == JOINED:
        return "Lyon" if "Alma" in context and "Lyon" in context else "unknown"
    known = {"Since": "2011", "Where": "Lyon", "Who f": "Harald Hardrada"}
    answer = known[question[:5]]
    return answer if answer in context and ("lived" not in question or "has lived" in context) else "unknown"


def run(
    tmp_path: Path, script: Callable[[str, dict[str, str]], str] = said, **options: float
) -> tuple[Synthesized, ScriptedLM]:
    lm = ScriptedLM(script)
    with dspy.context(adapter=dspy.ChatAdapter()):
        made = synthesize(CORPUS, tmp_path / "made", lm, sizes={"dev": 1.0}, **options)
    return made, lm


def test_questions_have_their_passages_and_hops(tmp_path: Path):
    made, _ = run(tmp_path, n=5, multi=0.4)
    assert made.types == {"bridge": 2, "single": 3}
    questions = {question.question: question for question in load(str(tmp_path / "made")).split("dev")}
    two = questions[JOINED]
    assert two.answers == ["Lyon"]
    assert two.passages == ["alma", "ines"]
    assert [(hop.question, hop.answer, hop.passage) for hop in two.hops] == [
        ("Who commands the ferry Alma?", "Ines Moreau", "alma"),
        ("Where was Ines Moreau born?", "Lyon", "ines"),
    ]
    found = check(tmp_path / "made")
    assert (found.problems, found.warnings) == ([], [])


def test_calls_run_together(tmp_path: Path):
    _, lm = run(tmp_path, n=3, multi=0.0)
    assert lm.most >= 3


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ("knows it all", "answered without its passages"),
        ("knows nothing", "its passages do not answer it"),
        ("reads one", "one of its passages answers it alone"),
    ],
)
def test_a_question_that_its_passages_do_not_decide_is_dropped(context: str, reason: str, tmp_path: Path):
    def script(field: str, inputs: dict[str, str]) -> str:
        if field == "answer" and "passage" not in inputs and inputs["question"] == JOINED:
            if context == "knows nothing":
                return "unknown"
            return "Lyon" if context == "knows it all" and "context" not in inputs else _read(inputs)
        return said(field, inputs)

    def _read(inputs: dict[str, str]) -> str:
        return "Lyon" if context == "reads one" and "Lyon" in inputs.get("context", "") else said("answer", inputs)

    made, _ = run(tmp_path, script, n=4, multi=0.25)
    assert made.dropped[reason] >= 1


def test_what_asks_the_same_is_kept_once(tmp_path: Path):
    def script(field: str, inputs: dict[str, str]) -> str:
        return "Where was Ines Moreau born?" if field == "question" else "Lyon"

    with pytest.raises(UserError, match="answered without its passages: 1"):
        run(tmp_path, script, n=1, multi=0.0)
    assert not (tmp_path / "made").exists()
    assert is_new("Who commands the Alma?", ["Who built the Alma?"])
    assert not is_new("Who commands the ferry Alma?", ["Who commands the ferry, Alma?"])


def test_links_lead_to_the_passage_that_is_titled_after_the_name():
    links = [(link.first.id, link.name, link.second.id) for link in find_links(CORPUS.passages)]
    assert sorted(links) == [("alma", "Ines Moreau", "ines"), ("ines", "Oslo", "oslo")]


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("Tell me about Alma.", "2011", "no question"),
        ("Who commands the ferry Alma?", "Karl Brandt", "does not hold"),
        ("Does Ines Moreau command the Alma?", "Ines Moreau", "with its answer in it"),
        ("Who commands the Alma according to the passage?", "Ines Moreau", "points at a text"),
        ("Who has commanded her since then?", "Ines Moreau", "does not name"),
    ],
)
def test_a_question_must_stand_for_itself(question: str, answer: str, reason: str):
    with pytest.raises(DroppedError, match=reason):
        check_form(question, answer, ALMA)


def test_a_joined_question_has_lost_its_name_and_kept_both_parts():
    parts = ["Who commands the ferry Alma?", "Where was Ines Moreau born?"]
    check_joined(JOINED.replace("commander of", "person who commands"), "Ines Moreau", "Lyon", parts)
    for joined in ("Where was Ines Moreau of the ferry Alma born?", "Where was somebody else born?"):
        with pytest.raises(DroppedError, match="joined"):
            check_joined(joined, "Ines Moreau", "Lyon", parts)


def test_an_answer_counts_as_given_where_it_is_a_part_of_what_was_said():
    assert gives("She was born in Lyon.", "Lyon")
    assert not gives("unknown", "Lyon")
    assert not gives(None, "Lyon")
