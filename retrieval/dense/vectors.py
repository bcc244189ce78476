"""The vectors of a corpus on disk, and exact search among them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.encoders.growing import GrowingFiles
from hoptimizer.retrieval.encoders.windows import PassageEncoder
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import mapped

VECTORS = "vectors.f16"
# Vectors that are compared at a time, and queries.
_CHUNK = 8192
_QUERIES = 64
DECIMALS = 4
# How far off a product of two vectors of length 1 can be in fp32, several thousand dimensions included.
_ROUNDING = 1e-3


class VectorIndex:
    """Finds the passages whose vectors have the largest dot products with a query's, among all of a corpus.

    All queries are multiplied with all passages at once in fp32, whose last digits depend on which queries are searched
    together. The passages that can be among the best, given that error, are then scored again one by one.

    Args:
        folder: written by :meth:`write`.
        passages: how many there are.
        dim: length of a vector.
        device: where to search; a GPU takes the vectors in whole, a CPU reads them from the mapped file.

    Raises:
        BrokenIndexError: the file there does not hold so many vectors.
    """

    def __init__(self, folder: Path, passages: int, dim: int, device: torch.device) -> None:
        self._vectors = mapped(folder / VECTORS, torch.float16, (passages, dim)).to(device)
        longest = max(float(chunk.float().norm(dim=1).max()) for chunk in self._vectors.split(_CHUNK))
        if not np.isfinite(longest):
            raise BrokenIndexError(f"{VECTORS} holds what is no number")
        self._error = _ROUNDING * longest

    def pool(self, k: int) -> int:
        """As :meth:`~hoptimizer.retrieval.retriever.Retriever.pool`."""
        return 0

    @torch.inference_mode()
    def search(self, queries: Tensor, k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query.

        Args:
            queries: vectors ``(queries, dim)``, fp32, on the device.
            k: passages per query; at most the number of passages.

        Returns:
            For each query the passages' places in the corpus with their scores, best first; ties in corpus order.
        """
        found = []
        for group in queries.split(_QUERIES):
            estimates = torch.cat([group @ chunk.float().T for chunk in self._vectors.split(_CHUNK)], dim=1)
            found += [self._best(query, row, k) for query, row in zip(group, estimates, strict=True)]
        return found

    def _best(self, query: Tensor, estimates: Tensor, k: int) -> list[tuple[int, float]]:
        """The best of the passages for a query ``(dim,)``, whose scores ``(passages,)`` are about these."""
        least = estimates.topk(k).values[-1] - 2 * self._error * query.norm()
        places = (estimates >= least).nonzero().squeeze(1)
        scores = (self._vectors[places].double() * query.double()).sum(dim=1)
        # Rounded, so that equal passages tie whatever they were encoded with.
        best = scores.round(decimals=DECIMALS).sort(descending=True, stable=True)
        return list(zip(places[best.indices[:k]].tolist(), best.values[:k].tolist(), strict=True))

    @staticmethod
    def write(folder: Path, encoder: PassageEncoder[Tensor], texts: Sequence[str], progress: Progress) -> None:
        """Encode passages into ``folder``, in corpus order; what a build that was ended has left there stays."""
        with GrowingFiles(folder, [VECTORS]) as written:
            encode(written, folder / VECTORS, encoder, texts, progress)


def encode(
    written: GrowingFiles, file: Path, encoder: PassageEncoder[Tensor], texts: Sequence[str], progress: Progress
) -> NDArray[np.float16]:
    """Encode the passages that a file does not have yet.

    Args:
        written: the file, as one that grows.
        file: where it is.
        encoder: gives the passages their vectors.
        texts: all passages, in corpus order.
        progress: called with the passages encoded so far and all there are.

    Returns:
        All vectors ``(passages, dim)``, in corpus order; memory-mapped.
    """
    rows = np.memmap(file, dtype=np.float16, mode="r+", shape=(len(texts), encoder.dim))
    done = written.passages
    for window in encoder.in_order(texts, done):
        for places, vectors in window.batches:
            rows[places] = vectors.numpy()
            done += len(places)
            progress(done, len(texts))
        rows.flush()
        written.keep(done)
    return rows
