"""Several retrievers as one: over the same corpus, by fusing the places (Cormack et al., 2009) or the scores that they
give to passages, or each over a part of it."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Literal

from hoptimizer.common.batching import Batcher, after
from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever

Fusion = Literal["ranks", "scores", "parts"]

# The constant of the paper, by which the first places do not outweigh all others.
_CONSTANT = 60


class HybridRetriever(Retriever):
    """Ranks passages by what several retrievers say of them.

    Over the same corpus, a passage's score is the weighted sum over the rankings that it is in: of ``1 / (60 + place)``
    if places are fused (reciprocal rank fusion; Cormack, Clarke and Büttcher, 2009), of the score, scaled to 0 for the
    lowest and 1 for the highest of the ranking, if scores are (a convex combination; Bruch, Gai and Ingber, 2023,
    section 3). A retriever that gives a passage the score 0 has found nothing in it, as BM25 where no word is shared;
    that place does not count. Ties go to the retriever that is named first.

    Each over a part of a corpus, passages keep their scores. Those of vectors do not depend on what else is in an
    index, so that the best of all parts are the best of the whole; BM25's do, by the words that are frequent in a part.

    Args:
        members: the retrievers; two or more.
        depth: passages of each retriever that are fused; at least as many as are asked for.
        fusion: ``ranks``, ``scores`` or, for parts of a corpus, ``parts``, which need neither depth nor weights.
        weights: one per retriever; ``None`` if all weigh alike.
        corpus: what they search. Of parts, what it holds keeps its ids, and what another one holds is told apart by
            part.

    Attributes:
        members, depth, fusion, weights, corpus: as given; the corpus is empty where none was.

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
        corpus: Corpus | None = None,
    ) -> None:
        self.members = tuple(members)
        self.depth = depth
        self.fusion = fusion
        self.weights = weights
        self.corpus = corpus or Corpus([])
        self.computes = any(member.computes for member in members)
        self.elsewhere = any(member.elsewhere for member in members)
        self._threads = ThreadPoolExecutor(len(members), thread_name_prefix="hybrid")

    def pool(self, k: int) -> int:
        return k if self.fusion == "parts" else max(k, self.depth)

    def passage(self, passage_id: str) -> Passage | None:
        known = super().passage(passage_id)
        if self.fusion == "parts":
            return known or self._of_part(passage_id)
        return next((passage for member in self.members if (passage := member.passage(passage_id))), known)

    def _of_part(self, passage_id: str) -> Passage | None:
        """A passage by the id that :func:`merged` gives to what only a part has."""
        part, _, own = passage_id.partition("/")
        found = (member.passage(own) for number, member in enumerate(self.members) if str(number) == part)
        return next((replace(passage, id=passage_id) for passage in found if passage), None)

    def begin(self, query: str, k: int) -> "Future[list[Passage]]":
        found = [member.begin(query, self.pool(k)) for member in self.members]
        return after(found, lambda rankings: self._fusing.submit((rankings, k)))

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        rankings = self._search_all(queries, self.pool(k))
        return self._fused([(one, k) for one in zip(*rankings, strict=True)])

    @cached_property
    def _fusing(self) -> Batcher[tuple[Sequence[list[Passage]], int], list[Passage]]:
        return Batcher(self._fused, self.batch)

    def _fused(self, found: Sequence[tuple[Sequence[list[Passage]], int]]) -> list[list[Passage]]:
        """One ranking of those that the retrievers gave to a query, for each query and its number of passages."""
        if self.fusion == "parts":
            return [merged(rankings, self.corpus)[:k] for rankings, k in found]
        return [fused(rankings, self.fusion, self.weights)[:k] for rankings, k in found]

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


def merged(rankings: Sequence[Sequence[Passage]], corpus: Corpus) -> list[Passage]:
    """The passages that were found in parts of a corpus, by their scores, best first.

    Args:
        rankings: one per part.
        corpus: its passages keep their ids, and count once where several parts have them. Any other one has the number
            of its part before its id, as each part may count its own from 0.

    Raises:
        UserError: a passage has no score.

    Example:
        >>> from hoptimizer.retrieval import Corpus, Passage
        >>> from hoptimizer.retrieval.hybrid import merged
        >>> corpus = Corpus([Passage("oslo", "", "A city.")])
        >>> other = [Passage("0", "", "A river.", 9.0), Passage("1", "", "A lake.", 1.0)]
        >>> [passage.id for passage in merged([[corpus["oslo"].scored(7.0)], other], corpus)]
        ['1/0', 'oslo', '1/1']
    """
    passages: dict[str, Passage] = {}
    for part, ranking in enumerate(rankings):
        for passage in ranking:
            if passage.score is None:
                raise UserError("retriever.fusion=parts: a retriever of retriever.of gives no scores")
            is_known = passage.id in corpus and corpus[passage.id].text == passage.text
            id = passage.id if is_known else f"{part}/{passage.id}"
            passages.setdefault(id, replace(passage, id=id))
    return sorted(passages.values(), key=lambda passage: -(passage.score or 0.0))


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
