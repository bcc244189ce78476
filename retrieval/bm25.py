"""BM25, the sparse retriever of IRCoT (Trivedi et al., 2023, section 4.2)."""

import asyncio
import hashlib
import json
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import bm25s
import numpy as np
import Stemmer

from hoptimizer.common.batching import CORES, Batcher
from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.index_folder import BrokenIndexError, Manifest, index_folder, new_manifest, open_index
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever

# Texts may have an accent beside its letter, and ligatures as in PDFs: words are compared in one form.
_FORM: Literal["NFKC"] = "NFKC"
_LANGUAGE, _STOPWORDS = "english", "en"
_BLOCK = 256


@dataclass(frozen=True)
class _Words:
    """How texts are taken apart and weighed, which an index is tied to."""

    name: str = "bm25"

    @cached_property
    def digest(self) -> str:
        weights = bm25s.BM25()
        parts = [_LANGUAGE, _STOPWORDS, _FORM, weights.method, weights.k1, weights.b]
        versions = [version("bm25s"), version("PyStemmer")]
        return hashlib.sha256(json.dumps([*parts, *versions]).encode()).hexdigest()


class BM25Retriever(Retriever):
    """Okapi BM25 over title and text, stemmed, without English stopwords; its index is kept on disk, memory-mapped.

    Args:
        corpus: the passages to search; it must not be empty.

    Raises:
        UserError: the index can't be written, or the passages have no words to search by.

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
        self._stemmer = Stemmer.Stemmer(_LANGUAGE)
        self._index = open_index(
            bm25_folder(corpus), manifest(corpus), build=self._write, load=lambda folder: _load(folder, len(corpus))
        )

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        scores = map(self._scores, _words(queries, self._stemmer))
        return [[self.corpus.passages[i].scored(float(one[i])) for i in _best(one, k)] for one in scores]

    async def asearch_pages(self, query: str, k: int, titles: Collection[str]) -> list[Passage]:
        """The ``k`` best passages of some pages, each with its score among all passages.

        Args:
            query: the query.
            k: passages that are wanted.
            titles: the titles of the pages.
        """
        return await asyncio.wrap_future(self._paging.submit((query, k, frozenset(titles))))

    @cached_property
    def _paging(self) -> Batcher[tuple[str, int, frozenset[str]], list[Passage]]:
        return Batcher(lambda asked: [self._of_pages(*one) for one in asked], self.batch, CORES)

    def _of_pages(self, query: str, k: int, titles: frozenset[str]) -> list[Passage]:
        places = np.array(sorted(place for title in titles for place in self.corpus.pages.get(title, ())), dtype=int)
        [words] = _words([query], self._stemmer)
        scores = self._scores(words)[places]
        best = np.argsort(-scores, kind="stable")[:k]  # of equal ones those that come first
        return [self.corpus.passages[places[i]].scored(float(scores[i])) for i in best]

    def _scores(self, words: list[str]) -> np.ndarray:
        if known := self._index.get_tokens_ids(words):
            return self._index.get_scores_from_ids(known)
        return np.zeros(len(self.corpus), dtype=np.float32)

    def _write(self, folder: Path) -> None:
        tokens = _tokenized(self.corpus.texts, self._stemmer)
        if not tokens.vocab:
            raise UserError(
                f"{self.corpus.name} holds no word but English stopwords, so BM25 finds nothing; take retriever=colbert"
            )
        index = bm25s.BM25(csc_backend="scipy")  # sorts in place, with half the memory of numpy's
        index.index(tokens, show_progress=False)
        index.save(folder, show_progress=False)


def bm25_scores(query: str, texts: Sequence[str]) -> np.ndarray:
    """How well each of a few texts fits a query, without an index that is kept; all zeros if they have no words.

    Args:
        query: as of a search.
        texts: at least one.

    Example:
        >>> from hoptimizer.retrieval.bm25 import bm25_scores
        >>> bm25_scores("Who was born in Warsaw?", ["She was born in Warsaw.", "A river."]).argmax()
        np.int64(0)
    """
    stemmer = Stemmer.Stemmer(_LANGUAGE)
    tokens = _tokenized(texts, stemmer)
    if not tokens.vocab:
        return np.zeros(len(texts), dtype=np.float32)
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)
    known = index.get_tokens_ids(_words([query], stemmer)[0])
    return index.get_scores_from_ids(known) if known else np.zeros(len(texts), dtype=np.float32)


def _tokenized(texts: Iterable[str], stemmer: Any, **options: bool) -> Any:  # noqa: ANN401 - of PyStemmer and bm25s
    """Texts by the numbers of their words."""
    alike = (unicodedata.normalize(_FORM, text) for text in texts)
    return bm25s.tokenize(alike, stopwords=_STOPWORDS, stemmer=stemmer, show_progress=False, **options)


def _words(texts: Iterable[str], stemmer: Any) -> list[list[str]]:  # noqa: ANN401 - of PyStemmer
    """The words of each text."""
    words: list[list[str]] = _tokenized(texts, stemmer, return_ids=False)
    return words


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the ``k`` highest scores, highest first; of equal ones those that come first, whatever ``k`` is."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    least = _least(scores, k)
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    places = np.concatenate([above, equal[: k - len(above)]])
    return places[np.lexsort((places, -scores[places]))]


def _least(scores: np.ndarray, k: int) -> np.ndarray:
    """The ``k``-th highest score: few come near it, and a partition of all would take most of a search's time."""
    highest = scores[: len(scores) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).max(axis=1)
    if len(highest) > k:
        scores = scores[scores >= np.partition(highest, -k)[-k]]  # so many blocks have one that is as high
    return np.partition(scores, -k)[-k]


def bm25_folder(corpus: Corpus) -> Path:
    """The folder of a corpus' index."""
    return index_folder(corpus, _Words(), "bm25")


def manifest(corpus: Corpus) -> Manifest:
    """What the manifest of an index of ``corpus`` must say."""
    return new_manifest(corpus, _Words(), "bm25", {})


def _load(folder: Path, passages: int) -> bm25s.BM25:
    """The index of so many passages in a folder.

    Raises:
        BrokenIndexError: what is there is none.
    """
    try:
        index = bm25s.BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BrokenIndexError("it is no index of bm25s") from error
    if not _fits(index, passages):
        raise BrokenIndexError(f"it is no index of {passages} passages")
    return index


def _fits(index: bm25s.BM25, passages: int) -> bool:
    """Whether an index's arrays are those of so many passages: a sparse matrix with a column for each word."""
    scores, places, starts = (index.scores[name] for name in ("data", "indices", "indptr"))
    if any(
        array.ndim != 1 or array.dtype.kind != kind for array, kind in ((scores, "f"), (places, "i"), (starts, "i"))
    ):
        return False
    words = len(starts) - 1
    return bool(
        index.scores["num_docs"] == passages
        and len(scores) == len(places) == starts[-1]
        and starts[0] == 0
        and np.all(np.diff(starts) >= 0)
        and (len(places) == 0 or 0 <= places.min() <= places.max() < passages)
        # bm25s gives the empty word, which stands for texts without any, a number of its own behind all others.
        and all(isinstance(n, int) and 0 <= n < words + (not word) for word, n in index.vocab_dict.items())
    )
