"""Published formats of several files or none of HotpotQA's kind, compressed files, chunks, splits, and bad items."""

import bz2
import gzip
import json
import shutil
import sys
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from test_importers import HOTPOT, MUSIQUE, WIKI, assert_one_line, write, write_lines

from hoptimizer.cli import main
from hoptimizer.common.errors import UserError
from hoptimizer.common.stream import JsonStream, MalformedText
from hoptimizer.eval import DataSet, Question, check, load
from hoptimizer.eval.chunking import make_chunker
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.eval.datasets.join import join_folders
from hoptimizer.eval.datasets.pool import PassagePool
from hoptimizer.eval.drop import drop_em

PAGE = "The harbour was dug in 1871 by a company from Lyon, which Ines Moreau led until she died.\nShort line.\n"
ARTICLES = {
    "ines moreau": 'Ines Moreau was an <a href="Engineer">engineer</a> who was born in Lyon &amp; lived in Oslo.\n'
    + PAGE,
    "oslo": "Oslo lies at the northern end of a fjord, and it is the capital of the kingdom of Norway.\n",
    "stub": "Short.",
}
IIRC = {
    "pid": "p1",
    "title": "Harbour Bridge",
    "text": "The Harbour Bridge was designed by Ines Moreau.",
    "links": [{"target": "Ines Moreau", "indices": [35, 46]}, {"target": "Oslo", "indices": [0, 0]}],
    "questions": [
        {
            "qid": "q1",
            "question": "In which cities did the designer live?",
            "context": [
                {"text": "designed by Ines Moreau", "passage": "main", "indices": [0, 1]},
                {"text": "born in Lyon & lived in Oslo", "passage": "Ines Moreau", "indices": [0, 1]},
            ],
            "question_links": ["Ines Moreau"],
            "answer": {"type": "span", "answer_spans": [{"text": "Lyon"}, {"text": "Oslo"}]},
        },
        {
            "qid": "q2",
            "question": "When was the harbour dug?",
            "context": [{"text": "dug in 1871 by a company", "passage": "ines moreau", "indices": [0, 1]}],
            "answer": {"type": "value", "answer_value": "1871", "answer_unit": "years"},
        },
        {"qid": "q3", "question": "Was she tall?", "context": [], "answer": {"type": "none"}},
    ],
}


