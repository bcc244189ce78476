"""Questions that a teacher writes about passages, each checked; a scripted language model is the teacher."""

import json
import shutil
import types
from collections.abc import Callable, Mapping
from pathlib import Path

import dspy
import pytest
from dspy.utils.exceptions import LMTransportError
from scripted import ScriptedLM

from hoptimizer.cli import main
from hoptimizer.common.errors import UserError
from hoptimizer.eval import check, load
from hoptimizer.eval.documents.importing import import_documents
from hoptimizer.eval.synthesis.checks import DroppedError, check_form, gives, is_new, put_in, to_ask_for
from hoptimizer.eval.synthesis.links import find_links
from hoptimizer.eval.synthesis.synthesizing import Synthesized, expected_synthesis, synthesize
from hoptimizer.retrieval import Corpus, Passage

ALMA = Passage("alma", "Alma", "The ferry Alma is commanded by Ines Moreau since the spring of 2011.")
INES = Passage("ines", "Ines Moreau", "She was born in Lyon, studied there, and has lived in Oslo since then.")
OSLO = Passage("oslo", "Oslo", "It lies at the end of a fjord and was founded by Harald Hardrada in 1048.")
CORPUS = Corpus([ALMA, INES, OSLO], name="ships")
JOINED = "Where was the commander of the ferry Alma born?"


ASKED = {
    "Alma": "Since when is the Alma commanded by Ines Moreau?",
    "Ines": "Where was Ines Moreau born?",
    "Oslo": "Who founded the city of Oslo?",
}
ANSWERS = {"Alma": "2011", "Ines": "Lyon", "Oslo": "Harald Hardrada"}


def said(field: str, inputs: dict[str, str]) -> str:
    """What a good teacher says of the passages above."""
    passage, context = inputs.get("passage", "")[:4], inputs.get("context", "")
    if field == "answers":
        return json.dumps(["a word that is not there", ANSWERS[passage]])
    if field == "phrase":
        return "the commander of the ferry Alma" if "Alma" in inputs["question"] else "the city Ines Moreau lives in"
    if field == "question" and inputs["answer"] in ("Ines Moreau", "Oslo"):
        return "Who commands the ferry Alma?" if passage == "Alma" else "In which city has Ines Moreau lived?"
    if field == "question":
        return ASKED[passage]
    # The reader: it knows what its passages say.
    question = inputs["question"]
    if question == JOINED:
        return "Lyon" if "Alma" in context and "Lyon" in context else "unknown"
    known = {"Since": "2011", "Where": "Lyon", "Who f": "Harald Hardrada"}
    answer = known[question[:5]]
    return answer if answer in context and ("lives" not in question or "has lived" in context) else "unknown"


def run(
    tmp_path: Path,
    script: Callable[[str, dict[str, str]], str] = said,
    sizes: Mapping[str, float] = types.MappingProxyType({"dev": 1.0}),
    **options: float,
) -> tuple[Synthesized, ScriptedLM]:
    lm = ScriptedLM(script)
    with dspy.context(adapter=dspy.ChatAdapter()):
        made = synthesize(CORPUS, tmp_path / "made", lm, sizes=sizes, **options)
    return made, lm


@pytest.mark.usefixtures("checkpoint")
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


