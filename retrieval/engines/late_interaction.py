"""What searches in engines with a ColBERT checkpoint's vectors have in common."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from hoptimizer.common.batching import CORES, Batcher, after
from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.retriever import load_encoder
from hoptimizer.retrieval.engines.engine import EngineRetriever
from hoptimizer.retrieval.engines.settings import LateInteractionSettings
from hoptimizer.retrieval.passage import Corpus, Passage

# The engine's field with the digest of the checkpoint that a passage was encoded with: vectors of another one have the
# same form, and mean something else.
_ENCODED_BY = "encoded_by"


class LateInteractionRetriever(EngineRetriever):
    """A search in an engine that compares the vectors of a query's tokens, which are computed here.

    Args:
        settings: which engine, and which checkpoint.
        corpus: a found passage whose id it has is given as that passage.

    Raises:
        UserError: the checkpoint can't be had.
    """

    def __init__(self, settings: LateInteractionSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        checkpoint = find_checkpoint(settings.checkpoint)
        self._encoder, self._checkpoint = load_encoder(checkpoint), checkpoint.digest
        self._named = settings.checkpoint
        self._cut: set[str] = set()  # the ids of passages that were sent and are longer than the encoder reads

    def fill(self, progress: Progress = lambda done, total: None) -> int:
        try:
            return super().fill(progress)
        finally:
            if self._cut:
                self._encoder.tell_cut_passages(f"{len(self._cut)} of the passages that were sent")

    def begin(self, query: str, k: int) -> "Future[list[Passage]]":
        search = super().begin
        return after([self._encoding.submit(query)], lambda encoded: search(encoded[0], k))

    def encoded(self, queries: list[str]) -> Sequence[list[list[float]]]:
        known = [query for query in queries if isinstance(query, _Encoded)]
        return [query.vectors for query in (known if len(known) == len(queries) else self._encode(queries))]

    @cached_property
    def _encoding(self) -> "Batcher[str, _Encoded]":
        return Batcher(self._encode, self.batch, CORES)

    def _encode(self, queries: list[str]) -> list["_Encoded"]:
        each = self._encoder.queries(queries)
        return [_Encoded(query, vectors.tolist()) for query, vectors in zip(queries, each, strict=True)]

    def fields_of(self, passage: Passage) -> dict[str, str]:
        return super().fields_of(passage) | {_ENCODED_BY: self._checkpoint}

    def _passage(self, fields: Mapping[str, Any], score: float) -> Passage:
        if fields.get(_ENCODED_BY, self._checkpoint) != self._checkpoint:
            raise UserError(
                f"retriever.checkpoint: passages of {self._shown} have vectors of another checkpoint than "
                f"{self._named!r}; give that one, or encode them anew by hop index push"
            )
        return super()._passage(fields, score)

    def with_vectors(self, passages: Sequence[Passage]) -> Iterator[tuple[Passage, list[list[float]]]]:
        """Passages with the vectors of their tokens, roughly by length.

        Args:
            passages: to be encoded.
        """
        for window in self._encoder.in_order(list(Corpus(passages).texts)):
            self._cut.update(passages[place].id for place in window.cut)
            for places, found in window.batches:
                for place, vectors in zip(places, found, strict=True):
                    yield passages[place], vectors.tolist()


class _Encoded(str):
    """A query with the vectors of its tokens."""

    vectors: list[list[float]]

    def __new__(cls, query: str, vectors: list[list[float]]) -> "_Encoded":
        encoded = super().__new__(cls, query)
        encoded.vectors = vectors
        return encoded
