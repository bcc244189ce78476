"""PLAID's search beside the exact one: few candidates hold the best passages, and their scores are nearly the same."""

import pytest
import torch

from hoptimizer.eval import load
from hoptimizer.retrieval.colbert import plaid_build, plaid_candidates
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder
from hoptimizer.retrieval.colbert.exact import ExactIndex
from hoptimizer.retrieval.colbert.plaid import PlaidIndex
from hoptimizer.retrieval.index_folder import BrokenIndexError

PASSAGES, K = 400, 5


@pytest.fixture(scope="module")
def encoder():
    return ColBERTEncoder(find_checkpoint("minilm"))


@pytest.fixture(scope="module")
def data():
    return load("atlas")


@pytest.fixture(scope="module")
def texts(data):
    return data.corpus.texts[:PASSAGES]


@pytest.fixture(scope="module")
def queries(data, encoder):
    return [query.cpu() for query in encoder.queries([question.question for question in data.split("dev", 20)])]


@pytest.fixture(scope="module")
def written(tmp_path_factory, encoder, texts):
    folders = {}
    for index, settings in ((ExactIndex, {}), (PlaidIndex, {"nbits": plaid_build.WHOLE})):
        folders[index] = tmp_path_factory.mktemp("index")
        index.write(folders[index], encoder, texts, index.SETTINGS | settings, lambda done, total: None)
    return folders


def test_a_tenth_of_the_passages_holds_the_best(written, encoder, texts, queries, monkeypatch):
    monkeypatch.setattr(plaid_candidates, "_SCORED", PASSAGES // 10)
    exact, plaid = (index(folder, encoder, texts).search(queries, K) for index, folder in written.items())
    shares = [len({place for place, _ in a} & {place for place, _ in b}) / K for a, b in zip(exact, plaid, strict=True)]
    assert sum(shares) / len(shares) >= 0.9
    for a, b in zip(exact, plaid, strict=True):
        scores = dict(a)
        assert all(score == pytest.approx(scores[place], abs=0.05) for place, score in b if place in scores)
        assert [score for _, score in b] == sorted((score for _, score in b), reverse=True)


def test_candidates_come_as_they_lie_on_disk_and_are_enough(written, encoder, queries, monkeypatch):
    monkeypatch.setattr(plaid_candidates, "_SCORED", 8)
    candidates = plaid_candidates.Candidates(written[PlaidIndex], encoder.dim)
    for query in queries[:5]:
        found = candidates.find(query, 1)
        assert len(found) == 8
        assert found.tolist() == sorted(set(found.tolist()))
        assert set(found.tolist()) <= set(candidates.find(query, 10).tolist())
        assert len(candidates.find(query, 10)) == 40


def test_an_index_with_other_centroids_than_cells_is_broken(written, encoder, texts, tmp_path):
    for file in written[PlaidIndex].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / plaid_build.CENTROIDS).unlink()
    torch.save(torch.zeros(3, encoder.dim), tmp_path / plaid_build.CENTROIDS)
    with pytest.raises(BrokenIndexError, match="other centroids than"):
        PlaidIndex(tmp_path, encoder, texts)
