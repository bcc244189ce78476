"""``/api/search``: an index in the JSON protocol of ColBERT servers, as ``dspy.ColBERTv2`` asks them."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.retrieval.colbert.server import served_text
from hoptimizer.serving.work import Work

MOST = 1_000
"""Passages of a search, at most."""


class Searched(BaseModel):
    """A search.

    Attributes:
        query: the query.
        k: passages to find.
    """

    query: str
    k: Annotated[int, Field(ge=1, le=MOST)] = 10


def search_routes(retriever: Retriever, work: Work) -> APIRouter:
    """``GET`` and ``POST /api/search``. Searches that come together share a batch of the retriever's."""
    router = APIRouter(prefix="/api")

    async def search(searched: Searched) -> dict[str, Any]:
        query = work.checked("query", searched.query)
        start = time.perf_counter()
        async with work.place():
            found = await retriever.asearch(query, searched.k)
        seconds = time.perf_counter() - start
        work.metrics.answered(seconds, {})
        return {"topk": [_found(passage, rank) for rank, passage in enumerate(found, 1)], "latency": 1000 * seconds}

    @router.get("/search")
    async def get(searched: Annotated[Searched, Query()]) -> dict[str, Any]:
        """The best passages of a query."""
        return await search(searched)

    @router.post("/search")
    async def post(searched: Searched) -> dict[str, Any]:
        """The best passages of a query."""
        return await search(searched)

    return router


def _found(passage: Passage, rank: int) -> dict[str, Any]:
    return {"text": served_text(passage), "pid": passage.id, "rank": rank, "score": passage.score}
