"""Rankings that are kept in this process, so that the same query is searched for once."""

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from hoptimizer.retrieval.passage import Passage

Ranking = list[Passage]
_Asked = tuple[str, int]  # a query, and the pool of its search

KEPT = 100_000
"""Passages of rankings that are kept, some 500 bytes each, as they share their texts with the corpus: a bound to what a
long run grows by, and room for all queries of a study of some thousand questions."""


class _Commands:
    """Which command runs in this process, and how many parts of it do."""

    def __init__(self) -> None:
        self.current: int | None = None
        self._numbers, self._parts, self._lock = itertools.count(), 0, threading.Lock()

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        with self._lock:
            self._parts += 1
            if self.current is None:
                self.current = next(self._numbers)
        try:
            yield
        finally:
            with self._lock:
                self._parts -= 1
                if not self._parts:
                    self.current = None


_commands = _Commands()


def one_command() -> contextlib.AbstractContextManager[None]:
    """Within it, indexes elsewhere are taken to stay as they are, so that what was found in them is kept; parts of a
    command may be within it as well, one in another or several at once."""
    return _commands.part()


class KeptRankings:
    """What a retriever has found so far. Programs that are run one after another, as the cells of a study are, and
    several at once, ask for much the same.

    Args:
        search: starts a search for a query and a number of passages.
        limit: of the passages in the rankings that are kept; the ranking that was asked for the longest time ago goes.
        for_a_command: whether they are kept within :func:`one_command` alone; without one, only searches that are under
            way are shared.
    """

    def __init__(
        self,
        search: Callable[[tuple[str, int]], "Future[Ranking]"],
        limit: int = KEPT,
        *,
        for_a_command: bool = False,
    ) -> None:
        self._search, self._limit, self._for_a_command = search, limit, for_a_command
        self._command: int | None = None
        self._found: OrderedDict[_Asked, tuple[int, Future[Ranking]]] = OrderedDict()
        self._passages = 0
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
            if self._command != _commands.current:
                self._command = _commands.current
                if self._for_a_command:
                    self._found.clear()
                    self._passages = 0
            most, ranking = self._found.get(asked, (0, None))
            if ranking is None or most < k:
                self._passages += k - most
                most, ranking = k, self._search((query, k))
            self._found[asked] = most, ranking
            self._found.move_to_end(asked)
            while self._passages > self._limit:
                _, (gone, _) = self._found.popitem(last=False)
                self._passages -= gone
        ranking.add_done_callback(lambda ended: self._ended(asked, ended))
        return ranking

    def clear(self) -> None:
        """Keep nothing of what was found so far."""
        with self._lock:
            self._found.clear()
            self._passages = 0

    def _ended(self, asked: _Asked, ended: "Future[Ranking]") -> None:
        with self._lock:
            is_kept = not self._for_a_command or self._command is not None
            if is_kept and not ended.cancelled() and not ended.exception():
                return
            most, ranking = self._found.get(asked, (0, None))
            if ranking is ended:
                del self._found[asked]
                self._passages -= most