def test_few_passages_are_asked_for_all_that_the_teacher_names_of_them(tmp_path: Path):
    first = {"1988": "In which year was the Alma built?", "Bo": "By whom was the Alma built?"}
    second = {"1991": "When was the Brix launched in Bergen?", "Kari": "Which woman launched the Brix in Bergen?"}
    asked = first | second | {"Oslo": "From which port does the Brix sail now?"}
    corpus = Corpus([
        Passage("alma", "Alma", "The ferry Alma was built in 1988 by Bo at his yard."),
        Passage("brix", "Brix", "The ferry Brix was launched in 1991 by Kari and sails from Oslo."),
    ])  # fmt: skip

    def script(field: str, inputs: dict[str, str]) -> str:
        if field == "answers":
            return json.dumps(list(first) if "Alma" in inputs["passage"] else [*second, "Oslo"])
        if field == "question":
            return asked[inputs["answer"]]
        return (
            next(answer for answer, text in asked.items() if text == inputs["question"]) if "context" in inputs else "?"
        )

    def written(folder: str, n: int) -> list[str]:
        lm = ScriptedLM(script)
        with dspy.context(adapter=dspy.ChatAdapter()):
            made = synthesize(corpus, tmp_path / folder, lm, sizes={"dev": 1.0}, n=n, multi=0.0)
        calls.append(len(lm.asked))
        assert made.attempts <= expected_synthesis(corpus, n=n, multi=0.0).most_calls
        return [question.question for question in load(str(tmp_path / folder)).split("dev")]

    calls: list[int] = []
    assert sorted(written("all", 40)) == sorted(asked.values())
    assert calls == [2 * 4 + 3 * 3], "each passage is asked once what it can be asked for"
    assert expected_synthesis(corpus, n=5, multi=0.0).calls == 2 * 4 + 8 * 3
    two = written("two", 2)
    assert len(set(two) & set(first.values())) == len(set(two) & set(second.values()) | set(two) & {asked["Oslo"]}) == 1


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
        same = {"question": "Where was Ines Moreau born?", "answers": '["Lyon"]'}
        return same.get(field, "Lyon")

    with pytest.raises(UserError, match="answered without its passages: 1"):
        run(tmp_path, script, n=1, multi=0.0)
    assert not (tmp_path / "made").exists()
    assert is_new("Who commands the Alma?", ["Who built the Alma?"])
    assert not is_new("Who commands the ferry Alma?", ["Who commands the ferry, Alma?"])


def test_sizes_are_looked_at_before_anything_is_asked_and_fewer_questions_are_divided_alike(tmp_path: Path):
    def nothing(field: str, inputs: dict[str, str]) -> str:
        raise AssertionError(field)

    for sizes in ({"training": 4}, {"train": 4, "dev": 2}, {"train": 0.5, "dev": 2}):
        with pytest.raises(UserError, match=r"training|take more than the 5|must all be"):
            run(tmp_path, nothing, sizes, n=5)
    made, _ = run(tmp_path, said, {"train": 20, "dev": 20}, n=40, multi=0.4)
    assert sum(made.splits.values()) < 40
    assert abs(made.splits["train"] - made.splits["dev"]) <= 1
    kept = sum(made.splits.values())
    shutil.rmtree(made.folder)
    made, _ = run(tmp_path, said, {"train": 0.98, "dev": 0.01, "test": 0.01}, n=40, multi=0.4)
    assert made.splits == {"train": kept - 2, "dev": 1, "test": 1}, "no split that was asked for is empty"


def test_a_question_that_other_passages_fit_is_dropped(tmp_path: Path):
    others = [Passage(f"n{i}", f"Ferry {i}", "The ferry is commanded by Karl Brandt, her captain.") for i in range(4)]

    def script(field: str, inputs: dict[str, str]) -> str:
        if inputs.get("passage", "").startswith("Alma") and field == "question":
            return "By which captain is the ferry commanded, Karl or another one?"
        return said(field, inputs) if field != "answers" or inputs["passage"][:4] in ANSWERS else '["no"]'

    lm = ScriptedLM(script)
    with dspy.context(adapter=dspy.ChatAdapter()):
        corpus = Corpus([*CORPUS, *others], name="more ships")
        made = synthesize(corpus, tmp_path / "made", lm, sizes={"dev": 1.0}, n=4, multi=0.0)
    assert made.splits == {"dev": 2}
    assert made.dropped == {"nothing in the passage to ask for": 4, "a question that other passages fit better": 1}


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
        ("What is the Ines called?", "Ines Moreau", "does not name"),
    ],
)
def test_a_question_must_stand_for_itself(question: str, answer: str, reason: str):
    with pytest.raises(DroppedError, match=reason):
        check_form(question, answer, ALMA)


