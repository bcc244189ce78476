"""Inverted lists beside exact search, over vectors that lie in bundles, as those of texts do."""

import logging

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from small_encoders import tiny_bert

from hoptimizer.common.errors import UserError
from hoptimizer.config import load_config
from hoptimizer.retrieval import Corpus, DenseSettings, Passage, build_retriever, index_info
from hoptimizer.retrieval.dense import inverted, retriever
from hoptimizer.retrieval.dense.inverted import InvertedIndex
from hoptimizer.retrieval.dense.vectors import VectorIndex
from hoptimizer.retrieval.encoders.windows import EncodedWindow, PassageEncoder
from hoptimizer.retrieval.index_folder import BrokenIndexError

DIM, PASSAGES = 24, 3000


class Given(PassageEncoder):
    """Gives the passages, which are named by numbers, vectors that are there already."""

    def __init__(self, vectors):
        self.vectors, self.dim = vectors, vectors.shape[1]

    def window(self, texts):
        rows = [int(text) for text in texts]
        return EncodedWindow([(list(range(len(rows))), self.vectors[rows])])


def bundles(passages, lengths=1.0, seed=1):
    """Vectors around 60 directions, of the given lengths."""
    torch.manual_seed(seed)
    middles = torch.randn(60, DIM)
    vectors = middles[torch.randint(60, (passages,))] + 0.5 * torch.randn(passages, DIM)
    return (torch.nn.functional.normalize(vectors, dim=1) * lengths).half()


def both(folder, vectors, probes):
    """An exact index of some vectors, and one of inverted lists."""
    texts = [str(number) for number in range(len(vectors))]
    for name, index in (("exact", VectorIndex), ("ivf", InvertedIndex)):
        (folder / name).mkdir()
        index.write(folder / name, Given(vectors), texts, lambda done, total: None)
    exact = VectorIndex(folder / "exact", len(vectors), DIM, torch.device("cpu"))
    return exact, InvertedIndex(folder / "ivf", len(vectors), DIM, probes)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(inverted, "_PART", 700)


@pytest.mark.parametrize("lengths", [1.0, torch.linspace(0.5, 3, PASSAGES)[:, None]], ids=["cosines", "products"])
def test_all_cells_find_what_exact_search_finds(tmp_path, small_parts, lengths):
    vectors = bundles(PASSAGES, lengths)
    vectors[[7, 900, 2500]] = vectors[1800].clone()  # which lie in three parts
    exact, index = both(tmp_path, vectors, probes=10**6)
    queries = torch.cat([bundles(40, seed=2).float(), vectors[1800:1801].float()])
    for expected, found in zip(exact.search(queries, 20), index.search(queries, 20), strict=True):
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=2e-4)
        assert len({place for place, _ in found} & {place for place, _ in expected}) >= 19  # the last may tie
    ranking = [place for place, _ in index.search(queries[-1:], PASSAGES)[0]]
    first = ranking.index(7)
    assert ranking[first : first + 4] == [7, 900, 1800, 2500]


@pytest.mark.parametrize("lengths", [1.0, torch.linspace(0.5, 3, PASSAGES)[:, None]], ids=["cosines", "products"])
def test_a_few_cells_find_most_and_more_cells_find_more(tmp_path, lengths):
    vectors = bundles(PASSAGES, lengths)
    exact, few = both(tmp_path, vectors, probes=64)
    queries = bundles(100, seed=2).float()

    def share(index):
        pairs = zip(exact.search(queries, 3), index.search(queries, 3), strict=True)
        return np.mean([len({place for place, _ in one} & {place for place, _ in other}) / 3 for one, other in pairs])

    shares = [share(InvertedIndex(tmp_path / "ivf", PASSAGES, DIM, probes)) for probes in (4, 64, 256)]
    assert shares == sorted(shares)
    assert shares[0] < share(few) < 1
    assert shares[1] > 5 * 64 / 1024  # the share of the cells


def test_where_the_nearest_cells_hold_too_few_all_are_searched(tmp_path):
    _, index = both(tmp_path, bundles(PASSAGES), probes=1)
    [ranking] = index.search(bundles(1, seed=2).float(), PASSAGES)
    assert sorted(place for place, _ in ranking) == list(range(PASSAGES))
    assert [score for _, score in ranking] == sorted((score for _, score in ranking), reverse=True)


