"""Late-interaction retrieval by a ColBERT checkpoint (Khattab and Zaharia, 2020)."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import torch

from hoptimizer.common.progress import Progress
from hoptimizer.models.engine.packed import pack
from hoptimizer.retrieval.colbert.checkpoint import Checkpoint, find_checkpoint
from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder, PassageTokenEncoder, TokenEncoder
from hoptimizer.retrieval.colbert.exact import ExactIndex
from hoptimizer.retrieval.encoders.windows import Elsewhere, indexing
from hoptimizer.retrieval.index_folder import Kind, Manifest, index_folder, new_manifest, open_index
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever
from hoptimizer.retrieval.settings import RetrieverSettings

# Up to so many passages, all of them are scored in a fraction of a second on two cores.
EXACT_LIMIT = 30_000
_log = logging.getLogger(__name__)


class Index(Protocol):
    """What both kinds of index offer."""

    #: What an index is built with; an index with other settings is built anew.
    SETTINGS: ClassVar[dict[str, int]]

    def __init__(self, folder: Path, encoder: TokenEncoder, texts: Sequence[str]) -> None:
        """Open the index of ``texts`` that :meth:`write` put into ``folder``; what else is there is a
        ``BrokenIndexError``."""

    def pool(self, k: int) -> int:
        """As :meth:`~hoptimizer.retrieval.retriever.Retriever.pool`."""

    def search(self, queries: list[torch.Tensor], k: int) -> list[list[tuple[int, float]]]:
        """Places in the corpus and scores of each query's ``k`` best passages; a query has the shape ``(tokens,
        dim)``."""

    @staticmethod
    def write(
        folder: Path,
        encoder: PassageTokenEncoder,
        texts: Sequence[str],
        built_with: Mapping[str, int],
        progress: Progress,
    ) -> None:
        """Encode ``texts`` and write their index into ``folder``, with the settings of its manifest."""


class ColBERTRetriever(Retriever):
    """Searches a corpus by MaxSim over token vectors, through an exact index or PLAID.

    Args:
        settings: which checkpoint and index.
        corpus: the passages to search.
        progress: called with the passages encoded so far and all there are, while an index is built.
        elsewhere: encodes a large corpus in other processes; ``None`` for this one.

    Raises:
        UserError: the checkpoint can't be had, or the index can't be written.

    Attributes:
        corpus: as given.
        kind: ``exact`` or ``plaid``.

    Example:
        >>> from hoptimizer.retrieval import ColBERTRetriever, Corpus, Passage, RetrieverSettings
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("oslo", "Oslo", "Oslo is the capital of Norway.")])
        >>> retriever = ColBERTRetriever(RetrieverSettings(), corpus)
        >>> retriever.kind, retriever.search(["the birthplace of a physicist"], k=1)[0][0].id
        ('exact', 'curie')
    """

    name = "colbert"

    def __init__(
        self,
        settings: RetrieverSettings,
        corpus: Corpus,
        progress: Progress = lambda done, total: None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.corpus = corpus
        checkpoint = find_checkpoint(settings.checkpoint)
        self._encoder = load_encoder(checkpoint)
        folder, wanted = index_of(settings, corpus, checkpoint)
        self.kind = wanted.kind
        if self.kind == "exact" and settings.bits != RetrieverSettings.model_fields["bits"].default:
            _log.warning(
                "retriever.bits: the exact index of %s has whole vectors; for fewer bits set retriever.index=plaid",
                corpus.name,
            )
        index, encoder, texts = _index_class(self.kind), self._encoder, corpus.texts

        def build(draft: Path) -> None:
            with indexing(encoder, settings, checkpoint.digest, len(corpus), elsewhere) as one:
                index.write(draft, one, texts, wanted.settings, progress)

        self._index = open_index(folder, wanted, build=build, load=lambda found: index(found, encoder, texts))

    def pool(self, k: int) -> int:
        return self._index.pool(k)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        found = self._index.search(self._encoder.queries(queries), min(k, len(self.corpus)))
        return [[self.corpus.passages[place].scored(score) for place, score in ranking] for ranking in found]


def load_encoder(checkpoint: Checkpoint) -> TokenEncoder:
    """The encoder of a checkpoint, in whichever layout it is, for inference.

    Raises:
        UserError: it can't be loaded.
    """
    if checkpoint.modules:
        from hoptimizer.retrieval.colbert.pylate import PyLateEncoder

        encoder: TokenEncoder = PyLateEncoder(checkpoint)
    else:
        encoder = ColBERTEncoder(checkpoint)
    pack(encoder.model)
    return encoder


def index_of(settings: RetrieverSettings, corpus: Corpus, checkpoint: Checkpoint) -> tuple[Path, Manifest]:
    """The folder of the index that settings ask for, or that fits the corpus' size, and what its manifest must say."""
    kind: Kind = "exact" if len(corpus) <= EXACT_LIMIT else "plaid"
    if settings.index != "auto":
        kind = settings.index
    built_with, folder = _index_class(kind).SETTINGS, index_folder(corpus, checkpoint, kind)
    if kind == "plaid":
        built_with = built_with | {"nbits": settings.bits}
        folder = folder.with_name(f"{folder.name}{settings.bits}")
    return folder, new_manifest(corpus, checkpoint, kind, built_with)


def _index_class(kind: Kind) -> type[Index]:
    if kind == "exact":
        return ExactIndex
    from hoptimizer.retrieval.colbert.plaid import PlaidIndex  # brings faiss, which the exact index does without

    return PlaidIndex
