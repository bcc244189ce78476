import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dspy
import pandas as pd
import pytest
from pydantic import ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.eval import DataSet, DataSettings, Hop, Question, bundled, check, load, new
from hoptimizer.eval.datasets.dataset import locate
from hoptimizer.eval.datasets.folder import write_folder
from hoptimizer.retrieval import Corpus, Passage

CORPUS = [
    {"id": "bridge", "title": "Bridge", "text": "The bridge was designed by Ines Moreau."},
    {"id": "moreau", "title": "Ines Moreau", "text": "Ines Moreau was born in Lyon."},
]
QUESTION = {
    "id": "q1",
    "question": "Where was the bridge's designer born?",
    "answers": ["Lyon", "Lyon, France"],
    "passages": ["bridge", "moreau"],
    "hops": [
        {"question": "Who designed the bridge?", "answer": "Ines Moreau", "passage": "bridge"},
        {"question": "Where was Ines Moreau born?", "answer": "Lyon"},
    ],
    "rationale": "Ines Moreau designed it. She was born in Lyon.",
    "type": "bridge",
}


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def questions(count: int) -> list[dict]:
    return [{**QUESTION, "id": f"q{number}"} for number in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "corpus.jsonl").write_text(lines(CORPUS))
    (path / "dev.jsonl").write_text(lines(questions(5)))
    return path


def test_reads_every_field_of_a_folder(folder: Path):
    data = load(str(folder))
    assert data.name == "mine"
    assert [passage.id for passage in data.corpus] == ["bridge", "moreau"]
    assert data.corpus["moreau"].text == "Ines Moreau was born in Lyon."
    question = data.split("dev")[1]
    assert question == Question(**{**QUESTION, "id": "q1", "hops": [Hop(**hop) for hop in QUESTION["hops"]]})
    assert question.hops[1].passage is None


def test_a_question_becomes_a_dspy_example_whose_input_is_the_question(folder: Path):
    example = load(str(folder)).split("dev")[0].to_dspy()
    assert isinstance(example, dspy.Example)
    assert example.inputs().toDict() == {"question": QUESTION["question"]}
    assert example.answer == "Lyon"
    assert example.answers == ["Lyon", "Lyon, France"]
    assert example.passages == ["bridge", "moreau"]
    assert example.hops[0].answer == "Ines Moreau"
    assert example.type == "bridge"
    json.dumps(example.toDict())


def test_takes_as_many_questions_as_asked_for(folder: Path):
    data = load(DataSettings(name=str(folder), dev=3))
    assert [question.id for question in data.split("dev")] == ["q0", "q1", "q2"]
    assert [question.id for question in data.split("dev", 2)] == ["q0", "q1"]


def test_the_digest_follows_the_content(folder: Path):
    before = load(str(folder)).digest
    assert load(str(folder)).digest == before
    assert load(DataSettings(name=str(folder), dev=4)).digest != before
    (folder / "corpus.jsonl").write_text(lines([*CORPUS, {"id": "new", "title": "", "text": "More."}]))
    assert load(str(folder)).digest != before


def test_another_corpus_stands_in_for_the_folders_own(folder: Path, tmp_path: Path):
    other = tmp_path / "big.jsonl"
    other.write_text(lines([*CORPUS, {"id": "extra", "text": "A passage without a title."}]))
    (folder / "corpus.jsonl").unlink()
    data = load(DataSettings(name=str(folder), corpus=other))
    assert data.corpus["extra"].title == ""


