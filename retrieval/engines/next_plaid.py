"""Late interaction in NextPlaid: its server's PLAID index, searched with vectors."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.engines.engine import NoAnswer
from hoptimizer.retrieval.engines.late_interaction import LateInteractionRetriever
from hoptimizer.retrieval.engines.settings import NextPlaidSettings
from hoptimizer.retrieval.passage import Corpus, Passage

try:
    import httpx
    from next_plaid_client import NextPlaidClient, SearchParams
    from next_plaid_client.exceptions import ConnectionError as NoConnection
    from next_plaid_client.exceptions import IndexExistsError, NextPlaidError, RateLimitError, ServerError
except ImportError as error:
    raise UserError(
        "retriever.name=next_plaid: next-plaid-client is missing; pip install 'hoptimizer[next-plaid]'"
    ) from error

_GLANCE = 0.2  # seconds; a server takes 50 calls a second


class NextPlaidRetriever(LateInteractionRetriever):
    """Searches an index of a NextPlaid server with a ColBERT checkpoint's queries.

    Args:
        settings: which index, and which checkpoint.
        corpus: a found passage whose id it has is given as that passage.

    Raises:
        UserError: the checkpoint can't be had.
    """

    name = "next_plaid"

    def __init__(self, settings: NextPlaidSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._index, self._timeout, self._id = settings.index, settings.timeout, settings.id_field
        key = os.environ.get("NEXT_PLAID_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = NextPlaidClient(settings.url, timeout=settings.timeout, headers=headers)

    def ask(self, queries: Sequence[list[list[float]]], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        with self._answering():
            answer = self._client.search(self._index, queries=list(queries), params=SearchParams(top_k=k))
        if len(answer.results) != len(queries):
            raise self.refused(f"{len(answer.results)} rankings for {len(queries)} queries")
        # A passage that was indexed without metadata has an empty place, and so no id: the base says which is missing.
        return [
            [
                (fields or {}, score)
                for fields, score in zip(ranking.metadata or [None] * len(ranking.scores), ranking.scores, strict=True)
            ]
            for ranking in answer.results
        ]

    def push(self, passages: Sequence[Passage]) -> int:
        with self._answering():
            stored = self._stored(passages)
            if stored is None:
                with suppress(IndexExistsError):
                    self._client.create_index(self._index)
                stored = {}
        lacking = [one for one in passages if not self.fields_of(one).items() <= stored.get(one.id, {}).items()]
        each = list(self.with_vectors(lacking))
        with self._answering():
            # Documents are numbered by the server, which does not know that two are the same passage.
            if old := [one for one in lacking if one.id in stored]:
                self._client.delete(self._index, *self._having(old))
                self._wait(lambda: not self._stored(old))
            if lacking:
                documents = [{"embeddings": vectors} for _, vectors in each]
                self._client.add(self._index, documents, [self.fields_of(one) for one, _ in each])
                self._wait(lambda: len(self._stored(lacking) or ()) == len(lacking))
        return len(lacking)

    def _stored(self, passages: Sequence[Passage]) -> dict[str, dict[str, Any]] | None:
        """The fields of those of some passages that the server has, by their ids; ``None`` where it has nothing yet."""
        condition, ids = self._having(passages)
        try:
            found = self._client.get_metadata_by_ids(self._index, condition=condition, parameters=ids).metadata
        except NextPlaidError as error:
            if error.status_code == HTTPStatus.NOT_FOUND:
                return None
            raise
        return {fields[self._id]: fields for fields in found}

    def _having(self, passages: Sequence[Passage]) -> tuple[str, list[str]]:
        """The condition for some passages, and its parameters."""
        return f"{self._id} IN ({', '.join('?' * len(passages))})", [one.id for one in passages]

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait for what the server has put in its queue. Sent a second time, it would be there twice."""
        end = time.monotonic() + self._timeout
        while not done():
            if time.monotonic() > end:
                raise self.refused(
                    f"what it accepted is not done after {self._timeout:g} s; see its log, or raise timeout"
                )
            time.sleep(_GLANCE)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Within it, the client's errors are those of engines."""
        try:
            yield
        except (NoConnection, RateLimitError, ServerError, httpx.HTTPError) as error:
            raise NoAnswer(str(error)) from error
        except NextPlaidError as error:
            raise self.refused(str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # the client checks no answer
            raise self.refused(f"no answer of its API: {error!r}") from error
