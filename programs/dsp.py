"""Demonstrate-search-predict, in hops (Khattab et al. 2022)."""

from typing import ClassVar

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import normalized
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import FirstQuery, SearchQuery


class DSP(Program):
    """Searches with a query from the question, then with one from what that found, and reads all (DSP, section 3).

    The stage "demonstrate" is what an optimizer does when the program is compiled.

    Args:
        retriever: where passages come from.
        k: passages that each query finds.
        hops: the most queries.
        max_passages: the most passages that are collected; the first ones are kept.
        reader: ``cot``, ``phrase`` or ``direct`` reads the collection; ``none`` scores the retrieval alone.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import DSP
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> said = [
        ...     {"first_query": "Where was Marie Curie born?"},
        ...     {"search_query": "Which river does Warsaw lie on?"},
        ...     {"reasoning": "She was born in Warsaw, on the Vistula.", "answer": "the Vistula"},
        ... ]
        >>> program = DSP(BM25Retriever(corpus), k=1)
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = program(question="Which river flows through Marie Curie's place of birth?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('the Vistula', ['curie', 'warsaw'])
        >>> [record.step for record in prediction.steps]
        ['first_query', 'retrieve', 'next_query', 'retrieve', 'reader']
    """

    step_names: ClassVar[tuple[str, ...]] = ("first_query", "next_query", "reader")

    def __init__(
        self,
        retriever: Retriever,
        k: int = 4,
        hops: Positive = 2,
        max_passages: Positive = 15,
        reader: ReaderKind = "cot",
    ) -> None:
        super().__init__(retriever, k)
        self.hops = hops
        self.max_passages = max_passages
        self.first_query = dspy.Predict(FirstQuery)
        self.next_query = dspy.Predict(SearchQuery)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages: list[Passage] = []
        asked: set[str] = set()
        while len(asked) < self.hops and len(passages) < self.max_passages:
            query = await self.query(question, passages, bool(asked))
            # A query that was asked before finds nothing new.
            if normalized(query) in asked:
                break
            asked.add(normalized(query))
            passages = each_once([*passages, *await self.retrieve(query)])[: self.max_passages]
        return await read(self, question, passages), passages

    async def query(self, question: str, passages: list[Passage], later: bool) -> str:
        """The next query; the question itself where the output can't be understood."""
        if later:
            query = (await self.step("next_query", found=passages, question=question)).search_query
        else:
            query = (await self.step("first_query", question=question)).first_query
        return (query or "").strip() or question
