"""SKR: retrieval only for what the model does not know by itself (Wang et al. 2023)."""

from typing import ClassVar, Literal

import dspy

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import make_reader, read
from hoptimizer.programs.steps.knowing import known_answer
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import SelfKnowledge


class SKR(Program):
    """Answers from memory what the model knows, and from passages what it does not (SKR).

    Uncompiled, the model is asked whether it knows (SKR-prompt). Compiled by ``distill`` with
    ``self_knowledge=knn``, those training questions decide that are most similar to the question, of which it is known
    whether passages made the answer right (SKR-knn).

    Args:
        retriever: where passages come from.
        k: passages that are retrieved for what the model does not know.
        reader: answers, with and without passages: ``direct`` at once, ``cot`` with a chain of thought.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import SKR
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> corpus = Corpus([Passage("curie", "Marie Curie", "She was born in Warsaw.")])
        >>> program = SKR(BM25Retriever(corpus), k=1)
        >>> with dspy.context(lm=DummyLM([{"knows": "no"}, {"answer": "Warsaw"}])):
        ...     prediction = program(question="Where was Marie Curie born?")
        >>> prediction.answer, [record.step for record in prediction.steps]
        ('Warsaw', ['self_knowledge', 'retrieve', 'reader'])
    """

    step_names: ClassVar[tuple[str, ...]] = ("self_knowledge", "closed_book", "reader")

    def __init__(self, retriever: Retriever, k: int = 4, reader: Literal["direct", "cot"] = "direct") -> None:
        super().__init__(retriever, k)
        self.self_knowledge = dspy.Predict(SelfKnowledge)
        self.closed_book = make_reader(reader, passages=False)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        answer = await known_answer(self, question)
        if answer is not None:
            return answer, []
        passages = await self.retrieve(question)
        return await read(self, question, passages), passages
