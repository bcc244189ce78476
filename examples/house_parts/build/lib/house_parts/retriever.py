"""A retriever: the passages that share the most words with the query."""

from typing import Literal

from hoptimizer.retrieval import Corpus, Passage, Retriever


class SharedWords(Retriever):
    """Counts shared words.

    Args:
        corpus: the passages to search.
        case: whether upper and lower case count as different.
    """

    name = "shared_words"

    def __init__(self, corpus: Corpus, case: Literal["ignored", "heeded"] = "ignored") -> None:
        self._case = case
        self._passages = [(passage, self._words(str(passage))) for passage in corpus]

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [self._best(self._words(query), k) for query in queries]

    def _best(self, query: set[str], k: int) -> list[Passage]:
        scored = [Passage(p.id, p.title, p.text, float(len(query & words))) for p, words in self._passages]
        return sorted(scored, key=lambda passage: -passage.score)[:k]

    def _words(self, text: str) -> set[str]:
        return set((text.lower() if self._case == "ignored" else text).split())
