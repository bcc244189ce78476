"""The vectors of a large corpus in inverted lists: a query is compared with those in the cells nearest to it.

A cell holds the vectors that are most like one centroid (Sivic and Zisserman, 2003; Jégou et al., 2011, section IV).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.dense.vectors import DECIMALS, encode
from hoptimizer.retrieval.encoders.centroids import NearestCentroids, find_centroids
from hoptimizer.retrieval.encoders.growing import GrowingFiles
from hoptimizer.retrieval.encoders.windows import PassageEncoder
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import ScatteredRows, mapped

# The vectors in the order of their cells, the passage of each, how many there are in each cell, and its centroid.
_LISTS, _PLACES, _SIZES, _CENTROIDS = "lists.f16", "places.i64", "sizes.i64", "centroids.f16"
# The vectors in the order of the corpus, while the index is built.
_ENCODED = "encoded.f16"
_SEED, _ITERATIONS = 123, 4
# Vectors that the centroids are the means of, for each of them.
_SAMPLED = 20
# Vectors that are put into their cells at a time, which bounds what a build holds in memory.
_PART = 1 << 14


class InvertedIndex:
    """Finds passages by the dot products of their vectors with a query's, among those in the nearest cells.

    There are about 16 times as many cells as the square root of the passages, so that a search compares a smaller share
    of a larger corpus. Vectors are read from the mapped file, where those of a cell lie together. The search is a
    processor's.

    Args:
        folder: written by :meth:`write`.
        passages: how many there are.
        dim: length of a vector.
        probes: the cells that are searched for a query.

    Raises:
        BrokenIndexError: the files there do not hold so many vectors.
    """

    def __init__(self, folder: Path, passages: int, dim: int, probes: int) -> None:
        cells = _cells(passages)
        self._centroids = mapped(folder / _CENTROIDS, torch.float16, (cells, dim)).float()
        self._places = mapped(folder / _PLACES, torch.int64, (passages, 1)).view(-1).numpy()
        self._sizes = mapped(folder / _SIZES, torch.int64, (cells, 1)).view(-1).numpy()
        if self._sizes.min() < 0 or self._sizes.sum() != passages:
            raise BrokenIndexError(f"{_SIZES} does not say where {passages} passages are")
        self._starts = self._sizes.cumsum() - self._sizes
        self._lists = ScatteredRows(folder / _LISTS, torch.float16, (passages, dim))
        self._probes = min(probes, cells)
        # What the nearest cells hold, whichever these are.
        self._least = int(np.sort(self._sizes)[: self._probes].sum())

    def pool(self, k: int) -> int:
        """As :meth:`~hoptimizer.retrieval.retriever.Retriever.pool`: beyond what some cells hold, more are searched."""
        return k if k > self._least else 0

    @torch.inference_mode()
    def search(self, queries: Tensor, k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query that are in its nearest cells, or of all where these hold fewer.

        Arguments and result are those of the exact index.
        """
        return [self._rank(query.cpu(), k) for query in queries]

    def _rank(self, query: Tensor, k: int) -> list[tuple[int, float]]:
        cells = (self._centroids @ query).topk(self._probes).indices.numpy()
        if self._sizes[cells].sum() < k:
            cells = np.arange(len(self._sizes))
        starts, sizes = self._starts[cells], self._sizes[cells]
        self._lists.expect(starts, sizes)
        spans = [slice(start, start + size) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
        # Rounded, as those of the exact index are, so that equal passages tie; ties in corpus order.
        scores = torch.cat([self._lists.rows[span].float() @ query for span in spans]).double().round(decimals=DECIMALS)
        best = (scores >= scores.topk(k).values[-1]).numpy()
        places = np.concatenate([self._places[span] for span in spans])[best]
        found = scores.numpy()[best]
        order = np.lexsort((places, -found))[:k]
        return list(zip(places[order].tolist(), found[order].tolist(), strict=True))

    @staticmethod
    def write(folder: Path, encoder: PassageEncoder[Tensor], texts: Sequence[str], progress: Progress) -> None:
        """Encode passages, and put their vectors into cells in ``folder``; what a build that was ended has encoded
        stays."""
        with GrowingFiles(folder, [], passing=[_ENCODED]) as written:
            _divide(folder, encode(written, folder / _ENCODED, encoder, texts, progress))


def _cells(passages: int) -> int:
    # Of the same number of compared passages, many small cells find more than a few large ones.
    return min(passages, 1 << round(np.log2(16 * passages**0.5)))


def _divide(folder: Path, vectors: NDArray[np.float16]) -> None:
    """Write vectors ``(passages, dim)`` by their cells."""
    centroids = _centroids(vectors)
    nearest = NearestCentroids(centroids)
    parts = [vectors[start : start + _PART] for start in range(0, len(vectors), _PART)]
    cells = np.concatenate([nearest.codes(torch.from_numpy(part.astype(np.float32))).numpy() for part in parts])
    places = np.argsort(cells, kind="stable")
    with (folder / _LISTS).open("wb") as file:
        for start in range(0, len(places), _PART):
            file.write(vectors[places[start : start + _PART]].tobytes())
    for name, numbers in (
        (_PLACES, places),
        (_SIZES, np.bincount(cells, minlength=len(centroids))),
        (_CENTROIDS, centroids.half().numpy()),
    ):
        (folder / name).write_bytes(numbers.tobytes())


def _centroids(vectors: NDArray[np.float16]) -> Tensor:
    """The centroids of cells, ``(cells, dim)``, fp32, of length 1."""
    cells = _cells(len(vectors))
    some = np.random.default_rng(_SEED).choice(len(vectors), min(len(vectors), cells * _SAMPLED), replace=False)
    sample = torch.from_numpy(vectors[np.sort(some)].astype(np.float32))
    # By direction alone: of centroids that are not of length 1, the longest would be the nearest to most vectors.
    return find_centroids(functional.normalize(sample, dim=1), cells, _ITERATIONS)
