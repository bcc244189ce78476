"""How PLAID's index is built: from a sample of bounded size, into files that hold every passage."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from hoptimizer.eval import load
from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings
from hoptimizer.retrieval.colbert import plaid_build
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder
from hoptimizer.retrieval.colbert.plaid import PlaidIndex
from hoptimizer.retrieval.colbert.retriever import index_of
from hoptimizer.retrieval.encoders import centroids
from hoptimizer.retrieval.encoders.centroids import NearestCentroids

PASSAGES = 100


@pytest.fixture(scope="module")
def encoder():
    return ColBERTEncoder(find_checkpoint("minilm"))


@pytest.fixture(scope="module")
def texts():
    return load("atlas").corpus.texts[:PASSAGES]


@torch.inference_mode()
def build(folder, encoder, texts, bits=8):
    folder.mkdir(exist_ok=True)
    told = []
    plaid_build.build(
        folder, encoder, texts, PlaidIndex.SETTINGS | {"nbits": bits}, lambda done, total: told.append((done, total))
    )
    return told


@pytest.mark.parametrize("part", [1, 4], ids=["the whole corpus", "a part"])
def test_an_index_holds_all_passages_whatever_its_sample(tmp_path, monkeypatch, encoder, texts, part):
    encoded = [pair for places, vectors in encoder.passages(texts) for pair in zip(places, vectors, strict=True)]
    tokens = {place: len(vectors) for place, vectors in encoded}
    numbers = sum(tokens.values()) * encoder.dim // part
    monkeypatch.setattr(plaid_build, "_SAMPLE", numbers)
    sampled = []
    divided = plaid_build._divided
    monkeypatch.setattr(
        plaid_build, "_divided", lambda sample, apart: sampled.append(sample.numel()) or divided(sample, apart)
    )
    assert build(tmp_path, encoder, texts)[-1] == (PASSAGES, PASSAGES)
    assert 0 < sum(sampled) <= numbers
    places, lengths = np.load(tmp_path / plaid_build.PLACES), np.load(tmp_path / plaid_build.LENGTHS)
    assert dict(zip(places.tolist(), lengths.tolist(), strict=True)) == tokens
    rows = lengths.sum() + plaid_build.PADDING
    numbers = np.fromfile(tmp_path / plaid_build.ROUNDED, dtype=np.int8).reshape(rows, encoder.dim)
    scales = np.fromfile(tmp_path / plaid_build.SCALES, dtype=np.float32)
    of_place = dict(encoded)
    whole = torch.cat([of_place[place] for place in places.tolist()]).float()
    # Of vectors of length 1, half a step in each of their dimensions.
    assert (whole - torch.from_numpy(numbers * scales[:, None])[: len(whole)]).abs().max() < 0.5 / 127
    passages, counts = torch.load(tmp_path / plaid_build.CELLS)
    centroids = torch.load(tmp_path / plaid_build.CENTROIDS).float()
    assert len(centroids) == len(counts)
    codes = NearestCentroids(centroids).codes(whole).numpy()
    of_token = np.repeat(np.arange(PASSAGES), lengths)
    for cell, found in enumerate(passages[: counts.sum()].split(counts.tolist())):
        assert found.tolist() == np.unique(of_token[codes == cell]).tolist()


def test_with_half_the_bits_vectors_take_half_the_place(tmp_path, encoder, texts):
    build(tmp_path, encoder, texts, bits=4)
    rows = np.load(tmp_path / plaid_build.LENGTHS).sum() + plaid_build.PADDING
    assert (tmp_path / plaid_build.RESIDUALS).stat().st_size == rows * encoder.dim // 2
    corpus = Corpus([Passage(str(place), "", text) for place, text in enumerate(texts)])
    folders = {index_of(RetrieverSettings(index="plaid", bits=n), corpus, find_checkpoint("minilm"))[0] for n in (8, 4)}
    assert len(folders) == 2
    with pytest.raises(ValidationError, match="bits is of the index plaid alone"):
        RetrieverSettings(index="exact", bits=4)


@pytest.mark.parametrize("dim", [96, 128, 384, 768])
def test_quantiles_are_taken_of_as_many_numbers_as_torch_takes(dim):
    count = plaid_build.held_out(10**8, dim)
    assert 0 < count * dim <= 2**24
    assert count == min(50_000, 2**24 // dim)
    assert plaid_build.held_out(1000, dim) == 50


def test_the_largest_sample_can_be_cut_into_buckets():
    residuals = torch.arange(2**24, dtype=torch.float32).view(-1, 256) / 2**24
    cutoffs, weights = plaid_build.buckets(residuals, 8)
    assert (cutoffs.shape, weights.shape) == ((255,), (256,))
    assert torch.allclose(cutoffs, torch.arange(1, 256) / 256, atol=1e-4)
    assert (cutoffs > weights[:-1]).all()
    assert (cutoffs < weights[1:]).all()


def test_with_many_centroids_nearly_all_vectors_get_the_nearest(monkeypatch, encoder, texts):
    vectors = torch.cat([one for _, batch in encoder.passages(texts) for one in batch]).float()
    monkeypatch.setattr(centroids, "_COMPARED_TO_ALL", 256)
    found = centroids.find_centroids(vectors, 1024, 4)
    codes = centroids.NearestCentroids(found).codes(vectors)
    likeness = vectors @ found.T
    assert (codes == likeness.argmax(1)).float().mean() > 0.9
    # Clustering with such an index is as good as with all comparisons, within a hundredth.
    monkeypatch.setattr(centroids, "_COMPARED_TO_ALL", 1024)
    best = (vectors @ centroids.find_centroids(vectors, 1024, 4).T).max(1).values.mean()
    assert likeness.max(1).values.mean() > 0.99 * best


def test_cells_are_the_same_whatever_is_ordered_at_a_time(tmp_path, monkeypatch, encoder, texts):
    build(tmp_path / "whole", encoder, texts)
    monkeypatch.setattr(plaid_build, "_PAIRS", 100)
    build(tmp_path / "parts", encoder, texts)
    whole, parts = (torch.load(tmp_path / name / "ivf.pid.pt") for name in ("whole", "parts"))
    assert all(torch.equal(*pair) for pair in zip(whole, parts, strict=True))
