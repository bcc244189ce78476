"""BM25, the sparse retriever of IRCoT (Trivedi et al., 2023, section 4.2)."""

import bm25s
import Stemmer

from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever


class BM25Retriever(Retriever):
    """Okapi BM25 over title and text, stemmed, without English stopwords; held in memory.

    Args:
        corpus: the passages to search; it must not be empty.

    Example:
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> [[found]] = BM25Retriever(corpus).search(["Who was born in Warsaw?"], k=1)
        >>> found.id, found.score > 0
        ('curie', True)
    """

    name = "bm25"

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._stemmer = Stemmer.Stemmer("english")
        self._index = bm25s.BM25()
        self._index.index(self._tokens([str(passage) for passage in corpus]), show_progress=False)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        found, scores = self._index.retrieve(
            self._tokens(queries), k=min(k, len(self.corpus)), show_progress=False, backend_selection="numpy"
        )
        return [
            [self.corpus.passages[i].scored(float(s)) for i, s in zip(row, row_scores, strict=True)]
            for row, row_scores in zip(found, scores, strict=True)
        ]

    def _tokens(self, texts: list[str]) -> bm25s.tokenization.Tokenized:
        return bm25s.tokenize(texts, stopwords="en", stemmer=self._stemmer, show_progress=False)
