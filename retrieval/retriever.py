"""What every retriever offers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from functools import cached_property

from hoptimizer.common.batching import CORES, Batcher
from hoptimizer.common.errors import PartError, RefusedQueryError, ServiceError, UserError, own_errors, part_error
from hoptimizer.retrieval.kept_rankings import KeptRankings
from hoptimizer.retrieval.passage import Passage

# The results of a search that those of some pages are taken from: of more where the first ones hold none.
_DEPTHS = (1_000, 10_000, 100_000)


class Retriever(ABC):
    """Finds passages of one corpus for queries in natural language.

    A subclass writes :meth:`search` and has a ``name``; programs call :meth:`asearch`, which batches.

    Example:
        >>> from hoptimizer.programs import RAG
        >>> from hoptimizer.retrieval import Corpus, Passage, Retriever
        >>> class TitleRetriever(Retriever):
        ...     name = "title"
        ...     def __init__(self, corpus):
        ...         self.corpus = corpus
        ...     def search(self, queries, k):
        ...         return [sorted(self.corpus, key=lambda p: p.title not in query)[:k] for query in queries]
        >>> corpus = Corpus([Passage("1", "Oslo", "A city."), Passage("2", "Lima", "Another city.")])
        >>> [passage.title for passage in RAG(TitleRetriever(corpus), k=1, reader="none")("Where is Lima?").passages]
        ['Lima']
    """

    name: str
    """What reports call it; the name of its class by default."""
    computes: bool = True
    """Whether a search computes on this machine, rather than waiting for another one."""
    elsewhere: bool = False
    """Whether the index is another one's, and may change: what was found is then kept for one command."""
    batch: int = 64
    """The most queries that :meth:`asearch` searches with together."""
    at_once: int = 1
    """Searches of such batches that may be under way at the same time, where they wait for another machine."""
    _answers: bool = False  # whether it has answered a query

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = cls.__name__

    @abstractmethod
    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """The ``k`` best passages of each query, best first, each with its score.

        Args:
            queries: the questions or sentences to search with.
            k: passages per query; fewer come back only where the corpus holds fewer.

        Raises:
            ServiceError: there is no answer at the moment.
            UserError: it can't be asked so; one question fails by it, once others were answered.
        """

    def pool(self, k: int) -> int:
        """Tells searches apart whose passages are chosen differently: of two with the same pool, the smaller one gives
        the first passages of the larger one.

        Args:
            k: passages per query.
        """
        # An index elsewhere that prunes may look at less for a smaller k.
        return k if self.elsewhere else 0

    def begin(self, query: str, k: int) -> "Future[list[Passage]]":
        """Begin a search for one query; those that are under way at the same time share a batch.

        What it finds is not kept. A retriever that asks others begins their searches in its own: what they compute has
        the cores in turn, and nobody else has to wait while they wait for another machine.

        Args:
            query: the query.
            k: passages that are wanted.
        """
        return self._batcher.submit((query, k))

    async def asearch(self, query: str, k: int) -> list[Passage]:
        """Like :meth:`search` for one query; searches that are under way at the same time share a batch.

        What was found before for the query, in this process or, in an index elsewhere, by the same command, is not
        searched for again.

        Raises:
            RefusedQueryError: this query is refused, where others were answered.
            ServiceError: there is no answer at the moment.
            UserError: it can't be asked so.
        """
        # Whoever waits may be cancelled; others wait for the same ranking.
        return (await asyncio.shield(asyncio.wrap_future(self.kept.find(query, k, self.pool(k)))))[:k]

    async def asearch_pages(self, query: str, k: int, titles: Collection[str]) -> list[Passage]:
        """The ``k`` best passages of some pages, or fewer: those that are among the first thousand of a search, or the
        first hundred thousand where the thousand holds none, unless a retriever can rank the pages' passages alone.
        An index elsewhere gives no more than a thousand: servers and engines refuse to.

        Args:
            query: the query.
            k: passages that are wanted.
            titles: the titles of the pages.

        Raises:
            RefusedQueryError, ServiceError, UserError: as by :meth:`asearch`.
        """
        for depth in _DEPTHS[:1] if self.elsewhere else _DEPTHS:
            found = await self.asearch(query, depth)
            passages = [passage for passage in found if passage.title in titles][:k]
            if passages or len(found) < depth:
                break
        return passages

    def passage(self, passage_id: str) -> Passage | None:
        """A passage of its corpus, or one that it has found in an index elsewhere; ``None`` where it is not known here.

        Args:
            passage_id: the passage's id.
        """
        corpus = getattr(self, "corpus", None)  # of those that tell it
        return corpus[passage_id] if corpus is not None and passage_id in corpus else None

    def __deepcopy__(self, memo: dict[int, object]) -> "Retriever":
        # Copies of a program share their retriever: optimizers copy programs by the dozen.
        return self

    def forget(self) -> None:
        """Forget what was found so far, so that it is searched for again."""
        self.kept.clear()

    @cached_property
    def kept(self) -> KeptRankings:
        """What it has found so far."""
        return KeptRankings(lambda asked: self.begin(*asked), for_a_command=self.elsewhere)

    @cached_property
    def _batcher(self) -> Batcher[tuple[str, int], list[Passage]]:
        return Batcher(self._search_batch, self.batch, CORES if self.computes else None, self.at_once)

    def _search_batch(self, items: list[tuple[str, int]]) -> Sequence[list[Passage] | Exception]:
        # One query that is refused, as for its length, is no reason to refuse those that happen to be beside it.
        found = self._asked(items)
        if len(items) > 1 and isinstance(found[0], UserError):
            found = [self._asked([item])[0] for item in items]
        # Where others were answered, the address, the key and the names of fields are right.
        return [RefusedQueryError(str(one)) if isinstance(one, UserError) and self._answers else one for one in found]

    def _asked(self, items: list[tuple[str, int]]) -> Sequence[list[Passage] | Exception]:
        try:
            return self._together(items)
        except (ServiceError, PartError):
            raise
        except UserError as error:
            return [error] * len(items)

    def _together(self, items: list[tuple[str, int]]) -> list[list[Passage]]:
        # The callers of a batch may want different k: search with the largest of a pool, and cut for each.
        pools: dict[int, list[int]] = {}
        for place, (_, k) in enumerate(items):
            pools.setdefault(self.pool(k), []).append(place)
        found: dict[int, list[Passage]] = {}
        for places in pools.values():
            queries = [items[place][0] for place in places]
            found |= zip(places, self._found(queries, max(items[place][1] for place in places)), strict=True)
        self._answers = True
        return [found[place][:k] for place, (_, k) in enumerate(items)]

    def _found(self, queries: list[str], k: int) -> list[list[Passage]]:
        """What :meth:`search` gives, made sure of, since it may be the user's."""
        with own_errors(self, "search", queries):
            rankings = self.search(queries, k)
            wanted = f"expected a list of Passage for each of {len(queries)} queries"
            if len(rankings) != len(queries):
                raise part_error(self, "search", f"{wanted}, got {len(rankings)} of them")
            for ranking in rankings:
                if not all(isinstance(passage, Passage) for passage in ranking[:1]):
                    raise part_error(self, "search", f"{wanted}; one of them is {ranking!r:.60}")
        return rankings