def test_tolerates_byte_order_mark_crlf_blank_lines_and_line_separators_in_text(folder: Path):
    odd = {**QUESTION, "question": "Where\u2028was he born? Ünïcode 東京"}
    text = "\r\n" + lines([odd]).replace("\n", "\r\n") + "\r\n  \r\n"
    (folder / "dev.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [question.question for question in load(str(folder)).split("dev")] == [odd["question"]]


def test_csv_and_parquet_hold_the_same_as_json_lines(folder: Path):
    rows = [*questions(2), {"id": "bare", "question": "Who?", "answers": ["007"]}]
    (folder / "dev.jsonl").write_text(lines(rows))
    expected = load(str(folder))
    (folder / "dev.jsonl").unlink()
    (folder / "corpus.jsonl").unlink()

    frame = pd.DataFrame(rows)
    cells = frame.map(lambda cell: json.dumps(cell) if isinstance(cell, list) else cell)
    cells.to_csv(folder / "dev.csv", index=False, encoding="utf-8-sig")
    pd.DataFrame(CORPUS).to_csv(folder / "corpus.csv", index=False)
    assert load(str(folder)).digest == expected.digest

    (folder / "dev.csv").unlink()
    (folder / "corpus.csv").unlink()
    frame.to_parquet(folder / "dev.parquet")
    pd.DataFrame(CORPUS).to_parquet(folder / "corpus.parquet")
    assert load(str(folder)).digest == expected.digest


def test_fields_of_the_users_own_are_left_alone(folder: Path):
    (folder / "dev.jsonl").write_text(lines([{**QUESTION, "level": "hard", "source": 3}]))
    assert len(load(str(folder)).split("dev")) == 1


BAD_QUESTIONS = {
    "malformed JSON": ('{"id": "q1",', ["dev.jsonl:1", "malformed JSON", "one object per line"]),
    "not an object": ('["q1"]\n', ["dev.jsonl, item 1", "expected an object"]),
    "a bare string": ('\n"q1"\n', ["dev.jsonl:2", "expected an object"]),
    "missing question": (lines([{**QUESTION, "question": None}]), ["dev.jsonl:1", "'question' is missing"]),
    "missing answers": (lines([{"id": "a", "question": "b"}]), ["dev.jsonl:1", "'answers' is missing", "add it"]),
    "misspelt answers": (
        lines([{"id": "a", "question": "b", "answer": ["c"]}]),
        ["dev.jsonl:1", "unknown field 'answer'", "'answers'", "rename"],
    ),
    "misspelt optional": (
        lines([{"id": "a", "question": "b", "answers": ["c"], "passage": ["bridge"]}]),
        ["dev.jsonl:1", "unknown field 'passage'", "'passages'", "rename"],
    ),
    "number for an id": (lines([{**QUESTION, "id": 3}]), ["dev.jsonl:1", "'id' must be a string", "3"]),
    "text for a list": (lines([{**QUESTION, "answers": "Lyon"}]), ["dev.jsonl:1", "'answers' must be a list", "Lyon"]),
    "number in a list": (lines([{**QUESTION, "answers": [1871]}]), ["dev.jsonl:1", "'answers[0]' must be a string"]),
    "no answers": (lines([{**QUESTION, "answers": []}]), ["dev.jsonl:1", "'answers' must be at least one entry"]),
    "blank answer": (lines([{**QUESTION, "answers": ["  "]}]), ["dev.jsonl:1", "'answers[0]' must be some text"]),
    "half a character": (
        '{"id": "a", "question": "\\ud800", "answers": ["c"]}',
        ["dev.jsonl:1", "'question' must be valid Unicode"],
    ),
    "hop without an answer": (
        lines([{**QUESTION, "hops": [{"question": "Who?"}]}]),
        ["dev.jsonl:1", "'hops[0].answer' is missing"],
    ),
    "hop that is text": (lines([{**QUESTION, "hops": ["Who?"]}]), ["dev.jsonl:1", "'hops[0]' must be an object"]),
    "duplicate id": (lines([QUESTION, QUESTION]), ["dev.jsonl:2", "'q1'", "dev.jsonl:1", "unique"]),
    "unknown passage": (
        lines([{**QUESTION, "passages": ["bridge", "tower"]}]),
        ["dev.jsonl:1", "'passages[1]'", "'tower'", "the corpus lacks"],
    ),
    "page that there is not": (
        lines([{**QUESTION, "main": "Tower"}]),
        ["dev.jsonl:1", "'main' is 'Tower', neither a passage's id nor a page's title"],
    ),
    "unknown passage of a hop": (
        lines([{**QUESTION, "hops": [{"question": "Who?", "answer": "I", "passage": "tower"}]}]),
        ["dev.jsonl:1", "'hops[0].passage'", "'tower'"],
    ),
    "empty split": ("\n\n", ["dev.jsonl", "no questions"]),
}


@pytest.mark.parametrize(("text", "expected"), BAD_QUESTIONS.values(), ids=BAD_QUESTIONS.keys())
def test_a_bad_question_is_named_by_file_line_and_field(folder: Path, text: str, expected: list[str]):
    (folder / "dev.jsonl").write_text(text)
    assert_one_line(lambda: load(str(folder)), expected)


BAD_FILES: dict[str, tuple[dict[str, str | bytes | None], list[str]]] = {
    "no corpus": ({"corpus.jsonl": None}, ["no corpus.jsonl", "id, title and text"]),
    "empty corpus": ({"corpus.jsonl": ""}, ["corpus.jsonl", "no passages"]),
    "no split": ({"dev.jsonl": None, "corpus.jsonl": None}, ["no train.jsonl, dev.jsonl or test.jsonl"]),
    "two formats": ({"dev.csv": "id,question,answers\n"}, ["both dev.jsonl and dev.csv", "keep one"]),
    "passage without text": (
        {"corpus.jsonl": lines([*CORPUS, {"id": "x", "title": "X"}])},
        ["corpus.jsonl:3", "'text' is missing"],
    ),
    "duplicate passage": (
        {"corpus.jsonl": lines([*CORPUS, CORPUS[0]])},
        ["corpus.jsonl:3", "'bridge'", "corpus.jsonl:1"],
    ),
    "id in two splits": ({"train.jsonl": lines(questions(1))}, ["dev.jsonl:1", "'q0'", "train.jsonl:1"]),
    "not UTF-8": ({"dev.jsonl": lines([QUESTION]).encode() + b'{"id": "caf\xe9"}'}, ["dev.jsonl:2", "not UTF-8"]),
    "array that breaks off": ({"dev.jsonl": f"[{json.dumps(QUESTION)},"}, ["dev.jsonl:1", "malformed JSON"]),
    "array not UTF-8": ({"dev.jsonl": b'[\n"\xe9"]'}, ["dev.jsonl:2", "not UTF-8"]),
    "CSV list that is not JSON": (
        {"dev.jsonl": None, "dev.csv": "id,question,answers\n\nq1,Who?,Lyon\n"},
        ["dev.csv:3", "'answers' must be JSON text", "Lyon"],
    ),
    "CSV with a cell too many": (
        {"dev.jsonl": None, "dev.csv": 'id,question,answers\nq1,Who, then?,"[""a""]"\n'},
        ["dev.csv:2", "more cells", "quote"],
    ),
    "CSV with an open quote": (
        {"dev.jsonl": None, "dev.csv": 'id,question,answers\nq1,"Who'},
        ["dev.csv:2", "malformed CSV"],
    ),
    "CSV without a column": (
        {"dev.jsonl": None, "dev.csv": "id,question\nq1,Who?\n"},
        ["dev.csv:2", "'answers' is missing"],
    ),
    "CSV not UTF-8": ({"dev.jsonl": None, "dev.csv": b"id,question\nq1,\xe9\n"}, ["dev.csv:2", "not UTF-8"]),
    "CSV with a header only": ({"dev.jsonl": None, "dev.csv": "id,question,answers\n"}, ["dev.csv", "no questions"]),
    "hops without a corpus": (
        {
            "corpus.jsonl": None,
            "dev.jsonl": '{"id": "q1", "question": "Who?", "answers": ["I"], "hops": '
            '[{"question": "Where?", "answer": "here", "passage": "p1"}, {"question": "Who?", "answer": "I"}]}\n',
        },
        ["no corpus.jsonl"],
    ),
    "not parquet": ({"dev.jsonl": None, "dev.parquet": "PAR"}, ["dev.parquet", "cannot be read as parquet"]),
}


@pytest.mark.parametrize(("files", "expected"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_named(folder: Path, files: dict[str, str | bytes | None], expected: list[str]):
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_one_line(lambda: load(str(folder)), expected)


def test_a_csv_row_is_named_by_its_first_line_where_cells_span_lines(folder: Path):
    (folder / "dev.jsonl").unlink()
    (folder / "dev.csv").write_text('id,question,answers\nq1,"Who\nwas it?","[""a""]"\nq2,"Who\nelse?",[]\n')
    assert_one_line(lambda: load(str(folder)), ["dev.csv:4", "'answers'"])


def test_asking_for_too_much_says_how_much_there_is(folder: Path):
    assert_one_line(
        lambda: load(DataSettings(name=str(folder), dev=9)), ["'mine'", "5 questions", "'dev'", "at most 5"]
    )
    assert_one_line(lambda: load(DataSettings(name=str(folder), test=1)), ["no 'test' split", "dev", "test.jsonl"])
    assert_one_line(lambda: load(str(folder)).split("train"), ["no 'train' split"])
    assert_one_line(
        lambda: load(DataSettings(name=str(folder), corpus=folder / "nope.jsonl")), ["nope.jsonl", "no such file"]
    )


def test_a_folder_is_found_again_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    new(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    settings = DataSettings.model_validate("mine")
    monkeypatch.chdir("/")
    assert load(settings).name == "mine"
    assert DataSettings.model_validate("atlas").name == "atlas"


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line(lambda: load("atlsa"), ["'atlsa'", "did you mean 'atlas'?"])
    assert_one_line(lambda: load("some/where"), ["some/where", "no such folder", "atlas"])
    (tmp_path / "file").write_text("")
    assert_one_line(lambda: load("file"), ["file", "not a folder"])


def test_settings_take_a_plain_name_and_refuse_what_they_do_not_know():
    assert DataSettings.model_validate("atlas") == DataSettings(name="atlas")
    for bad in (
        {"name": "atlas", "trian": 3},
        {"name": "atlas", "dev": 0},
        {"name": "atlas", "dev": "many"},
        {"name": ""},
        {},
    ):
        with pytest.raises(ValidationError):
            DataSettings.model_validate(bad)


def test_check_finds_every_problem_and_still_gives_figures(folder: Path):
    (folder / "corpus.jsonl").write_text(lines([*CORPUS, {"id": "x"}]))
    bad = [{**QUESTION, "id": ""}, {**QUESTION, "id": "z", "passages": ["tower"]}]
    (folder / "dev.jsonl").write_text(lines([*questions(2), *bad]) + "{\n")
    (folder / "test.jsonl").write_text(lines([{"id": "t", "question": "Who?", "answers": ["a"]}]))
    found = check(folder)
    assert [problem.split(": ")[0].split("/")[-1] for problem in found.problems] == [
        "corpus.jsonl:3",
        "dev.jsonl:3",
        "dev.jsonl:4",
        "dev.jsonl:5",
    ]
    assert found.corpus.passages == 2
    assert found.corpus.max_words == 7
    assert found.splits["dev"].questions == 3
    assert found.splits["dev"].types == {"bridge": 3}
    assert found.splits["dev"].mean_hops == 2
    assert found.splits["test"].mean_passages is None
    assert found.splits["test"].with_rationale == 0
    few = check(folder, limit=1)
    assert (len(few.problems), few.more_problems) == (1, 3)
    json.loads(few.model_dump_json())


@pytest.mark.usefixtures("checkpoint")
def test_passages_alone_can_be_indexed_and_nothing_else(folder: Path):
    (folder / "dev.jsonl").unlink()
    data = load(str(folder))
    assert len(data.corpus) == len(CORPUS)
    with pytest.raises(UserError, match=r"has no 'dev' split, only passages; add dev\.jsonl"):
        data.split("dev")
    found = check(folder)
    assert (found.problems, [warning.split()[:2] for warning in found.warnings]) == ([], [["no", "questions"]])


def test_check_does_not_stop_at_an_absent_corpus(folder: Path):
    (folder / "corpus.jsonl").unlink()
    assert len(check(folder).problems) == 1


def test_a_new_folder_is_valid_and_overwrites_nothing(tmp_path: Path):
    out = tmp_path / "deep" / "mine"
    new(out)
    found = check(out)
    assert found.problems == []
    assert set(found.splits) == {"train", "dev", "test"}
    assert load(str(out)).split("train")[0].hops[1].answer == "Lyon"
    assert_one_line(lambda: new(out), ["exists already", "another folder"])
    assert [path.name for path in out.parent.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    new(tmp_path / "empty")
    assert check(tmp_path / "empty").problems == []


@pytest.mark.parametrize(("out", "said"), [("atlas", "bundled data set"), (".", "such as made"), ("/", "such as")])
def test_a_new_folder_has_a_name_of_its_own(out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line(lambda: new(Path(out)), [said])
    assert not list(tmp_path.iterdir())


def test_a_new_folder_leaves_nothing_where_it_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert_one_line(lambda: new(tmp_path / "file" / "mine"), ["cannot be written"])


def test_importing_the_package_stays_light():
    heavy = ["dspy", "torch", "transformers", "pandas", "matplotlib", "scipy", "mlflow"]
    code = f"import sys, hoptimizer.eval; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_bundled_sets_are_whole():
    for name, path in bundled().items():
        assert locate(name) == path
        assert check(name).problems == []
        assert load(name).name == name


def assert_one_line(call: Callable[[], object], expected: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_what_a_killed_import_left_goes_with_the_next_one(tmp_path):
    left = tmp_path / ".made.part"
    left.mkdir()
    (left / "corpus.jsonl").write_text('{"id": "half')
    write_folder(tmp_path / "made", Corpus([Passage("cat", "Cat", "It sleeps.")]), {})
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["corpus.jsonl"]


def test_an_oracle_gives_questions_of_the_same_words_the_passages_of_all():
    corpus = Corpus([Passage("a", "Town A", "It has 5 people."), Passage("b", "Town B", "It has 9 people.")])
    asked = "How many people live there?"
    questions = [Question(id=p, question=asked, answers=["5"], passages=[p], main=p) for p in ("a", "b")]
    data = DataSet("towns", Path("towns"), corpus, {"dev": questions})
    assert data.supporting == {asked: ["a", "b"]}


def test_a_folders_files_are_of_every_kind_that_an_import_reads_and_what_is_not_read_is_said(folder: Path):
    expected = load(str(folder))
    (folder / "dev.json").write_text(json.dumps(questions(5)))
    (folder / "dev.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes()))
    (folder / "corpus.jsonl").unlink()
    assert load(str(folder)).digest == expected.digest
    (folder / "validation.csv").write_text("id,question,answers\n")
    (folder / ".notes.json").write_text("")
    not_read = [warning for warning in check(folder).warnings if "not read" in warning]
    assert [warning.partition(":")[0] for warning in not_read] == ["validation.csv"]
