"""BM25's index on disk: what bm25s finds in memory, kept, mapped and checked."""

import hashlib
import json
import logging
import threading
import time
import unicodedata

import bm25s
import numpy as np
import pytest
import Stemmer
from filelock import FileLock

from hoptimizer.common import paths
from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.settings import DataSettings
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage, RetrieverSettings, index_info
from hoptimizer.retrieval.bm25 import _best, bm25_scores

SETTINGS = RetrieverSettings(name="bm25")
DATA, PLACES, STARTS = "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"
VOCAB, PARAMS = "vocab.index.json", "params.index.json"


@pytest.fixture
def corpus():
    texts = ["The cat sleeps by the river.", "An owl eats by night.", "Rivers and forests.", "the"]
    return Corpus([Passage(f"p{n}", "", text) for n, text in enumerate(texts)], "animals")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_kept_index_finds_what_bm25s_finds_in_memory():
    data = load(DataSettings(name="atlas", dev=40))
    questions = [question.question for question in data.split("dev")] + ["", "zebra", "of the"]
    options = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    memory = bm25s.BM25()
    memory.index(bm25s.tokenize([str(passage) for passage in data.corpus], **options), show_progress=False)
    places, scores = memory.retrieve(bm25s.tokenize(questions, **options), k=len(data.corpus), show_progress=False)
    ranked = [sorted(zip(-score, place, strict=True)) for place, score in zip(places, scores, strict=True)]
    expected = [[(data.corpus.passages[place].id, float(-less)) for less, place in ranking] for ranking in ranked]
    for k in (10, 1, 1000):  # built, and found again; of equal passages the first ones come, whatever k is
        found = BM25Retriever(data.corpus).search(questions, k)
        assert [[(p.id, p.score) for p in ranking] for ranking in found] == [one[:k] for one in expected]


