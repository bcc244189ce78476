"""Retrieve once, then read (OneR in IRCoT, Direct-R in EfficientRAG)."""

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.retrieval import Passage, Retriever


class RAG(Program):
    """One retrieval with the question, one reading of what it found (IRCoT, section 4.1, baseline OneR).

    Args:
        retriever: where passages come from.
        k: passages retrieved.
        reader: ``direct``, ``cot``, or ``none`` to score the retrieval alone.
    """

    def __init__(self, retriever: Retriever, k: int = 4, reader: ReaderKind = "direct") -> None:
        super().__init__(retriever, k)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages = await self.retrieve(question)
        return await read(self, question, passages), passages
