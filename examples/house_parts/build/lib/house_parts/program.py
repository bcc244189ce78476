"""A program: answers with the beginning of what it finds."""

from typing import Annotated

from pydantic import Field

from hoptimizer.programs import Program
from hoptimizer.retrieval import Passage, Retriever


class FirstPassage(Program):
    """The first words of the first passage, without a language model.

    Args:
        retriever: where passages come from.
        k: passages per retrieval.
        words: how many words the answer has.
    """

    step_names = ()

    def __init__(self, retriever: Retriever, k: int = 4, words: Annotated[int, Field(ge=1)] = 3) -> None:
        super().__init__(retriever, k)
        self.words = words

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages = await self.retrieve(question)
        return " ".join(passages[0].text.split()[: self.words]), passages
