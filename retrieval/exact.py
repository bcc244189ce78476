"""The exact index: MaxSim of a query with every passage (Khattab and Zaharia, 2020, equation 3)."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch

from hoptimizer.retrieval.encoder import ColBERTEncoder
from hoptimizer.retrieval.retriever import Progress
from hoptimizer.retrieval.token_store import TokenStore

# Token vectors compared at a time; bounds the memory of a search whatever the corpus' size.
_CHUNK_TOKENS = 16384
_DECIMALS = 4


class ExactIndex:
    """Scores every passage of a corpus; for corpora up to some tens of thousands of passages.

    Args:
        folder: written by :meth:`write`.
        encoder: of the checkpoint that the index was written with.
        texts: the corpus' passages as they were encoded.
    """

    SETTINGS: ClassVar[dict[str, int]] = {}

    def __init__(self, folder: Path, encoder: ColBERTEncoder, texts: list[str]) -> None:
        store = TokenStore(folder)
        self._places = store.places
        # A GPU takes the vectors in whole; a CPU reads them from the mapped file.
        self._vectors = store.vectors if encoder.device.type == "cpu" else store.vectors.to(encoder.device)
        self._runs = list(_runs(store.lengths))

    @torch.inference_mode()
    def search(self, queries: list[torch.Tensor], k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query by the sum, over its tokens, of the best similarity in the passage.

        Args:
            queries: vectors [tokens, dim] of each query, fp32.
            k: at most the number of passages.

        Returns:
            For each query the passages' places in the corpus with their scores, best first; ties in corpus order.
        """
        # The type is said: a model that loads in another thread changes torch's default meanwhile.
        scores = torch.empty(len(queries), len(self._places), dtype=torch.float32)
        row = start = 0
        for passages, length in self._runs:
            chunk = self._vectors[start : start + passages * length].float()
            places = self._places[row : row + passages]
            # Query by query: in one product the last digits would depend on which queries are searched together.
            for query, vectors in enumerate(queries):
                similar = (chunk @ vectors.T).view(passages, length, -1)  # [passages, tokens, query tokens]
                scores[query, places] = similar.amax(dim=1).sum(dim=1).cpu()
            row, start = row + passages, start + passages * length
        # Rounded, so that equal passages tie wherever in a chunk they are.
        found = scores.round(decimals=_DECIMALS).sort(dim=1, descending=True, stable=True)
        return [
            list(zip(places, values, strict=True))
            for places, values in zip(found.indices[:, :k].tolist(), found.values[:, :k].tolist(), strict=True)
        ]

    @staticmethod
    def write(folder: Path, encoder: ColBERTEncoder, texts: list[str], progress: Progress) -> None:
        """Encode passages into ``folder``."""
        TokenStore.write(folder, encoder, texts, progress)


def _runs(lengths: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Neighbouring passages of one length, as (passages, length): each is a dense block that needs no padding."""
    for length, count in zip(*(t.tolist() for t in lengths.unique_consecutive(return_counts=True)), strict=True):
        most = max(1, _CHUNK_TOKENS // length)
        for start in range(0, count, most):
            yield min(most, count - start), length