@pytest.mark.parametrize("k", [1, 7, 300])
@pytest.mark.parametrize("highest", [0, 3, 100_000])
def test_of_many_scores_the_best_are_those_of_a_stable_sort(k, highest):
    scores = np.random.default_rng(7).integers(0, highest, 50_017, endpoint=True).astype(np.float32)
    assert _best(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()


def test_an_index_is_built_once_and_mapped(corpus, monkeypatch):
    assert index_info(SETTINGS, corpus)["state"] == "absent"
    found = BM25Retriever(corpus).search(["river owl"], 3)
    info = index_info(SETTINGS, corpus)
    assert (info["index"], info["state"], info["checkpoint"]) == ("bm25", "ready", "bm25")
    monkeypatch.setattr(bm25s.BM25, "index", None)
    again = BM25Retriever(corpus)
    assert again.search(["river owl"], 3) == found
    assert all(isinstance(again._index.scores[name], np.memmap) for name in ("data", "indices", "indptr"))


def test_that_another_process_is_waited_for_is_said(corpus, home, monkeypatch, caplog):
    monkeypatch.setattr(paths, "_SOON", 0.01)
    BM25Retriever(corpus)
    [lock] = (home / "indexes").glob("*.lock")
    held = threading.Event()

    def hold() -> None:
        with FileLock(lock):
            held.set()
            time.sleep(0.3)

    threading.Thread(target=hold).start()
    held.wait()
    with caplog.at_level(logging.WARNING):
        assert BM25Retriever(corpus).search(["owl"], 1)[0][0].id == "p1"
    [record] = [record for record in caplog.records if record.name.startswith("hoptimizer")]
    assert record.getMessage() == "another process is at work on the index of animals: waiting for it"


def test_words_are_the_same_however_they_are_encoded():
    decomposed = unicodedata.normalize("NFD", "Beyoncé sings")
    corpus = Corpus(
        [Passage("a", "", "Paris"), Passage("b", "", decomposed), Passage("c", "", "the \ufb01rst \uff21\uff22")]
    )
    for query, expected in (
        ("Beyoncé", "b"),
        (unicodedata.normalize("NFD", "Beyoncé"), "b"),
        ("first", "c"),
        ("AB", "c"),
    ):
        [[found]] = BM25Retriever(corpus).search([query], 1)
        assert (found.id, found.score > 0) == (expected, True), query
        assert bm25_scores(query, corpus.texts).argmax() == "abc".index(expected)


def test_another_corpus_or_another_version_of_bm25s_is_another_index(corpus, monkeypatch):
    BM25Retriever(corpus)
    assert index_info(SETTINGS, Corpus(corpus.passages[1:], "animals"))["state"] == "absent"
    monkeypatch.setattr("hoptimizer.retrieval.bm25.version", lambda name: "99")
    assert index_info(SETTINGS, corpus)["state"] == "absent"


def agree(folder):
    """Let the manifest have the files as they are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["files"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


class Runs:
    """Would end the test where it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("its code ran",)


STRANGE = {
    "places that are not there": (PLACES, np.array([0] * 9 + [99], dtype=np.int32)),
    "places below the first": (PLACES, np.array([0] * 9 + [-1], dtype=np.int32)),
    "other numbers of places": (PLACES, np.array([0, 1], dtype=np.int32)),
    "starts beyond the end": (STARTS, np.array([0, 999], dtype=np.int64)),
    "starts that go back": (STARTS, np.array([0, 5, 2, 10], dtype=np.int64)),
    "scores that are no numbers": (DATA, np.array(["a"] * 10)),
    "a table of scores": (DATA, np.zeros((2, 5), dtype=np.float32)),
    "pickles": (DATA, np.array([Runs()] * 10, dtype=object)),
    "words that are not there": (VOCAB, {"cat": 10**6}),
    "words with texts for numbers": (VOCAB, {"cat": "1"}),
    "a list of words": (VOCAB, ["cat"]),
    "settings that bm25s does not have": (PARAMS, {"own": 1}),
    "another number of passages": (PARAMS, {"num_docs": 2}),
    "no settings": (PARAMS, []),
}


@pytest.mark.parametrize("case", ["truncated", "flipped", "missing", *STRANGE])
def test_a_broken_index_is_said_and_built_anew(corpus, home, caplog, case):
    whole = BM25Retriever(corpus).search(["river owl"], 3)
    [folder] = [found for found in (home / "indexes").iterdir() if found.is_dir()]
    if case in STRANGE:
        name, content = STRANGE[case]
        if name.endswith(".npy"):
            np.save(folder / name, content, allow_pickle=True)
        else:
            (folder / name).write_text(json.dumps(content))
        agree(folder)
    elif case == "missing":
        (folder / DATA).unlink()
    else:
        content = (folder / DATA).read_bytes()
        (folder / DATA).write_bytes(content[:-8] if case == "truncated" else content[:-8] + b"12345678")
    with caplog.at_level(logging.WARNING):
        assert BM25Retriever(corpus).search(["river owl"], 3) == whole
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "is not usable" in record.getMessage()
    assert index_info(SETTINGS, corpus)["state"] == "ready"


def test_an_index_that_was_cut_off_is_made_anew(corpus, home, monkeypatch):
    save = bm25s.BM25.save

    def stop(self, folder, **options):
        save(self, folder, **options)
        (folder / "data.csc.index.npy").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(bm25s.BM25, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        BM25Retriever(corpus)
    folders = [one.name for one in (home / "indexes").iterdir() if one.is_dir()]
    assert all(name.startswith(".") for name in folders)
    monkeypatch.undo()
    monkeypatch.setenv("HOPTIMIZER_HOME", str(home))
    assert BM25Retriever(corpus).search(["city"], 1) == BM25Retriever(corpus).search(["city"], 1)
    [made] = [one.name for one in (home / "indexes").iterdir() if one.is_dir()]
    assert not made.startswith(".")


def test_a_corpus_without_a_word_is_refused_in_one_line():
    with pytest.raises(UserError, match="silence holds no word but English stopwords"):
        BM25Retriever(Corpus([Passage("a", "", "the"), Passage("b", "", "?")], "silence"))
