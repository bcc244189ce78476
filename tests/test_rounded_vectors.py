"""Vectors as whole numbers: their similarities are those of the vectors, whatever is compared together."""

import numpy as np
import pytest
import torch

from hoptimizer.retrieval.colbert.rounded import max_similarities, round_vectors
from hoptimizer.retrieval.colbert.token_rows import token_rows

DIM = 40
# More tokens than are multiplied at a time, neighbours of one length, and a passage that is longer than that alone.
LENGTHS = np.array([1, 3, 3, 3, 7, 50, 50, 2500, 12, 12, 800, 900, 700, 5])


def drawn(count, seed):
    return torch.nn.functional.normalize(torch.randn(count, DIM, generator=torch.manual_seed(seed)), dim=1)


@pytest.fixture
def tokens():
    return drawn(int(LENGTHS.sum()), 1)


@pytest.mark.parametrize("asked", [5, 100], ids=["few columns", "many columns"])
def test_the_most_similar_token_of_each_passage_is_found(tokens, asked):
    queries = drawn(asked, 2)
    found = max_similarities(*round_vectors(tokens), LENGTHS, queries)
    parts = (tokens @ queries.T).split(LENGTHS.tolist())
    expected = torch.stack([part.amax(dim=0) for part in parts])
    assert found.shape == (len(LENGTHS), asked)
    # Two roundings, each by half a step of a number of length 1 at most.
    assert (found - expected).abs().max() < 0.02


def test_passages_from_anywhere_score_as_they_do_in_their_row(tokens):
    numbers, scales = round_vectors(tokens)
    queries = drawn(9, 3)
    whole = max_similarities(numbers, scales, LENGTHS, queries)
    chosen = np.array([12, 0, 7, 3])
    starts = LENGTHS.cumsum() - LENGTHS
    found = max_similarities(numbers, scales, LENGTHS[chosen], queries, starts[chosen])
    assert torch.equal(found, whole[torch.from_numpy(chosen)])
    rows = token_rows(torch.from_numpy(starts[chosen]), torch.from_numpy(LENGTHS[chosen]))
    assert torch.equal(max_similarities(numbers[rows], scales[rows], LENGTHS[chosen], queries), found)


def test_a_query_and_a_processor_change_nothing(tokens, monkeypatch):
    numbers, scales = round_vectors(tokens)
    queries = drawn(100, 4)
    together = max_similarities(numbers, scales, LENGTHS, queries)
    assert torch.equal(max_similarities(numbers, scales, LENGTHS, queries[:7]), together[:, :7])
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert torch.equal(max_similarities(numbers, scales, LENGTHS, queries), together)


def test_a_vector_of_zeros_stays_one():
    numbers, scales = round_vectors(torch.zeros(2, DIM))
    assert not numbers.any()
    assert torch.equal(numbers * scales[:, None], torch.zeros(2, DIM))