def zipped(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def imported(tmp_path: Path, name: str, items: object, **options) -> DataSet:
    """What an import of a file makes, as its dev split."""
    import_published(name, {"dev": write(tmp_path / "in.json", items)}, tmp_path / "out", **options)
    assert check(tmp_path / "out").problems == []
    return load(str(tmp_path / "out"))


def test_iirc_pins_the_paragraph_that_is_asked_about_and_finds_what_was_marked(tmp_path: Path):
    write(tmp_path / "context_articles.json", ARTICLES)
    data = imported(tmp_path, "iirc", [IIRC])
    cities, year = data.split("dev")
    assert cities.main == year.main == cities.passages[0]
    assert data.corpus[cities.main].title == "Harbour Bridge"
    assert data.corpus[cities.main].text == IIRC["text"]
    assert [data.corpus[id].text.split()[0] for id in cities.passages] == ["The", "Ines"]
    assert data.corpus[year.passages[1]].text.startswith("The harbour was dug in 1871")
    assert {passage.title for passage in data.corpus} == {"Harbour Bridge", "Ines Moreau", "Oslo", "stub"}
    assert "Short line." not in {passage.text for passage in data.corpus}, "lines of a few words are headings"
    assert "an engineer who was born in Lyon & lived" in data.corpus[cities.passages[1]].text, "no markup is left"
    assert drop_em('["Oslo", "Lyon"]', cities.answers) == drop_em("1871", year.answers) == 1
    assert (cities.type, year.type) == ("span", "value")
    assert cities.rationale.startswith("Harbour Bridge: designed by Ines Moreau Ines Moreau: born in Lyon")


def test_the_paragraph_that_is_asked_about_survives_a_join_and_is_left_out_where_there_is_none(tmp_path: Path):
    write(tmp_path / "context_articles.json", ARTICLES)
    splits = {
        split: write(tmp_path / f"{split}.json", [{**IIRC, "questions": [one]}])
        for split, one in zip(("train", "dev"), IIRC["questions"], strict=False)
    }
    import_published("iirc", {**splits, "test": _renamed(tmp_path)}, tmp_path / "out")
    joined = join_folders({str(tmp_path / "out"): None, "atlas": 1}, tmp_path / "both", dev=1, test=1)
    question = load(str(tmp_path / "both")).split("dev")[0]
    assert question.main in joined.corpus
    assert question.to_dspy().main == question.main
    assert "main" not in Question(id="1", question="?", answers=["a"]).model_dump_json()


def _renamed(tmp_path: Path) -> Path:
    questions = [{**IIRC["questions"][0], "qid": "q9"}]
    return write(tmp_path / "test.json", [{**IIRC, "questions": questions}])


def test_iirc_takes_articles_from_elsewhere_and_says_what_they_lack(tmp_path: Path):
    file = write(tmp_path / "in.json", [IIRC])
    elsewhere = zipped(tmp_path / "pages.json.gz", json.dumps({"Oslo": ARTICLES["oslo"]}).encode())
    call = lambda **options: import_published("iirc", {"dev": file}, tmp_path / "out", **options)  # noqa: E731
    assert_one_line(call, ["context_articles.json", "no such file", "--corpus"])
    assert_one_line(lambda: call(corpus=elsewhere), ["in.json, item 1 (q1)", "'Ines Moreau'", "lacks"])
    assert_one_line(lambda: call(corpus=elsewhere, skip_bad=True), ["no questions with an answer"])
    elsewhere.write_bytes(elsewhere.read_bytes()[:-12])
    assert_one_line(lambda: call(corpus=elsewhere), ["pages.json.gz", "end-of-stream"])
    broken = tmp_path / "broken.json"
    broken.write_text('{"oslo": "…",\n"lyon" "…"}')
    assert_one_line(lambda: call(corpus=broken), ["broken.json:2", "malformed JSON", "':'"])
    broken.write_text('{"oslo": ["…"]}')
    assert_one_line(lambda: call(corpus=broken), ["page 1 (oslo)", "'text' must be a string"])
    assert not (tmp_path / "out").exists()


TOKENS = (
    "<P> The Rhine flows through Basel ( in Switzerland ) , 'and' on . </P> <Table> <Td> Length </Td> 1,233 km </Table>"
)
NQ = {
    "example_id": 5655493461695504401,
    "question_text": "which city does the rhine flow through",
    "document_url": "https://en.wikipedia.org//w/index.php?title=Upper_Rhine&amp;oldid=1",
    "document_text": TOKENS,
    "long_answer_candidates": [
        {"start_token": 0, "end_token": 14, "top_level": True},
        {"start_token": 1, "end_token": 6, "top_level": False},
        {"start_token": 14, "end_token": 21, "top_level": True},
    ],
    "annotations": [
        {
            "long_answer": {"start_token": 0, "end_token": 14, "candidate_index": 0},
            "short_answers": [{"start_token": 5, "end_token": 6}, {"start_token": 5, "end_token": 10}],
            "yes_no_answer": "NONE",
        }
    ],
}


def test_natural_questions_simplified(tmp_path: Path):
    bare = {"long_answer": {"start_token": -1, "end_token": -1}, "short_answers": [], "yes_no_answer": "NONE"}
    yes = {**bare, "yes_no_answer": "YES"}
    items = [NQ, {**NQ, "example_id": 2, "annotations": [bare]}, {**NQ, "example_id": 3, "annotations": [yes]}]
    made = import_published(
        "nq",
        {"dev": zipped(tmp_path / "nq.jsonl.gz", b"\n".join(json.dumps(item).encode() for item in items))},
        tmp_path / "out",
    )
    assert (made.splits, made.unanswerable, made.passages) == ({"dev": 2}, 1, 2)
    data = load(str(tmp_path / "out"))
    question, polar = data.split("dev")
    assert (question.id, question.answers) == ("5655493461695504401", ["Basel", "Basel (in Switzerland)"])
    [gold] = question.passages
    assert data.corpus[gold].title == "Upper Rhine"
    assert data.corpus[gold].text == "The Rhine flows through Basel (in Switzerland), 'and' on."
    assert (polar.answers, polar.passages) == (["yes"], [])


def test_natural_questions_whole_have_the_texts_of_their_pages(tmp_path: Path):
    page = "<P>The Rhine flows through <b>B&acirc;le</b>, on.</P>"
    words = ["<P>", "The", "Rhine", "flows", "through", "<b>", "B&acirc;le", "</b>", ",", "on", ".", "</P>"]
    tokens, place = [], 0
    for word in words:
        start = page.index(word, place)
        place = start + len(word)
        tokens.append({"token": word, "html_token": "<" in word, "start_byte": start, "end_byte": place})
    whole = {key: value for key, value in NQ.items() if key != "document_text"} | {
        "document_title": "Rhine",
        "document_html": page,
        "document_tokens": tokens,
        "long_answer_candidates": [{"start_token": 0, "end_token": 12, "top_level": True}],
        "annotations": [
            {"long_answer": {"start_token": 0, "end_token": 12}, "short_answers": [{"start_token": 6, "end_token": 7}]}
        ],
    }
    data = imported(tmp_path, "nq", [whole])
    [question] = data.split("dev")
    assert question.answers == ["Bâle"]
    assert data.corpus[question.passages[0]].text == "The Rhine flows through Bâle , on."


TRIVIA = {
    "QuestionId": "tc_33",
    "Question": "Which river flows through Basel?",
    "Answer": {
        "Value": "Rhine",
        "Aliases": ["The Rhine", "Rhein"],
        "NormalizedAliases": ["rhine"],
        "Type": "WikipediaEntity",
    },
    "EntityPages": [{"Title": "Basel", "Filename": "Basel.txt"}, {"Title": "Oslo", "Filename": "Oslo.txt"}],
    "SearchResults": [{"Title": "Out", "Filename": "../../secret.txt"}, {"Title": "Gone", "Filename": "gone.txt"}],
}


def test_triviaqa_has_aliases_and_the_pages_of_its_evidence_folder(tmp_path: Path):
    for folder in ("qa", "evidence/wikipedia", "evidence/web"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "evidence/wikipedia/Basel.txt").write_text("Basel lies on the Rhine.")
    (tmp_path / "evidence/wikipedia/Oslo.txt").write_text("Oslo lies on a fjord.")
    (tmp_path / "secret.txt").write_text("The Rhine is a secret.")
    file = tmp_path / "qa" / "wikipedia-dev.json"
    file.write_text(json.dumps({"Data": [TRIVIA], "Domain": "Wikipedia", "Version": 1.0}, indent=4))
    made = import_published("triviaqa", {"dev": file}, tmp_path / "out")
    assert made.passages == 2, "no file outside of the evidence folder is read"
    data = load(str(tmp_path / "out"))
    [question] = data.split("dev")
    assert question.answers == ["Rhine", "The Rhine", "Rhein"]
    assert [data.corpus[id].title for id in question.passages] == ["Basel"]
    file.write_text(json.dumps({"Version": 1.0, "Data": [TRIVIA, {**TRIVIA, "Answer": {}}]}))
    assert_one_line(
        lambda: import_published("triviaqa", {"dev": file}, tmp_path / "b"),
        ["item 2 (tc_33)", "'Answer.Value' is missing"],
    )


def test_fullwiki_finds_supporting_paragraphs_in_the_corpus_by_their_titles(tmp_path: Path):
    item = {**HOTPOT, "context": [["Tower", ["The tower is tall."]]]}
    dump = tmp_path / "abstracts" / "AA"
    dump.mkdir(parents=True)
    pages = [
        {"id": "12", "title": "The Bridge", "text": ["The bridge is of steel.", " Ines Moreau designed it."]},
        {"id": "13", "title": "Ines Moreau (engineer)", "text": ["Ines Moreau was born in Lyon."]},
    ]
    (dump / "wiki_00.bz2").write_bytes(bz2.compress("\n".join(map(json.dumps, pages)).encode()))
    [question] = imported(tmp_path, "fullwiki", [item], corpus=tmp_path / "abstracts").split("dev")
    assert question.passages == ["13", "12"]
    pages[1]["text"] = ["She is an engineer.", " She sails.", " She sings.", " Ines Moreau was born in Lyon."]
    pages.append({"id": "14", "title": "Ines Moreau (engineer)", "text": ["She lives in Oslo."]})
    (dump / "wiki_00.bz2").write_bytes(bz2.compress("\n".join(map(json.dumps, reversed(pages))).encode()))
    shutil.rmtree(tmp_path / "out")
    data = imported(tmp_path, "fullwiki", [item], corpus=tmp_path / "abstracts", chunk="sentences:2")
    assert data.split("dev")[0].passages == ["13#2", "12"], "the part, and the row, with the answer"
    file = write(tmp_path / "in.json", [item])
    assert_one_line(
        lambda: import_published("fullwiki", {"dev": file}, tmp_path / "b"), ["'Ines Moreau (engineer)'", "--corpus"]
    )


def test_unanswerable_items_are_kept_beside_their_twins_if_an_answer_is_given_for_them(tmp_path: Path):
    items = [MUSIQUE, {**MUSIQUE, "answerable": False}]
    data = imported(tmp_path, "musique", items, unanswerable="unknown")
    with_answer, without = data.split("dev")
    assert (without.id, without.answers, without.hops) == (f"{with_answer.id}-unanswerable", ["unknown"], [])
    assert without.passages == with_answer.passages


def test_a_test_file_without_annotations_gives_its_contexts_to_the_corpus(tmp_path: Path):
    bare = [
        {"_id": f"t{n}", "question": "?", "answer": "", "context": [[f"Mill {n}", ["It is", "old."]]]} for n in (1, 2)
    ]
    files = {
        "train": write(tmp_path / "train.json", [{**WIKI, "_id": f"{n}", "question": f"Ship {n}?"} for n in range(3)]),
        "dev+test": write(
            tmp_path / "dev.json", [{**WIKI, "_id": f"d{n}", "question": f"Mill {n}?"} for n in range(6)]
        ),
        "contexts": write(tmp_path / "more.json", bare),
    }
    made = import_published("2wikimultihopqa", files, tmp_path / "out", sizes={"dev": 2, "test": 3, "train": 2})
    assert made.splits == {"train": 2, "dev": 2, "test": 3}
    assert made.contexts == 2
    data = load(str(tmp_path / "out"))
    assert sum(passage.text == "It is old." for passage in data.corpus) == 2
    assert all(question.id.startswith("d") for question in [*data.split("dev"), *data.split("test")])

    files = {"dev": files["dev+test"], "test": files["contexts"]}
    made = import_published("2wikimultihopqa", files, tmp_path / "b")
    assert (made.splits, made.contexts, made.passages) == ({"dev": 6}, 2, 5)
    call = lambda paths, **sizes: import_published("2wikimultihopqa", paths, tmp_path / "c", sizes=sizes)  # noqa: E731
    halves = import_published("2wikimultihopqa", {"dev+test": files["dev"]}, tmp_path / "halves")
    assert halves.splits == {"dev": 3, "test": 3}
    assert_one_line(lambda: call({"dev": files["test"]}), ["item 1 (t1)", "'answer' is missing"])
    assert_one_line(lambda: call({"test": files["test"]}), ["more.json", "no questions with an answer"])
    assert_one_line(lambda: call({"dev+test": files["dev"]}, dev=2), ["dev=2", "each of dev and test"])
    assert_one_line(lambda: call({"dev+test": files["dev"], "dev": files["dev"]}), ["'dev' is given twice"])
    assert_one_line(lambda: call({"dev+tset": files["dev"]}), ["no split", "'tset'", "did you mean 'test'?"])
    assert_one_line(lambda: call({"dev+contexts": files["dev"]}), ["no split", "'contexts'"])
    nq = {"contexts": write_lines(tmp_path / "nq.jsonl", [{"question": "Who?", "answer": ["I"]}])}
    assert_one_line(lambda: import_published("nq", nq, tmp_path / "c"), ["nq.jsonl", "no contexts"])
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("suffix", ["json", "jsonl.gz", "tsv.gz", "csv", "parquet"])
def test_an_extra_corpus_is_read_in_every_format(tmp_path: Path, suffix: str):
    rows = [{"id": str(n), "title": f'Mill "{n}"', "text": f"The\tmill, {n}."} for n in range(1, 4)]
    path = tmp_path / f"psgs.{suffix}"
    quoted = ['"{}"'.format(row["text"].replace('"', '""')) for row in rows]
    title = ['"{}"'.format(row["title"].replace('"', '""')) for row in rows]
    if suffix == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([{**row, "id": int(row["id"])} for row in rows]), path)
    else:
        mark = "," if suffix == "csv" else "\t"
        table = "\n".join(
            [mark.join(("id", "text", "title"))]
            + [mark.join(cells) for cells in zip((row["id"] for row in rows), quoted, title, strict=True)]
        )
        texts = {"json": json.dumps(rows), "jsonl.gz": "\n".join(map(json.dumps, rows))}
        content = texts.get(suffix, table).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    corpus = imported(tmp_path, "hotpotqa", [HOTPOT], corpus=path).corpus
    assert [corpus[id].text for id in ("1", "2", "3")] == [f"The mill, {n}." for n in (1, 2, 3)]
    assert corpus["1"].title == 'Mill "1"'


