"""The exact index: MaxSim of a query with every passage (Khattab and Zaharia, 2020, equation 3)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder, TokenEncoder
from hoptimizer.retrieval.colbert.rounded import max_similarities, round_vectors
from hoptimizer.retrieval.colbert.token_rows import token_rows
from hoptimizer.retrieval.colbert.token_store import TokenStore

# Token vectors that are compared at a time, so that the products stay in a processor's cache, and queries.
_CHUNK_TOKENS = 1024
_QUERIES = 16
_DECIMALS = 4
# Vectors have a length of 1, up to what fp16 leaves.
_LENGTH = 1.01


class ExactIndex:
    """Finds the best of all passages of a corpus; for corpora up to some tens of thousands of passages.

    Where the processor multiplies whole numbers of 8 bits fast, all passages are scored in these first. Only those that
    could be among the best, given the error of rounding, are then scored in full.

    Args:
        folder: written by :meth:`write`.
        encoder: the encoder of the checkpoint that the index was written with.
        texts: the corpus' passages as they were encoded.
    """

    SETTINGS: ClassVar[dict[str, int]] = {"rounded_bits": 8}

    def __init__(self, folder: Path, encoder: TokenEncoder, texts: Sequence[str]) -> None:
        store = TokenStore(folder, len(texts), encoder.dim)
        on_cpu = encoder.device.type == "cpu"
        self._places, self._lengths = store.places, store.lengths
        self._starts = store.lengths.cumsum(0) - store.lengths
        # A GPU takes the vectors in whole; a CPU reads them from the mapped file.
        self._vectors = store.vectors if on_cpu else store.vectors.to(encoder.device)
        self._rounded = store if on_cpu and torch.cpu._is_vnni_supported() else None
        self._runs = list(_runs(store.lengths))
        # The most that rounding changed of a token of each passage.
        self._changed = torch.from_numpy(np.maximum.reduceat(store.changed.numpy(), self._starts.numpy()))

    def pool(self, k: int) -> int:
        return 0

    @torch.inference_mode()
    def search(self, queries: list[torch.Tensor], k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query by the sum, over its tokens, of the best similarity in the passage.

        Args:
            queries: for each query its vectors ``(tokens, dim)``, fp32.
            k: passages per query; at most the number of passages.

        Returns:
            For each query the passages' places in the corpus with their scores, best first; ties in corpus order.
        """
        scores = self._score_all(queries) if self._rounded is None else self._score_likely(self._rounded, queries, k)
        # Rounded, so that equal passages tie wherever they are in a chunk.
        found = scores.round(decimals=_DECIMALS).sort(dim=1, descending=True, stable=True)
        return [
            list(zip(places, values, strict=True))
            for places, values in zip(found.indices[:, :k].tolist(), found.values[:, :k].tolist(), strict=True)
        ]

    def _score_all(self, queries: list[torch.Tensor]) -> torch.Tensor:
        """Scores of shape ``(queries, passages)``, passages in corpus order."""
        # The type is explicit, because a model that loads in another thread changes torch's default meanwhile.
        scores = torch.empty(len(queries), len(self._places), dtype=torch.float32)
        for rows, tokens, length in self._blocks():
            chunk = self._vectors[tokens].float()
            # Query by query: in one product the last digits would depend on which queries are searched together.
            for query, vectors in enumerate(queries):
                similar = (chunk @ vectors.T).view(-1, length, len(vectors))  # [passages, tokens, query tokens]
                scores[query, self._places[rows]] = similar.amax(dim=1).sum(dim=1).cpu()
        return scores

    def _score_likely(self, store: TokenStore, queries: list[torch.Tensor], k: int) -> torch.Tensor:
        """The scores of all passages that can be among the ``k`` best; those of the others are minus infinity."""
        scores = torch.full((len(queries), len(self._places)), -torch.inf, dtype=torch.float32)
        for query, (vectors, estimates) in enumerate(zip(queries, self._estimate(store, queries), strict=True)):
            errors = self._errors(vectors)
            surely = (estimates - errors).topk(k).values[-1]
            rows = (estimates + errors >= surely).nonzero().squeeze(1)
            scores[query, self._places[rows]] = self._score(rows, vectors)
        return scores

    def _estimate(self, store: TokenStore, queries: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """For each query its scores ``(passages,)`` by rounded vectors, passages in the order of the store."""
        lengths = self._lengths.numpy()
        for start in range(0, len(queries), _QUERIES):
            group = queries[start : start + _QUERIES]
            best = max_similarities(store.rounded, store.scales, lengths, torch.cat(group))
            for part in best.split([len(query) for query in group], dim=1):
                yield part.sum(dim=1)

    def _errors(self, query: torch.Tensor) -> torch.Tensor:
        """How far off each stored passage's estimate can be, ``(passages,)``, by the inequality of Cauchy and Schwarz.

        A similarity is off by at most the length of what rounding changed in either vector times the other's length.
        """
        numbers, scales = round_vectors(query)
        rounded = numbers * scales[:, None]
        return _LENGTH * (query - rounded).norm(dim=1).sum() + rounded.norm(dim=1).sum() * self._changed

    def _score(self, rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Scores of some stored passages for one query."""
        lengths = self._lengths[rows]
        tokens = token_rows(self._starts[rows], lengths)
        similar = self._vectors.index_select(0, tokens).float() @ vectors.T  # [tokens, query tokens]
        return torch.segment_reduce(similar, "max", lengths=lengths).sum(dim=1)

    def _blocks(self) -> Iterator[tuple[slice, slice, int]]:
        """Dense blocks: slices of the stored passages and of their tokens, and how many tokens each passage has."""
        row = start = 0
        for passages, length in self._runs:
            yield slice(row, row + passages), slice(start, start + passages * length), length
            row, start = row + passages, start + passages * length

    @staticmethod
    def write(
        folder: Path,
        encoder: PassageTokenEncoder,
        texts: Sequence[str],
        built_with: Mapping[str, int],
        progress: Progress,
    ) -> None:
        """Encode passages into ``folder``."""
        TokenStore.write(folder, encoder, texts, progress)


def _runs(lengths: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Neighbouring passages of one length, as (passages, length): each is a dense block that needs no padding."""
    for length, count in zip(*(t.tolist() for t in lengths.unique_consecutive(return_counts=True)), strict=True):
        most = max(1, _CHUNK_TOKENS // length)
        for start in range(0, count, most):
            yield min(most, count - start), length