@pytest.mark.parametrize(
    ("question", "phrase", "joined"),
    [
        ("Where was Ines Moreau born?", "the commander of the ferry Alma.", JOINED),
        ("When is Ines Moreau's birthday?", "The commander", "When is the commander's birthday?"),
        ("Ines Moreau was born where?", "the commander", "The commander was born where?"),
        ("Where was she born?", "the commander", "without the name"),
        ("Where was Ines Moreau born?", "Who commands the Alma?", "no phrase"),
        ("Where was Ines Moreau born?", "the ferry of Ines Moreau", "with the name in it"),
    ],
)
def test_a_description_takes_the_place_of_the_name(question: str, phrase: str, joined: str):
    if joined.endswith("?"):
        assert put_in(question, "Ines Moreau", phrase) == joined
    else:
        with pytest.raises(DroppedError, match=joined):
            put_in(question, "Ines Moreau", phrase)


def test_what_can_be_asked_for_are_a_few_words_of_the_passage_and_not_its_title():
    passage = Passage("i", "Ines Moreau (captain)", "Ines Anne Moreau, called Ines, was born in Lyon in 1970.")
    answers = ["Lyon", "Lyon.", "Paris", "Ines", "Ines Moreau", "", "was born in Lyon in 1970"]
    assert to_ask_for(answers, passage) == ["Lyon", "was born in Lyon in 1970"]


def test_an_answer_counts_as_given_where_it_is_a_part_of_what_was_said():
    assert gives("She was born in Lyon.", "Lyon")
    assert not gives("unknown", "Lyon")
    assert not gives(None, "Lyon")


def test_an_outage_is_one_error_and_no_group_of_them(tmp_path: Path):
    def script(field: str, inputs: dict[str, str]) -> str:
        raise LMTransportError("no answer")

    with pytest.raises(UserError, match="gave no answer"):
        run(tmp_path, script, n=1, multi=0.0)


@pytest.mark.parametrize(("n", "multi"), [(3, 0.0), (5, 0.4), (2, 1.0)])
def test_the_calls_that_are_expected_are_those_that_are_made_where_all_is_good(n: int, multi: float, tmp_path: Path):
    expected = expected_synthesis(CORPUS, n=n, multi=multi)
    made, lm = run(tmp_path, n=n, multi=multi)
    assert (expected.singles, expected.links) == (3, 2)
    assert sum(made.splits.values()) == n
    assert len(lm.asked) <= expected.calls <= expected.most_calls
    if not made.dropped:
        assert len(lm.asked) == expected.calls


def test_with_the_last_call_what_is_kept_is_the_data_set(tmp_path: Path):
    made, lm = run(tmp_path, n=3, multi=0.0, lm_calls=10)
    assert len(lm.asked) == 10
    assert 0 < sum(made.splits.values()) < 3
    assert made.dropped["no call was left for it"] >= 1
    assert expected_synthesis(CORPUS, n=3, multi=0.0, lm_calls=10).calls == 10
    shutil.rmtree(made.folder)
    with pytest.raises(UserError, match="no call was left for it"):
        run(tmp_path, n=3, multi=0.0, lm_calls=2)


def test_a_dry_run_asks_nothing_and_says_of_whom_what_would_be_asked(tmp_path: Path, monkeypatch, capsys):
    docs = Path(__file__).parents[1] / "examples" / "handbook"
    import_documents(None, docs, tmp_path / "handbook")
    words = ["data", "synthesize", str(tmp_path / "handbook"), "--out", str(tmp_path / "made"), "-n", "4", "--dry-run"]
    monkeypatch.setattr("sys.argv", ["hop", *words, "lm.teacher.model=openai/x", "lm.teacher.api_key=sk-secret"])
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr()
    assert "teacher openai/x, for 4 questions, 2 of them over two passages" in shown.out
    assert "96 calls if every question passes the checks, at most 244" in shown.out
    assert "sk-secret" not in shown.out + shown.err
    assert not (tmp_path / "made").exists()
