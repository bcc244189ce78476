"""Several retrievers as one, by fusing the places (Cormack et al., 2009) or the scores that they give to passages."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.passage import Passage
from hoptimizer.retrieval.retriever import Retriever

Fusion = Literal["ranks", "scores"]

# The constant of the paper, by which the first places do not outweigh all others.
_CONSTANT = 60


class HybridRetriever(Retriever):
    """Ranks passages by what several retrievers over the same corpus say of them.

    A passage's score is the weighted sum over the rankings that it is in: of ``1 / (60 + place)`` if places are fused
    (reciprocal rank fusion; Cormack, Clarke and Büttcher, 2009), of the score, scaled to 0 for the lowest and 1 for the
    highest of the ranking, if scores are (a convex combination; Bruch, Gai and Ingber, 2023, section 3). A retriever
    that gives a passage the score 0 has found nothing in it, as BM25 where no word is shared; that place does not
    count. Ties go to the retriever that is named first.

    Args:
        members: the retrievers; two or more.
        depth: passages of each retriever that are fused; at least as many as are asked for.
        fusion: ``ranks`` or ``scores``.
        weights: one per retriever; ``None`` if all weigh alike.

    Example:
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, HybridRetriever, Passage
        >>> corpus = Corpus([Passage("a", "Oslo", "A city."), Passage("b", "Rhine", "A river.")])
        >>> [found] = HybridRetriever([BM25Retriever(corpus)] * 2).search(["Which river?"], k=1)
        >>> found[0].id, round(found[0].score, 4) == round(2 / 61, 4)
        ('b', True)
    """

    name = "hybrid"

    def __init__(
        self,
        members: Sequence[Retriever],
        depth: int = 100,
        fusion: Fusion = "ranks",
        weights: Sequence[float] | None = None,
    ) -> None:
        self.members = tuple(members)
        self.depth = depth
        self.fusion = fusion
        self.weights = weights
        self.computes = any(member.computes for member in members)
        self.elsewhere = any(member.elsewhere for member in members)
        self._threads = ThreadPoolExecutor(len(members), thread_name_prefix="hybrid")

    def pool(self, k: int) -> int:
        return max(k, self.depth)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        rankings = self._search_all(queries, self.pool(k))
        return [fused(one, self.fusion, self.weights)[:k] for one in zip(*rankings, strict=True)]

    def _search_all(self, queries: list[str], k: int) -> list[list[list[Passage]]]:
        """The rankings of each retriever, for each query."""
        # Servers are waited for while this machine computes. What computes does so in turn: two computations at once
        # take several times as long.
        waiting = [None if m.computes else self._threads.submit(m.search, queries, k) for m in self.members]
        computed = [m.search(queries, k) if m.computes else [] for m in self.members]
        return [done if one is None else one.result() for one, done in zip(waiting, computed, strict=True)]


def fused(
    rankings: Sequence[Sequence[Passage]], fusion: Fusion = "ranks", weights: Sequence[float] | None = None
) -> list[Passage]:
    """The passages of several rankings, best first.

    Args:
        rankings: each best first.
        fusion: whether places or scores are fused, as for `HybridRetriever`.
        weights: one per ranking; ``None`` if all weigh alike.

    Raises:
        UserError: scores are fused, and a passage has none.

    Example:
        >>> from hoptimizer.retrieval import Passage
        >>> from hoptimizer.retrieval.hybrid import fused
        >>> a, b, c = (Passage(id, "", "", score) for id, score in (("a", 9.0), ("b", 8.0), ("c", 1.0)))
        >>> [passage.id for passage in fused([[a, b], [b, c]])]
        ['b', 'a', 'c']
        >>> [passage.id for passage in fused([[a, b, c], [b, c]], "scores", [1, 0.1])]
        ['a', 'b', 'c']
    """
    gains = _by_places if fusion == "ranks" else _by_scores
    passages: dict[str, Passage] = {}
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for passage, gain in zip(ranking, gains(ranking), strict=True):
            passages.setdefault(passage.id, passage)
            scores[passage.id] = scores.get(passage.id, 0.0) + weight * gain
    return [passages[id].scored(scores[id]) for id in sorted(scores, key=lambda id: -round(scores[id], 12))]


def _by_places(ranking: Sequence[Passage]) -> list[float]:
    return [0.0 if one.score == 0 else 1 / (_CONSTANT + place) for place, one in enumerate(ranking, 1)]


def _by_scores(ranking: Sequence[Passage]) -> list[float]:
    scores = [one.score for one in ranking if one.score is not None]
    if len(scores) < len(ranking):
        raise UserError(
            "retriever.fusion=scores: a retriever of retriever.of gives no scores; use retriever.fusion=ranks"
        )
    lowest, highest = min(scores, default=0.0), max(scores, default=0.0)
    # Scores that are all the same tell what was found from what was not, and nothing more.
    return [(one - lowest) / (highest - lowest) if highest > lowest else float(one != 0) for one in scores]
