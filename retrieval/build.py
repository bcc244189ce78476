"""From settings and a corpus to a retriever."""

from collections.abc import Mapping, Sequence
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.dense.settings import DenseSettings
from hoptimizer.retrieval.encoders.windows import Elsewhere, PassageEncoder
from hoptimizer.retrieval.engines.settings import (
    EngineSettings,
    NextPlaidSettings,
    OpenSearchSettings,
    PostgresSettings,
    QdrantSettings,
    WebSettings,
)
from hoptimizer.retrieval.options import RetrieverOptions
from hoptimizer.retrieval.passage import Corpus
from hoptimizer.retrieval.retriever import Retriever
from hoptimizer.retrieval.settings import (
    HybridSettings,
    OracleSettings,
    RetrieverSettings,
    retriever_class,
)


def build_retriever(
    settings: RetrieverOptions,
    corpus: Corpus,
    *,
    progress: Progress = lambda done, total: None,
    supporting: Mapping[str, Sequence[str]] | None = None,
    elsewhere: Elsewhere | None = None,
) -> Retriever:
    """The retriever that ``settings`` describe, ready to search ``corpus``.

    An index is built at the first call and found again later; it is kept under ``home()/indexes``.

    Args:
        settings: the config's ``retriever`` section.
        corpus: the passages to search; must not be empty.
        progress: called with the passages encoded so far and all there are, while an index is built.
        supporting: the ids of the supporting passages, by the question, which ``oracle`` needs.
        elsewhere: encodes the passages of a large corpus in other processes, while an index is built.

    Raises:
        UserError: the corpus is empty, the model can't be had, or the index' folder can't be written.

    Example:
        >>> from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings, build_retriever
        >>> corpus = Corpus([Passage("rhine", "Rhine", "A river."), Passage("oslo", "Oslo", "A city in Norway.")])
        >>> retriever = build_retriever(RetrieverSettings(name="bm25"), corpus)
        >>> [passage.id for passage in retriever.search(["Which city?"], k=1)[0]]
        ['oslo']
    """
    if not (len(corpus) or settings.elsewhere):
        raise UserError(f"{corpus.name} holds no passages: a retriever needs at least one")
    if isinstance(settings, OracleSettings):
        from hoptimizer.retrieval.oracle import OracleRetriever

        if not any((supporting or {}).values()):
            raise UserError(f"retriever=oracle: {corpus.name} has no question that names supporting passages")
        other = build_retriever(settings.of, corpus, progress=progress, elsewhere=elsewhere)
        retriever: Retriever = OracleRetriever(supporting or {}, corpus, other, settings.others)
    else:
        retriever = _build(settings, corpus, progress, elsewhere)
    if settings.rerank is None:
        return retriever
    from hoptimizer.retrieval.rerank import RerankedRetriever, cross_encoder

    return RerankedRetriever(
        retriever, cross_encoder(settings.rerank.model, settings.rerank.max_tokens), settings.rerank.depth
    )


def push_corpus(settings: RetrieverOptions, corpus: Corpus, *, progress: Progress = lambda done, total: None) -> int:
    """Send a corpus to the search engine that ``settings`` describe, in which it is searched from then on.

    Passages that the engine has already are not sent again, so that the same call goes on where one was broken off.

    Args:
        settings: the config's ``retriever`` section, of an engine.
        corpus: the passages.
        progress: called with the passages that the engine has, and all there are.

    Returns:
        How many passages were sent.

    Raises:
        ServiceError: the engine gives no answer.
        UserError: it refuses, the corpus is empty, or the retriever's index is not in an engine.

    Example:
        >>> from hoptimizer.retrieval import Corpus, Passage, QdrantSettings, push_corpus
        >>> corpus = Corpus([Passage("curie", "Marie Curie", "She was born in Warsaw.")])
        >>> push_corpus(QdrantSettings(path="vectors", collection="wiki"), corpus)
        1
    """
    if not isinstance(settings, EngineSettings):
        raise UserError(
            f"retriever: {settings.name} is no engine that passages are sent to; take qdrant, next_plaid, opensearch "
            "or postgres, or build an index here: hop index build"
        )
    if not len(corpus):
        raise UserError(f"{corpus.name} holds no passages to send; add corpus.jsonl")
    from hoptimizer.retrieval.engines.engine import EngineRetriever

    engine = _build(settings, corpus, progress, None)
    assert isinstance(engine, EngineRetriever)  # for every one of these settings
    return engine.fill(progress)


