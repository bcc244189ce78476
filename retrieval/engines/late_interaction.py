"""What searches in engines with a ColBERT checkpoint's vectors have in common."""

from collections.abc import Iterator, Sequence

from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.retriever import load_encoder
from hoptimizer.retrieval.engines.engine import EngineRetriever
from hoptimizer.retrieval.engines.settings import LateInteractionSettings
from hoptimizer.retrieval.passage import Corpus, Passage


class LateInteractionRetriever(EngineRetriever):
    """A search in an engine that compares the vectors of a query's tokens, which are computed here.

    Args:
        settings: which engine, and which checkpoint.
        corpus: a found passage whose id it has is given as that passage.

    Raises:
        UserError: the checkpoint can't be had.
    """

    computes = True

    def __init__(self, settings: LateInteractionSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._encoder = load_encoder(find_checkpoint(settings.checkpoint))

    def encoded(self, queries: list[str]) -> Sequence[list[list[float]]]:
        return [vectors.tolist() for vectors in self._encoder.queries(queries)]

    def with_vectors(self, passages: Sequence[Passage]) -> Iterator[tuple[Passage, list[list[float]]]]:
        """Passages with the vectors of their tokens, roughly by length.

        Args:
            passages: to be encoded.
        """
        for places, found in self._encoder.passages(list(Corpus(passages).texts)):
            for place, vectors in zip(places, found, strict=True):
                yield passages[place], vectors.tolist()