def test_searches_that_are_told_apart_by_no_pool_begin_alike(tmp_path):
    _, index = both(tmp_path, bundles(PASSAGES), probes=16)
    queries = bundles(50, seed=2).float()
    shared = [k for k in range(1, 100) if index.pool(k) == 0]
    assert shared == list(range(1, len(shared) + 1))
    assert 2 < len(shared) < 99
    longest = index.search(queries, shared[-1])
    for k in shared:
        assert index.search(queries, k) == [ranking[:k] for ranking in longest]


def test_a_query_finds_the_same_in_any_company(tmp_path):
    _, index = both(tmp_path, bundles(PASSAGES), probes=2)
    queries = bundles(70, seed=2).float()
    assert [index.search(query[None], 7)[0] for query in queries] == index.search(queries, 7)


def test_the_vectors_are_written_once(tmp_path, small_parts):
    both(tmp_path, bundles(PASSAGES), probes=1)
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "ivf").iterdir()}
    assert sizes.pop("lists.f16") == PASSAGES * 2 * DIM
    assert sorted(sizes) == ["centroids.f16", "places.i64", "sizes.i64"]
    assert sum(sizes.values()) == 8 * PASSAGES + 1024 * (8 + 2 * DIM)


def test_an_index_of_other_vectors_is_broken(tmp_path):
    both(tmp_path, bundles(PASSAGES), probes=1)
    with pytest.raises(BrokenIndexError, match=r"places\.i64 has another size than 2999 vectors of 1"):
        InvertedIndex(tmp_path / "ivf", PASSAGES - 1, DIM, 1)
    sizes = tmp_path / "ivf" / "sizes.i64"
    sizes.write_bytes(np.full(1024, 2).tobytes())
    with pytest.raises(BrokenIndexError, match=r"sizes\.i64 does not say where 3000 passages are"):
        InvertedIndex(tmp_path / "ivf", PASSAGES, DIM, 1)


@pytest.fixture
def corpus():
    animals = ["cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad"]
    return Corpus([Passage(f"p{i}", animal, f"The {animal} sleeps by day.") for i, animal in enumerate(animals)], "zoo")


def test_a_large_corpus_has_inverted_lists_unless_it_is_asked_for_otherwise(tmp_path, corpus, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    model = str(tiny_bert(tmp_path / "bert"))
    assert index_info(DenseSettings(model=model), corpus)["index"] == "dense"
    monkeypatch.setattr(retriever, "EXACT_LIMIT", 5)
    kinds = {index: index_info(DenseSettings(model=model, index=index), corpus)["index"] for index in ("auto", "exact")}
    assert kinds == {"auto": "ivf", "exact": "dense"}
    settings = DenseSettings(model=model)
    found = build_retriever(settings, corpus).search(["a bird"], 3)
    assert found == build_retriever(DenseSettings(model=model, index="exact"), corpus).search(["a bird"], 3)
    assert index_info(settings, corpus)["state"] == "ready"


def test_lists_that_are_damaged_are_said_and_built_anew(tmp_path, corpus, monkeypatch, caplog):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    settings = DenseSettings(model=str(tiny_bert(tmp_path / "bert")), index="ivf")
    whole = build_retriever(settings, corpus).search(["a bird"], 3)
    [lists] = tmp_path.rglob("lists.f16")
    lists.write_bytes(lists.read_bytes()[:-8])
    with caplog.at_level(logging.WARNING):
        assert build_retriever(settings, corpus).search(["a bird"], 3) == whole
    [record] = caplog.records
    assert "lists.f16 is truncated or damaged" in record.getMessage()


def test_a_config_says_the_index_only_where_it_was_given():
    assert "index" not in DenseSettings().model_dump()
    assert DenseSettings(index="ivf", probes=128).model_dump().items() >= {"index": "ivf", "probes": 128}.items()
    assert load_config(overrides=["data=atlas", "retriever={name: dense, index: ivf, probes: 8}"]).retriever.probes == 8


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"index": "exact", "probes": 8}, "probes is of the index ivf alone"),
        ({"index": "plaid"}, "'auto', 'exact' or 'ivf'"),
        ({"index": "ivf", "probes": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_refused(wrong, said):
    with pytest.raises(ValidationError, match=said):
        DenseSettings(**wrong)


def test_a_wrong_index_of_a_config_is_one_line():
    with pytest.raises(UserError, match="index"):
        load_config(overrides=["data=atlas", "retriever={name: dense, index: hnsw}"])
