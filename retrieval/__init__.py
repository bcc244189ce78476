"""Finding passages: ColBERT and BM25 behind one interface."""

from hoptimizer.retrieval.build import build_retriever
from hoptimizer.retrieval.info import index_info
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever
from hoptimizer.retrieval.settings import RetrieverSettings

__all__ = ["Corpus", "Passage", "Retriever", "RetrieverSettings", "build_retriever", "index_info"]
