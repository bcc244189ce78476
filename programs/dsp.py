"""Demonstrate-search-predict, in hops (Khattab et al. 2022)."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import dspy
from pydantic import Field

from hoptimizer.common.options import Positive
from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import normalized
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.programs.sampling import commonest, sampling
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.retrieval.hybrid import fused
from hoptimizer.signatures import FirstQuery, SearchQuery

T = TypeVar("T")


class DSP(Program):
    """Searches with a query from the question, then with one from what that found, and reads all (DSP, section 3).

    The stage "demonstrate" is what an optimizer does when the program is compiled. With several samples, each hop asks
    several queries, whose rankings are fused, and the answer that comes most often is given (sections 3.2 and 3.3).

    Args:
        retriever: where passages come from.
        k: passages that each query finds.
        hops: the most queries.
        max_passages: the most passages that are collected; the first ones are kept.
        reader: ``cot``, ``phrase`` or ``direct`` reads the collection; ``none`` scores the retrieval alone.
        samples: queries of each hop, and answers; the first of each is the likeliest one, the others are sampled.
        temperature: of the sampling.

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
        samples: Positive = 1,
        temperature: Annotated[float, Field(gt=0)] = 0.7,
    ) -> None:
        super().__init__(retriever, k)
        self.hops = hops
        self.max_passages = max_passages
        self.samples = samples
        self.temperature = temperature
        self.first_query = dspy.Predict(FirstQuery)
        self.next_query = dspy.Predict(SearchQuery)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages: list[Passage] = []
        asked: set[str] = set()
        for hop in range(self.hops):
            if len(passages) >= self.max_passages:
                break
            # A query that was asked before finds nothing new.
            new = [query for query in await self.queries(question, passages, hop) if normalized(query) not in asked]
            if not new:
                break
            asked.update(map(normalized, new))
            passages = each_once([*passages, *await self.found(new)])[: self.max_passages]
        answers = await self.sampled("reader", partial(read, self, question, passages))
        return commonest(answers), passages

    async def queries(self, question: str, passages: list[Passage], hop: int) -> list[str]:
        """The different queries of a hop; the question itself where an output can't be understood."""
        if hop:
            step = partial(self.step, "next_query", found=passages, question=question)
            said = [prediction.search_query for prediction in await self.sampled("next_query", step)]
        else:
            step = partial(self.step, "first_query", question=question)
            said = [prediction.first_query for prediction in await self.sampled("first_query", step)]
        queries: dict[str, str] = {}
        for text in said:
            query = (text or "").strip() or question
            queries.setdefault(normalized(query), query)
        return list(queries.values())

    async def sampled(self, step: str, ask: Callable[..., Coroutine[Any, Any, T]]) -> list[T]:
        """What a step says in each of the samples, which are asked for together."""
        ways = (
            sampling(self, step, number, of=self.samples, temperature=self.temperature)
            for number in range(self.samples)
        )
        return await gather_steps(partial(ask, sampling=way) for way in ways)

    async def found(self, queries: list[str]) -> list[Passage]:
        """The first ``k`` passages of what all queries find."""
        rankings = await gather_steps(partial(self.retrieve, query) for query in queries)
        return rankings[0] if len(rankings) == 1 else fused(rankings)[: self.k]
