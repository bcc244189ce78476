"""One retrieval, then one reading (OneR in IRCoT, Direct-R in EfficientRAG)."""

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.retrieval import Passage, Retriever


class RAG(Program):
    """Retrieves with the question, and reads what was found (IRCoT, section 4.1, baseline OneR).

    Args:
        retriever: where passages come from.
        k: passages that are retrieved.
        reader: ``direct``, ``cot``, ``phrase``, or ``none`` to score the retrieval alone.

    Example:
        >>> from hoptimizer.programs import RAG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> prediction = RAG(BM25Retriever(corpus), k=1, reader="none")(question="Where was Marie Curie born?")
        >>> prediction.passages[0].text
        'She was born in Warsaw.'
    """

    def __init__(self, retriever: Retriever, k: int = 4, reader: ReaderKind = "direct") -> None:
        super().__init__(retriever, k)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages = await self.retrieve(question)
        return await read(self, question, passages), passages
