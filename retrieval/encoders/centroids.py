"""The centroids of token vectors, and which of them is nearest to a vector (Santhanam et al., 2022, section 3).

There are about 16 times the square root of the tokens: were each token compared to all of them, an index of a million
passages would take 30 times as long for each passage as one of a thousand.
"""

from typing import Any

import faiss
import numpy as np
import torch
from torch.nn import functional

_SEED = 123
# Beyond so many centroids a vector is compared to those in the nearest parts of space only (inverted lists). Of 458,000
# tokens of real passages 95 of 100 got the same centroid out of 32,768, in a seventh of the time.
_COMPARED_TO_ALL = 1 << 12
_NEAREST_PARTS = 8


def find_centroids(sample: torch.Tensor, partitions: int, iterations: int) -> torch.Tensor:
    """Cluster vectors by k-means.

    Args:
        sample: vectors ``(vectors, dim)``, fp32.
        partitions: how many centroids are wanted. Of fewer vectors each is one; the other centroids repeat them, and
            their cells stay empty.
        iterations: of k-means.

    Returns:
        ``(partitions, dim)``, fp32, of length 1, in the precision in which they are kept: residuals are to what is read
        again.
    """
    dim, cells = sample.shape[1], min(partitions, len(sample))
    kmeans = faiss.Clustering(dim, cells)
    kmeans.niter, kmeans.seed, kmeans.min_points_per_centroid = iterations, _SEED, 1
    kmeans.train(sample.numpy(), _index(dim, cells))
    found = torch.from_numpy(faiss.vector_to_array(kmeans.centroids)).view(cells, dim)
    return functional.normalize(found[torch.arange(partitions) % cells], dim=-1).half().float()


def _index(dim: int, cells: int) -> Any:  # noqa: ANN401 - faiss has no types
    """An empty index that finds the nearest of so many centroids."""
    if cells <= _COMPARED_TO_ALL:
        return faiss.IndexFlatL2(dim)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, 2 << (cells.bit_length() - 1) // 2)
    index.nprobe = _NEAREST_PARTS
    return index


class NearestCentroids:
    """Finds the centroid that is most like a vector.

    Args:
        centroids: as of :func:`find_centroids`.
    """

    def __init__(self, centroids: torch.Tensor) -> None:
        on_gpu = torch.cuda.is_available()
        self._centroids = centroids.cuda().half() if on_gpu else centroids.float()
        self._index = None
        if len(centroids) > _COMPARED_TO_ALL and not on_gpu:
            self._index = _index(centroids.shape[1], len(centroids))
            self._index.train(centroids.numpy())
            self._index.add(centroids.numpy())

    def codes(self, vectors: torch.Tensor) -> torch.Tensor:
        """The number of the nearest centroid of each vector ``(vectors, dim)``, int64, in the processor's memory."""
        if self._index is None:
            return (self._centroids @ vectors.to(self._centroids).T).argmax(dim=0).cpu()
        return torch.from_numpy(self._index.search(np.ascontiguousarray(vectors.float().numpy()), 1)[1][:, 0])
