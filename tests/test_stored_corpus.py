"""Corpora that stay on disk: they are those in memory, read once from their file, and checked before they serve."""

import csv
import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from hoptimizer.common.errors import UserError
from hoptimizer.eval import bundled, check, load
from hoptimizer.eval.datasets import corpus_file
from hoptimizer.eval.datasets.corpus_file import read_corpus
from hoptimizer.eval.datasets.folder import read_folder
from hoptimizer.retrieval import BM25Retriever
from hoptimizer.retrieval.stored_corpus import StoredCorpus

ATLAS = bundled()["atlas"]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The folder of the corpora that are kept; all but the smallest are."""
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(corpus_file, "IN_MEMORY", 3)
    return tmp_path / "home" / "corpora"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "corpus.jsonl"
    write(path, 9000)
    return path


def row(number: int) -> str:
    return json.dumps({"id": f"p{number}", "title": f"Title {number}", "text": f"Text {number} of Ötztal."}) + "\n"


def write(path: Path, count: int) -> None:
    path.write_text("".join(map(row, range(count))))


def no_rows(*_):
    pytest.fail("the file was read again")


def test_a_stored_corpus_is_the_one_in_memory(monkeypatch):
    with monkeypatch.context() as usual:
        usual.setattr(corpus_file, "IN_MEMORY", 50_000)
        inside, _ = read_folder(ATLAS)
    stored, _ = read_folder(ATLAS)
    assert isinstance(stored, StoredCorpus)
    assert not isinstance(inside, StoredCorpus)
    assert (len(stored), stored.name, stored.digest) == (len(inside), inside.name, inside.digest)
    assert list(stored) == list(inside)
    assert list(stored.texts) == [str(passage) for passage in inside]
    for place in (0, 700, -1):
        assert stored.passages[place] == inside.passages[place]
        assert stored.texts[place] == str(inside.passages[place])
    assert stored.passages[5:9] == list(inside.passages[5:9])
    assert all(stored[passage.id] == passage for passage in inside)
    assert "marie-curie" in stored
    assert "no such id" not in stored
    assert 7 not in stored
    with pytest.raises(KeyError):
        stored["no such id"]
    with pytest.raises(IndexError):
        stored.passages[len(stored)]
    questions = [question.question for question in load("atlas").split("dev", 20)]
    assert BM25Retriever(stored).search(questions, 5) == BM25Retriever(inside).search(questions, 5)


def test_a_file_is_read_once_whatever_its_format(file, tmp_path, monkeypatch):
    expected = list(read_corpus(file, "nine"))
    rows = [{"id": passage.id, "title": passage.title, "text": passage.text} for passage in expected]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    with (tmp_path / "corpus.csv").open("w", newline="") as table:
        writer = csv.DictWriter(table, ["id", "title", "text"])
        writer.writeheader()
        writer.writerows(rows)
    for path in (tmp_path / "corpus.csv", tmp_path / "corpus.parquet"):
        assert list(read_corpus(path, "nine")) == expected
    monkeypatch.setattr(corpus_file, "read_rows", no_rows)
    for path in (file, tmp_path / "corpus.csv", tmp_path / "corpus.parquet"):
        assert list(read_corpus(path, "nine")) == expected


def test_a_file_that_changed_is_read_anew(file):
    first = read_corpus(file, "nine")
    with file.open("a") as more:
        more.write(row(9000))
    second = read_corpus(file, "nine")
    assert (len(first), len(second)) == (9000, 9001)
    assert first.digest != second.digest
    assert second["p9000"].title == "Title 9000"


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("passages.arrow", lambda data: data[:-1000]),
        ("passages.arrow", lambda data: data.replace(b"Title 77", b"Title 78")),
        ("order.npy", lambda data: data[:200]),
        ("manifest.json", lambda data: data[:20]),
    ],
    ids=["truncated", "changed", "order", "manifest"],
)
def test_a_damaged_copy_is_made_anew(file, kept, caplog, name, spoil):
    expected = read_corpus(file, "nine")
    digest = expected.digest
    [damaged] = kept.glob(f"*/{name}")
    data = damaged.read_bytes()
    damaged.unlink()  # what is mapped stays as it was
    damaged.write_bytes(spoil(data))
    with caplog.at_level(logging.WARNING):
        again = read_corpus(file, "nine")
    assert again.digest == digest
    assert list(again) == list(expected)
    [line] = caplog.messages
    assert name in line
    assert damaged.read_bytes() == data


def test_problems_of_a_large_file_are_one_line_each_and_keep_nothing(file, kept):
    lines = file.read_text().splitlines(keepends=True)
    lines[6000] = row(17)
    lines[7000] = json.dumps({"id": "p7000", "title": "Title"}) + "\n"
    file.write_text("".join(lines))
    (file.parent / "dev.jsonl").write_text('{"id": "q", "question": "Where?", "answers": ["here"], "passages": ["p8"]}')
    twice = f"{file}:6001: id 'p17' stands at {file}:18 already; make ids unique"
    with pytest.raises(UserError) as caught:
        read_corpus(file, "nine")
    assert str(caught.value) == twice
    found = check(file.parent)
    assert found.problems == [twice, f"{file}:7001: 'text' is missing; add it"]
    assert found.corpus.passages == 8998
    assert [path for path in kept.iterdir() if path.suffix != ".lock"] == []


def test_a_small_corpus_stays_in_memory(file, kept):
    write(file, 3)
    assert not isinstance(read_corpus(file, "three"), StoredCorpus)
    assert not kept.exists()
