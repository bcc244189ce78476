"""What a retriever finds for the questions of a split, of which it may refuse some."""

from collections.abc import Sequence

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.errors import RefusedQueryError
from hoptimizer.retrieval import Passage, Retriever


def found(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Passage]]:
    """The best passages of each query; none where the retriever refuses a query, as for its length.

    Args:
        retriever: searches for all queries at once, in batches.
        queries: the queries.
        k: passages per query.

    Raises:
        ServiceError: there is no answer at the moment.
        UserError: it can't be asked so: it has answered none of the queries.
    """

    async def of(query: str) -> list[Passage]:
        try:
            return await retriever.asearch(query, k)
        except RefusedQueryError:
            return []

    return run_async(all_of(of(query) for query in queries))
