"""Finding passages: ColBERT, BM25, dense retrieval and several at once behind one interface."""

from typing import TYPE_CHECKING

import lazy_loader

from hoptimizer.retrieval.build import build_retriever, push_corpus
from hoptimizer.retrieval.dense.settings import DenseSettings
from hoptimizer.retrieval.engines.settings import (
    NextPlaidSettings,
    OpenSearchSettings,
    PostgresSettings,
    QdrantSettings,
    WebSettings,
)
from hoptimizer.retrieval.info import index_info
from hoptimizer.retrieval.options import RerankSettings
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever
from hoptimizer.retrieval.settings import HybridSettings, OracleSettings, RetrieverSettings

if TYPE_CHECKING:
    from hoptimizer.retrieval.bm25 import BM25Retriever
    from hoptimizer.retrieval.colbert.retriever import ColBERTRetriever
    from hoptimizer.retrieval.colbert.server import ColBERTServer
    from hoptimizer.retrieval.dense.retriever import DenseRetriever
    from hoptimizer.retrieval.hybrid import HybridRetriever
    from hoptimizer.retrieval.oracle import OracleRetriever
    from hoptimizer.retrieval.rerank import RerankedRetriever

__all__ = [
    "BM25Retriever",
    "ColBERTRetriever",
    "ColBERTServer",
    "Corpus",
    "DenseRetriever",
    "DenseSettings",
    "HybridRetriever",
    "HybridSettings",
    "NextPlaidSettings",
    "OpenSearchSettings",
    "OracleRetriever",
    "OracleSettings",
    "Passage",
    "PostgresSettings",
    "QdrantSettings",
    "RerankSettings",
    "RerankedRetriever",
    "Retriever",
    "RetrieverSettings",
    "WebSettings",
    "build_retriever",
    "index_info",
    "push_corpus",
]

# Imported when first used, because each brings its own heavy packages.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "bm25": ["BM25Retriever"],
        "build": ["build_retriever", "push_corpus"],
        "colbert.retriever": ["ColBERTRetriever"],
        "colbert.server": ["ColBERTServer"],
        "dense.retriever": ["DenseRetriever"],
        "dense.settings": ["DenseSettings"],
        "engines.settings": [
            "NextPlaidSettings",
            "OpenSearchSettings",
            "PostgresSettings",
            "QdrantSettings",
            "WebSettings",
        ],
        "hybrid": ["HybridRetriever"],
        "info": ["index_info"],
        "options": ["RerankSettings"],
        "oracle": ["OracleRetriever"],
        "passage": ["Corpus", "Passage"],
        "rerank": ["RerankedRetriever"],
        "retriever": ["Retriever"],
        "settings": ["HybridSettings", "OracleSettings", "RetrieverSettings"],
    },
)
