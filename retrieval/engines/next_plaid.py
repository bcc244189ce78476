"""Late interaction in NextPlaid: its server's PLAID index, searched with vectors."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.engines.engine import NoAnswer
from hoptimizer.retrieval.engines.late_interaction import LateInteractionRetriever
from hoptimizer.retrieval.engines.settings import NextPlaidSettings
from hoptimizer.retrieval.passage import Corpus

try:
    import httpx
    from next_plaid_client import NextPlaidClient, SearchParams
    from next_plaid_client.exceptions import ConnectionError as NoConnection
    from next_plaid_client.exceptions import NextPlaidError, RateLimitError, ServerError
except ImportError as error:
    raise UserError(
        "retriever.name=next_plaid: next-plaid-client is missing; pip install 'hoptimizer[next-plaid]'"
    ) from error


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
        self._index = settings.index
        key = os.environ.get("NEXT_PLAID_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = NextPlaidClient(settings.url, timeout=settings.timeout, headers=headers)

    def ask(self, queries: Sequence[list[list[float]]], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        try:
            answer = self._client.search(self._index, queries=list(queries), params=SearchParams(top_k=k))
        except (NoConnection, RateLimitError, ServerError, httpx.HTTPError) as error:
            raise NoAnswer(str(error)) from error
        except NextPlaidError as error:
            raise self.refused(str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # the client checks no answer
            raise self.refused(f"no answer of its search: {error!r}") from error
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