def test_hidden_files_of_an_extra_corpus_are_passed_over(tmp_path: Path):
    folder = tmp_path / "wiki"
    (folder / "AA").mkdir(parents=True)
    write_lines(folder / "AA" / "wiki_00.jsonl", [{"title": "Rhine", "text": "The Rhine flows through Basel."}])
    (folder / ".cache").mkdir()
    for name in (".DS_Store", "AA/._wiki_00.jsonl", ".cache/wiki_00.lock"):
        (folder / name).write_bytes(b"\x00\xff")
    titles = [passage.title for passage in imported(tmp_path, "hotpotqa", [HOTPOT], corpus=folder).corpus]
    assert "Rhine" in titles


def test_a_corpus_is_never_whole_in_memory(tmp_path: Path):
    texts = ({"title": f"Page {number}", "text": f"{number} " + "unbroken" * 1000} for number in range(1000))
    corpus = write(tmp_path / "corpus.json", list(texts))
    file = write(tmp_path / "in.json", [HOTPOT])
    told = []
    tracemalloc.start()
    import_published(
        "hotpotqa", {"dev": file}, tmp_path / "out", corpus=corpus, progress=lambda *report: told.append(report[:2])
    )
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < corpus.stat().st_size / 3
    assert told[-1] == ("passages", 1000)


