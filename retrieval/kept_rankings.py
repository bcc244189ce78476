"""Rankings that are kept in this process, so that the same query is searched for once."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from hoptimizer.retrieval.passage import Passage

Ranking = list[Passage]
_Asked = tuple[str, int]  # a query, and the pool of its search

KEPT = 1_000
"""Queries whose rankings are kept, 3 KB each (passages share their texts with the corpus): few, so that a long run does
not grow by them."""


class KeptRankings:
    """What a retriever has found so far. Programs that are run one after another, as the cells of a study are, and
    several at once, ask for much the same.

    Args:
        search: starts a search for a query and a number of passages.
        limit: of the queries that are kept; the one that was asked for the longest time ago goes. With 0, searches
            that are under way are shared alone.
    """

    def __init__(self, search: Callable[[tuple[str, int]], "Future[Ranking]"], limit: int = KEPT) -> None:
        self._search, self._limit = search, limit
        self._found: OrderedDict[_Asked, tuple[int, Future[Ranking]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, query: str, k: int, pool: int = 0) -> "Future[Ranking]":
        """At least the ``k`` best passages of a query, where the corpus has them; a search under way is shared.

        Args:
            query: the query.
            k: passages that are wanted.
            pool: what only searches with the same one share.
        """
        asked = (query, pool)
        with self._lock:
            most, ranking = self._found.get(asked, (0, None))
            if ranking is None or most < k:
                most, ranking = k, self._search((query, k))
            self._found[asked] = most, ranking
            self._found.move_to_end(asked)
            while len(self._found) > self._limit > 0:
                self._found.popitem(last=False)
        ranking.add_done_callback(lambda ended: self._ended(asked, ended))
        return ranking

    def clear(self) -> None:
        """Keep nothing of what was found so far."""
        with self._lock:
            self._found.clear()

    def _ended(self, asked: _Asked, ended: "Future[Ranking]") -> None:
        if self._limit and not ended.cancelled() and not ended.exception():
            return
        with self._lock:
            if self._found.get(asked, (0, None))[1] is ended:
                del self._found[asked]
