"""Dense retrieval: one vector for a passage and one for a query (Karpukhin et al., 2020)."""

from pathlib import Path

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.dense.encoder import DenseEncoder
from hoptimizer.retrieval.dense.model import DenseModel, find_model
from hoptimizer.retrieval.dense.vectors import VectorIndex
from hoptimizer.retrieval.encoders.windows import Elsewhere, indexing
from hoptimizer.retrieval.index_folder import Manifest, index_folder, new_manifest, open_index
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever
from hoptimizer.retrieval.settings import DenseSettings


class DenseRetriever(Retriever):
    """Searches a corpus by the dot product of vectors that an encoder gives to texts; every passage is compared.

    The passages' vectors are computed once and kept on disk.

    Args:
        settings: which encoder, and how it is used.
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
        texts = corpus.texts

        def build(draft: Path) -> None:
            with indexing(encoder, settings, model.digest, len(corpus), elsewhere) as one:
                VectorIndex.write(draft, one, texts, progress)

        self._index = open_index(
            index_folder(corpus, model, "dense"),
            manifest(corpus, model),
            build=build,
            load=lambda found: VectorIndex(found, len(corpus), encoder.dim, encoder.device),
        )

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        found = self._index.search(self._encoder.queries(queries), min(k, len(self.corpus)))
        return [[self.corpus.passages[place].scored(score) for place, score in ranking] for ranking in found]


def manifest(corpus: Corpus, model: DenseModel) -> Manifest:
    """What the manifest of an index of ``corpus`` must say."""
    return new_manifest(corpus, model, "dense", {})
