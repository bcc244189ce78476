"""The supporting passages that a data set names, alone or among others: what reading is worth if search is perfect."""

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property

from hoptimizer.common.batching import Batcher, after
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever


class OracleRetriever(Retriever):
    """Gives each question of a data set its supporting passages, as the oracle and mixed chunks of EfficientRAG's
    section 2.1 (Zhuang et al., 2024).

    Supporting passages have the score 1 and others 0; where both are shown, they are in an order that is drawn from the
    question, so that their place does not tell them apart. Of another query than a question, and of a question without
    supporting passages, it knows what the other retriever finds.

    Args:
        supporting: the ids of the supporting passages, by the question.
        corpus: the passages.
        other: finds the passages that are mixed in.
        others: how many are.

    Example:
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, OracleRetriever, Passage
        >>> corpus = Corpus([Passage("oslo", "Oslo", "A city."), Passage("rhine", "Rhine", "A river in a city.")])
        >>> retriever = OracleRetriever({"Which city?": ["rhine"]}, corpus, BM25Retriever(corpus))
        >>> [passage.id for passage in retriever.search(["Which city?"], k=5)[0]]
        ['rhine']
    """

    name = "oracle"

    def __init__(
        self, supporting: Mapping[str, Sequence[str]], corpus: Corpus, other: Retriever, others: int = 0
    ) -> None:
        self._supporting = {question: ids for question, ids in supporting.items() if ids}
        self.corpus, self.other, self.others = corpus, other, others
        self.computes, self.elsewhere = other.computes, other.elsewhere

    def pool(self, k: int) -> int:
        # Supporting passages and others are drawn from for each k anew.
        return k

    def passage(self, passage_id: str) -> Passage | None:
        return super().passage(passage_id) or self.other.passage(passage_id)

    def begin(self, query: str, k: int) -> "Future[list[Passage]]":
        ids = self._supporting.get(query, ())
        if ids and not self.others:
            return self._showing.submit((query, [], k))
        found = self.other.begin(query, max(k, len(ids) + self.others))
        return after([found], lambda rankings: self._showing.submit((query, rankings[0], k)))

    @cached_property
    def _showing(self) -> Batcher[tuple[str, Sequence[Passage], int], list[Passage]]:
        return Batcher(lambda asked: [self._shown(*one) for one in asked], self.batch)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        known = {query: self._supporting[query] for query in queries if query in self._supporting}
        most = max((len(ids) for ids in known.values()), default=0)
        mixed = [query for query in queries if self.others or query not in known]
        found = dict(zip(mixed, self.other.search(mixed, max(k, most + self.others)) if mixed else [], strict=True))
        return [self._shown(query, found.get(query, []), k) for query in queries]

    def _shown(self, query: str, found: Sequence[Passage], k: int) -> list[Passage]:
        if query not in self._supporting:
            return list(found[:k])
        ids = self._supporting[query]
        passages = [self.corpus[id].scored(1.0) for id in ids][:k]
        others = [passage.scored(0.0) for passage in found if passage.id not in ids]
        passages += others[: min(self.others, k - len(passages))]
        if self.others:
            random.Random(query).shuffle(passages)
        return passages
