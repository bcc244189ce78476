"""Several retrievers as one, by reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009)."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hoptimizer.retrieval.passage import Passage
from hoptimizer.retrieval.retriever import Retriever

# The constant of the paper, by which the first places do not outweigh all others.
_CONSTANT = 60


class HybridRetriever(Retriever):
    """Ranks passages by their places in the rankings of several retrievers over the same corpus.

    A passage's score is the sum of ``1 / (60 + place)`` over the rankings that it is in. A retriever that gives a
    passage the score 0 has found nothing in it, as BM25 where no word is shared; that place does not count. Ties go to
    the retriever that is named first.

    Args:
        members: the retrievers; two or more.
        depth: passages of each retriever that are fused; at least as many as are asked for.

    Example:
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, HybridRetriever, Passage
        >>> corpus = Corpus([Passage("a", "Oslo", "A city."), Passage("b", "Rhine", "A river.")])
        >>> [found] = HybridRetriever([BM25Retriever(corpus)] * 2).search(["Which river?"], k=1)
        >>> found[0].id, round(found[0].score, 4) == round(2 / 61, 4)
        ('b', True)
    """

    name = "hybrid"

    def __init__(self, members: Sequence[Retriever], depth: int = 100) -> None:
        self.members = tuple(members)
        self.depth = depth
        self.computes = any(member.computes for member in members)
        self._threads = ThreadPoolExecutor(len(members), thread_name_prefix="hybrid")

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        rankings = self._search_all(queries, max(k, self.depth))
        return [fused(of_query)[:k] for of_query in zip(*rankings, strict=True)]

    def _search_all(self, queries: list[str], k: int) -> list[list[list[Passage]]]:
        """The rankings of each retriever, for each query."""
        # Servers are waited for while this machine computes. What computes does so in turn: two computations at once
        # take several times as long.
        waiting = [None if m.computes else self._threads.submit(m.search, queries, k) for m in self.members]
        computed = [m.search(queries, k) if m.computes else [] for m in self.members]
        return [done if one is None else one.result() for one, done in zip(waiting, computed, strict=True)]


def fused(rankings: Sequence[Sequence[Passage]]) -> list[Passage]:
    """The passages of several rankings, best first, by reciprocal rank fusion.

    Args:
        rankings: each best first.

    Example:
        >>> from hoptimizer.retrieval import Passage
        >>> from hoptimizer.retrieval.hybrid import fused
        >>> a, b, c = (Passage(id, "", "", score=1.0) for id in "abc")
        >>> [passage.id for passage in fused([[a, b], [b, c]])]
        ['b', 'a', 'c']
    """
    passages: dict[str, Passage] = {}
    scores: dict[str, float] = {}
    for ranking in rankings:
        for place, passage in enumerate(ranking, 1):
            passages.setdefault(passage.id, passage)
            gained = 0.0 if passage.score == 0 else 1 / (_CONSTANT + place)
            scores[passage.id] = scores.get(passage.id, 0.0) + gained
    return [passages[id].scored(scores[id]) for id in sorted(scores, key=lambda id: -round(scores[id], 12))]