DAMAGED: dict[str, tuple[str, bytes, list[str]]] = {
    "truncated gzip": (
        "in.json.gz",
        gzip.compress(json.dumps([HOTPOT] * 50).encode())[:-20],
        ["in.json.gz", "end-of-stream"],
    ),
    "no gzip": ("in.json.gz", b"[]", ["in.json.gz", "cannot be read", "gzip"]),
    "damaged gzip": ("in.json.gz", gzip.compress(b"[" + bytes(range(256)) * 9)[:30] + b"\0" * 40, ["in.json.gz"]),
    "Latin-1": ("in.json", json.dumps([HOTPOT]).encode() + "\n\né".encode("latin-1"), ["in.json:3", "not UTF-8"]),
    "UTF-16": ("in.jsonl", json.dumps(HOTPOT).encode("utf-16"), ["in.jsonl:1", "not UTF-8"]),
    "more than an array": ("in.json", json.dumps([HOTPOT]).encode() + b"\n, 1]", ["in.json:2", "Extra data"]),
}


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(("name", "content", "expected"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_and_never_imported_in_part(tmp_path, name, content, expected, skip_bad):
    (tmp_path / name).write_bytes(content)
    if skip_bad and name == "in.jsonl":
        expected = ["no questions"]  # its line alone is bad
    call = lambda: import_published("hotpotqa", {"dev": tmp_path / name}, tmp_path / "out", skip_bad=skip_bad)  # noqa: E731
    assert_one_line(call, expected if name != "in.json.gz" or not skip_bad else expected[:1])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_bad_items_are_skipped_counted_and_explained_if_it_is_asked_for(tmp_path: Path, monkeypatch, capsys):
    file = tmp_path / "in.jsonl"
    bad = [
        {**HOTPOT, "_id": "no answer", "answer": None},
        {**HOTPOT, "_id": "gold astray", "supporting_facts": [["Mill", 0]]},
        {**HOTPOT, "_id": "no contexts", "context": []},
        {**HOTPOT, "_id": "sentences", "context": "The bridge."},
        HOTPOT,
    ]
    lines = [json.dumps(item).encode() for item in [HOTPOT, *bad, {**HOTPOT, "_id": "h2"}]]
    file.write_bytes(b"\n".join([*lines, b'{"_id": "h3",', b'{"_id": "caf\xe9"}', b"7"]))
    made = import_published("hotpotqa", {"dev": file}, tmp_path / "out", skip_bad=True)
    assert (made.splits, made.skipped, len(made.reasons)) == ({"dev": 2}, 8, 5)
    assert [question.id for question in load(str(tmp_path / "out")).split("dev")] == ["h1", "h2"]
    reasons = ("'answer' is missing", "'Mill'", "at least one entry", "must be a list", "the same id stands at")
    for line, reason, said in zip(range(2, 7), reasons, made.reasons, strict=True):
        assert f"in.jsonl:{line}" in said
        assert reason in said

    monkeypatch.chdir(tmp_path)
    for words, code, parts in (
        (["--out", "b", "--unanswerable", " "], 2, ["unanswerable: expected the answer"]),
        (["--out", "b"], 2, ["in.jsonl:2 (no answer): 'answer' is missing"]),
        (["--out", "b", "--skip-bad"], 0, ["b: dev 2 questions", "8 bad items were skipped", "in.jsonl:3"]),
    ):
        monkeypatch.setattr(sys, "argv", ["hop", "data", "import", "hotpotqa", "dev=in.jsonl", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert int(end.value.code or 0) == code
        assert all(part in (err if code else out) for part in parts)
        assert (tmp_path / "b").exists() == (code == 0)


def test_answers_as_strings_or_in_other_shapes_are_named(tmp_path: Path):
    cases = [
        ("nq", {"question": "Who?", "answer": "I"}, "'answer' must be a list"),
        ("nq", {**NQ, "annotations": []}, "'annotations' must be at least one entry"),
        ("nq", {**NQ, "document_text": None}, "'document_text' or 'document_tokens' is missing"),
        ("nq", {**NQ, "document_text": "<P> Rhine"}, "token 6, but the page has only 2"),
        ("triviaqa", {**TRIVIA, "Answer": "Rhine"}, "'Answer' must be an object"),
        ("triviaqa", {**TRIVIA, "EntityPages": "Basel"}, "'EntityPages' must be a list"),
        ("iirc", {**IIRC, "questions": None}, "'question' is missing"),
        ("iirc", {**IIRC, "questions": ["Who?"]}, "must be an object"),
        ("iirc", {**IIRC, "questions": [{**IIRC["questions"][0], "answer": "Lyon"}]}, "'answer' must be an object"),
        ("iirc", {**IIRC, "questions": [{**IIRC["questions"][0], "answer": {"type": "span"}}]}, "has no such answer"),
        ("iirc", {**IIRC, "questions": [{**IIRC["questions"][0], "answer": {"type": "date"}}]}, "'date'"),
    ]
    write(tmp_path / "context_articles.json", ARTICLES)
    for name, item, expected in cases:
        file = write(tmp_path / "in.json", [item])
        assert_one_line(
            lambda name=name, file=file: import_published(name, {"dev": file}, tmp_path / "out"), [expected]
        )
    assert not (tmp_path / "out").exists()


def test_long_paragraphs_become_passages_and_annotations_name_those_with_evidence(tmp_path: Path):
    filler = " ".join(f"Word{n} follows." for n in range(40))
    item = {
        **WIKI,
        "context": [
            ["The Bridge", [filler, "Ines Moreau (engineer) designed it.", filler]],
            ["Ines Moreau (engineer)", [filler, "She was born in Lyon."]],
        ],
    }
    first = {**item, "answer": "yes", "evidences": [], "supporting_facts": [["Ines Moreau (engineer)", 1]]}
    [marked] = imported(tmp_path, "2wikimultihopqa", [first], chunk="sentences:1").split("dev")
    assert marked.passages == [f"{marked.passages[0].partition('#')[0]}#41"], "the sentence that is marked"
    shutil.rmtree(tmp_path / "out")
    data = imported(tmp_path, "2wikimultihopqa", [item], chunk="words:30")
    [question] = data.split("dev")
    assert len(data.corpus) == 6 + 3
    assert all(len(passage.text.split()) <= 30 for passage in data.corpus)
    held = {data.corpus[id].title: data.corpus[id].text for id in question.passages}
    assert "born in Lyon" in held["Ines Moreau (engineer)"]
    assert "designed it" in held["The Bridge"]
    assert [hop.passage for hop in question.hops] == [question.passages[1], question.passages[0]]
    write(tmp_path / "context_articles.json", ARTICLES)
    long = [{**IIRC, "text": filler, "questions": IIRC["questions"][1:2]}]
    import_published("iirc", {"dev": write(tmp_path / "iirc.json", long)}, tmp_path / "iirc", chunk="words:30")
    [question] = load(str(tmp_path / "iirc")).split("dev")
    assert question.main == "Harbour Bridge", "the title stands for several passages"


def test_chunks_are_words_sentences_or_tokens(tmp_path: Path):
    text = "Dr. No is a film. It was made in 1962! Who made it? Nobody knows."
    assert make_chunker("words:6")(text) == ["Dr. No is a film. It", "was made in 1962! Who made", "it? Nobody knows."]
    assert make_chunker("sentences:2")(text) == ["Dr. No is a film. It was made in 1962!", "Who made it? Nobody knows."]
    for wrong in ("words", "words:0", "words:-1", "words:x", "lines:3", "", "sentences:2:minilm"):
        assert_one_line(lambda wrong=wrong: make_chunker(wrong), ["--chunk"])


def test_chunks_of_tokens_keep_words_whole(tmp_path: Path):
    from transformers import BertTokenizer

    words = [
        "[UNK]",
        "[SEP]",
        "[PAD]",
        "[CLS]",
        "[MASK]",
        "the",
        "river",
        "rhine",
        "flows",
        "un",
        "##flow",
        "##ing",
        ".",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "##ly"]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    BertTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    chunks = make_chunker(f"tokens:4:{tmp_path}")("The Rhine flows unflowingly . The river unflowingly")
    assert chunks == ["The Rhine flows", "unflowingly", ". The river", "unflowingly"]
    assert_one_line(lambda: make_chunker(f"tokens:4:{tmp_path / 'nothing'}"), ["--chunk"])


def test_a_pool_holds_each_paragraph_once_and_finds_it_by_its_title():
    pool = PassagePool(make_chunker("words:2"))
    first = pool.add("Rhine", "one two three", "a")
    assert pool.add("Rhine", "one  two three") == first == "a"
    assert [passage.id for passage in pool.parts("a")] == ["a#1", "a#2"]
    assert pool.add("Rhine", " ") is None
    with pytest.raises(UserError, match="'a' stands for two different texts"):
        pool.add("Rhine", "four", "a")
    assert [passage.text for passage in pool.titled("RHINE")] == ["one two", "three"]
    assert pool.titled("Rhône") == []
    assert len(pool) == len(list(pool)) == 2
    pool.close()


def test_json_is_read_piece_by_piece_wherever_the_pieces_end(tmp_path: Path, monkeypatch):
    values = [{"a": [1.5, -12, 'é\\u0041 " ]']}, 123456, "x" * 50, [], {}, True, None]
    text = ("\ufeff" + json.dumps(values, ensure_ascii=False, indent=1)).encode()
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr("hoptimizer.common.stream._PIECE", size)
        with (tmp_path / "in.json").open("w+b") as file:
            file.write(text)
            file.seek(0)
            assert list(JsonStream(file).array()) == values
    for wrong, line, reason in (
        (b"[1,\n2 3]", 2, "column 3"),
        (b"[1,\n\n", 3, "malformed"),
        (b'{"a" 1}', 1, "column 6"),
    ):
        (tmp_path / "in.json").write_bytes(wrong)
        with (tmp_path / "in.json").open("rb") as file, pytest.raises(MalformedText, match=reason) as caught:
            list(JsonStream(file).members() if wrong.startswith(b"{") else JsonStream(file).array())
        assert caught.value.line == line
