"""A search as DSPy's callbacks hear of it."""

from collections.abc import Collection
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks

from hoptimizer.retrieval import Passage, Retriever


class Search(dspy.Retrieve):
    """One search, told to DSPy's callbacks as that of a retriever of DSPy's own.

    ``mlflow.dspy.autolog`` makes a span of the type RETRIEVER of it, whose documents MLflow's judges of retrieval read.

    Args:
        retriever: where passages come from.

    Attributes:
        passages: what was found.
    """

    def __init__(self, retriever: Retriever) -> None:
        # That of DSPy's draws a name from the random numbers that optimizers draw from, too.
        self.callbacks: list[Any] = []
        self.passages: list[Passage] = []
        self._retriever = retriever

    @with_callbacks
    async def acall(self, query: str, k: int, titles: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Search.

        Args:
            query: a question or sentence.
            k: how many passages to find.
            titles: titles of the pages that they may come from; by default they come from all.

        Returns:
            What was found as MLflow's documents.
        """
        retriever = self._retriever
        self.passages = await (retriever.asearch_pages(query, k, titles) if titles else retriever.asearch(query, k))
        return [as_document(passage) for passage in self.passages]


def as_document(passage: Passage) -> dict[str, Any]:
    """A passage with the fields of a document of MLflow's.

    Args:
        passage: the passage.
    """
    titles = {"title": passage.title, "doc_uri": passage.title}
    return {"id": passage.id, "page_content": passage.text, "metadata": titles}
