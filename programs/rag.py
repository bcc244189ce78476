"""One retrieval, then one reading (OneR in IRCoT, Direct-R in EfficientRAG)."""

from typing import ClassVar

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.programs.steps.pages import find_pages
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import ProposeTitles


class RAG(Program):
    """Retrieves with the question, and reads what was found (IRCoT, section 4.1, baseline OneR).

    Args:
        retriever: where passages come from.
        k: passages that are retrieved.
        reader: ``direct``, ``cot``, ``phrase``, or ``none`` to score the retrieval alone.
        pages: for questions that are asked about a page: as for :class:`~hoptimizer.programs.ircot.IRCoT`.

    Example:
        >>> from hoptimizer.programs import RAG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> prediction = RAG(BM25Retriever(corpus), k=1, reader="none")(question="Where was Marie Curie born?")
        >>> prediction.passages[0].text
        'She was born in Warsaw.'
    """

    step_names: ClassVar[tuple[str, ...]] = ("titles", "reader")

    def __init__(
        self, retriever: Retriever, k: int = 4, reader: ReaderKind = "direct", pages: Positive | None = None
    ) -> None:
        super().__init__(retriever, k)
        self.pages = pages
        self.titles = dspy.Predict(ProposeTitles) if pages else None
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        pages = await find_pages(self, question, self.pages)
        passages = each_once([*pages.pinned, *await self.retrieve(question, titles=pages.titles)])
        return await read(self, question, passages), passages
