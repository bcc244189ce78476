"""Dense retrieval: one vector for a passage and one for a query (Karpukhin et al., 2020)."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from torch import Tensor

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.dense.encoder import DenseEncoder
from hoptimizer.retrieval.dense.model import DenseModel, find_model
from hoptimizer.retrieval.dense.settings import DenseSettings
from hoptimizer.retrieval.dense.vectors import VectorIndex
from hoptimizer.retrieval.encoders.windows import Elsewhere, indexing
from hoptimizer.retrieval.index_folder import Kind, Manifest, index_folder, new_manifest, open_index
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever

# Up to so many passages, all of them are compared in a tenth of a second on two cores.
EXACT_LIMIT = 200_000
_log = logging.getLogger(__name__)


class Index(Protocol):
    """What both kinds of index offer."""

    def pool(self, k: int) -> int:
        """As :meth:`~hoptimizer.retrieval.retriever.Retriever.pool`."""

    def search(self, queries: Tensor, k: int) -> list[list[tuple[int, float]]]:
        """Places in the corpus and scores of the ``k`` best passages of each of the queries ``(queries, dim)``."""


class DenseRetriever(Retriever):
    """Searches a corpus by the dot product of vectors that an encoder gives to texts.

    The passages' vectors are computed once and kept on disk. Every passage is compared, or, in a large corpus, those in
    the cells nearest to the query.

    Args:
        settings: which encoder, how it is used, and which index.
        corpus: the passages to search.
        progress: called with the passages encoded so far and all there are, while an index is built.
        elsewhere: encodes a large corpus in other processes; ``None`` for this one.

    Raises:
        UserError: the encoder can't be had, or the index can't be written.

    Attributes:
        corpus: as given.

    Example:
        >>> from hoptimizer.retrieval import Corpus, DenseRetriever, DenseSettings, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("oslo", "Oslo", "Oslo is the capital of Norway.")])
        >>> DenseRetriever(DenseSettings(), corpus).search(["the birthplace of a physicist"], k=1)[0][0].id
        'curie'
    """

    name = "dense"

    def __init__(
        self,
        settings: DenseSettings,
        corpus: Corpus,
        progress: Progress = lambda done, total: None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.corpus = corpus
        model = find_model(settings)
        self._encoder = encoder = DenseEncoder(model)
        folder, wanted = index_of(settings, corpus, model)
        passages, texts = len(corpus), corpus.texts
        index: Callable[[Path, int, int], Index]
        if wanted.kind == "ivf":
            from hoptimizer.retrieval.dense.inverted import InvertedIndex  # brings faiss

            write, index = InvertedIndex.write, partial(InvertedIndex, probes=settings.probes)
        else:
            if settings.probes != DenseSettings.model_fields["probes"].default:
                _log.warning(
                    "retriever.probes: the exact index of %s has no cells; for these set retriever.index=ivf",
                    corpus.name,
                )
            write, index = VectorIndex.write, partial(VectorIndex, device=encoder.device)

        def build(draft: Path) -> None:
            with indexing(encoder, settings, model.digest, passages, elsewhere) as one:
                write(draft, one, texts, progress)

        def load(found: Path) -> Index:
            return index(found, passages, encoder.dim)

        self._index = open_index(folder, wanted, build=build, load=load)

    def pool(self, k: int) -> int:
        return self._index.pool(k)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        found = self._index.search(self._encoder.queries(queries), min(k, len(self.corpus)))
        return [[self.corpus.passages[place].scored(score) for place, score in ranking] for ranking in found]


def index_of(settings: DenseSettings, corpus: Corpus, model: DenseModel) -> tuple[Path, Manifest]:
    """The folder of the index that settings ask for, or that fits the corpus' size, and what its manifest must say."""
    exact = settings.index == "exact" or (settings.index == "auto" and len(corpus) <= EXACT_LIMIT)
    kind: Kind = "dense" if exact else "ivf"
    return index_folder(corpus, model, kind), new_manifest(corpus, model, kind, {})