def build_encoder(settings: RetrieverOptions) -> tuple[PassageEncoder[Any], str]:
    """The encoder that a ColBERT or dense retriever gives passages their vectors with, and the digest of its model.

    Args:
        settings: of one of these.

    Raises:
        UserError: the model can't be had.
    """
    if isinstance(settings, DenseSettings):
        from hoptimizer.retrieval.dense.encoder import DenseEncoder
        from hoptimizer.retrieval.dense.model import find_model

        model = find_model(settings)
        return DenseEncoder(model), model.digest
    from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
    from hoptimizer.retrieval.colbert.retriever import load_encoder

    if not isinstance(settings, RetrieverSettings):
        raise UserError(f"retriever: {settings.name} gives passages no vectors; take colbert or dense")
    checkpoint = find_checkpoint(settings.checkpoint)
    return load_encoder(checkpoint), checkpoint.digest


def _build(settings: RetrieverOptions, corpus: Corpus, progress: Progress, elsewhere: Elsewhere | None) -> Retriever:
    # Imported here, because each brings its own heavy packages.
    if isinstance(settings, DenseSettings):
        from hoptimizer.retrieval.dense.retriever import DenseRetriever

        return DenseRetriever(settings, corpus, progress, elsewhere)
    if isinstance(settings, HybridSettings):
        from hoptimizer.retrieval.hybrid import HybridRetriever

        members = [build_retriever(one, corpus, progress=progress, elsewhere=elsewhere) for one in settings.of]
        return HybridRetriever(members, settings.depth, settings.fusion, settings.weights, corpus)
    if isinstance(settings, QdrantSettings):
        from hoptimizer.retrieval.engines.qdrant import QdrantRetriever

        return QdrantRetriever(settings, corpus)
    if isinstance(settings, NextPlaidSettings):
        from hoptimizer.retrieval.engines.next_plaid import NextPlaidRetriever

        return NextPlaidRetriever(settings, corpus)
    if isinstance(settings, OpenSearchSettings):
        from hoptimizer.retrieval.engines.opensearch import OpenSearchRetriever

        return OpenSearchRetriever(settings, corpus)
    if isinstance(settings, PostgresSettings):
        from hoptimizer.retrieval.engines.postgres import PostgresRetriever

        return PostgresRetriever(settings, corpus)
    if isinstance(settings, WebSettings):
        from hoptimizer.retrieval.engines.web import WebRetriever

        return WebRetriever(settings, corpus)
    if not isinstance(settings, RetrieverSettings):
        own = [name for name in type(settings).model_fields if name not in RetrieverOptions.model_fields]
        return retriever_class(settings.name)(corpus, **{name: getattr(settings, name) for name in own})
    if settings.name == "bm25":
        from hoptimizer.retrieval.bm25 import BM25Retriever

        return BM25Retriever(corpus)
    if settings.url:
        from hoptimizer.retrieval.colbert.server import ColBERTServer

        return ColBERTServer(settings.url, corpus)
    from hoptimizer.retrieval.colbert.files import EMBEDDED, checkpoint_files

    if settings.checkpoint != EMBEDDED:
        checkpoint_files(settings.checkpoint)  # a wrong name is said before torch is imported
    from hoptimizer.retrieval.colbert.retriever import ColBERTRetriever

    return ColBERTRetriever(settings, corpus, progress, elsewhere)
