"""Which passages of PLAID's index are worth scoring: those in the cells that are most like the query's vectors.

Santhanam et al. (2022, section 4) then score these by the centroids of all their tokens, twice. That found hardly more
here, among thousands of passages, and took longer than to score the vectors themselves.
"""

from pathlib import Path

import numpy as np
import torch

from hoptimizer.retrieval.colbert import plaid_build
from hoptimizer.retrieval.colbert.token_rows import token_rows
from hoptimizer.retrieval.index_folder import BrokenIndexError

# Chosen on 8,748 passages so that PLAID finds 98 of 100 passages of exact search's top 10, which
# benchmarks/retrieval.py measures.
_CELLS, _SCORED = 8, 1024
# Candidates for each of the passages that are wanted, where that is more.
_TIMES = 4


def scored(k: int) -> int:
    """How many candidates are scored for the ``k`` best passages, at most."""
    return max(_SCORED, _TIMES * k)


class Candidates:
    """The cells of an index: its centroids, and the passages that have tokens near each of them.

    Args:
        folder: of the index.
        dim: length of a vector.

    Raises:
        BrokenIndexError: the files there hold something else.
        pickle.UnpicklingError: they hold more than tensors.
    """

    def __init__(self, folder: Path, dim: int) -> None:
        self._centroids = torch.load(folder / plaid_build.CENTROIDS).float()
        self._members, self._counts = torch.load(folder / plaid_build.CELLS)
        self._starts = self._counts.cumsum(0) - self._counts
        if self._centroids.shape != (len(self._counts), dim):
            raise BrokenIndexError(f"{plaid_build.CENTROIDS} has other centroids than {plaid_build.CELLS} has cells")

    def find(self, query: torch.Tensor, k: int) -> torch.Tensor:
        """The stored passages to score for a query, as they lie on disk.

        A passage counts with the centroid most like each of the query's vectors, of those cells that are nearest to
        any of these vectors.

        Args:
            query: its vectors ``(tokens, dim)``.
            k: how many passages are wanted of them.

        Returns:
            int64; fewer than ``k`` where the nearest cells hold no more.
        """
        similar = self._centroids @ query.T  # (centroids, tokens)
        cells = similar.topk(min(_CELLS, len(similar)), dim=0).indices.unique()
        counts = self._counts[cells]
        members = self._members[token_rows(self._starts[cells], counts)].long()
        order = members.argsort()
        passages, firsts = np.unique(members[order].numpy(), return_index=True)
        of_cells = similar[cells.repeat_interleave(counts)[order]].numpy()
        scores = torch.from_numpy(np.maximum.reduceat(of_cells, firsts, axis=0)).sum(dim=1)
        best = scores.topk(min(scored(k), len(scores))).indices.sort().values
        return torch.from_numpy(passages)[best]
