"""Recitation: passages recited from memory, and an answer from them (Sun et al. 2023)."""

from functools import partial
from typing import Annotated, ClassVar

import dspy
from pydantic import Field

from hoptimizer.programs.program import Program
from hoptimizer.programs.sampling import commonest, sampling
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage
from hoptimizer.signatures import AnswerFromRecitation, Recite


class ReciteAndAnswer(Program):
    """Recites passages from memory and answers from them, several times at once, and votes (RECITE, section 3).

    Args:
        recitations: how often it recites and answers; the first recitation is the likeliest one, others are sampled.
        temperature: of the sampling.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import ReciteAndAnswer
        >>> said = [{"recited": '["Marie Curie was born in Warsaw in 1867."]'}, {"answer": "Warsaw"}]
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = ReciteAndAnswer(recitations=1)(question="Where was Marie Curie born?")
        >>> prediction.answer, prediction.steps[1].inputs["recited"]
        ('Warsaw', ['Marie Curie was born in Warsaw in 1867.'])
    """

    step_names: ClassVar[tuple[str, ...]] = ("recite", "reader")

    def __init__(
        self,
        recitations: Annotated[int, Field(ge=1)] = 5,
        temperature: Annotated[float, Field(gt=0)] = 0.7,
    ) -> None:
        super().__init__()
        self.recitations = recitations
        self.temperature = temperature
        self.recite = dspy.Predict(Recite)
        self.reader = dspy.Predict(AnswerFromRecitation)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        paths = (partial(self.path, question, number) for number in range(self.recitations))
        return commonest(await gather_steps(paths)), []

    async def path(self, question: str, number: int) -> str:
        """Recite and answer once; empty if the output can't be understood."""
        sample = sampling(self, "recite", number, of=self.recitations, temperature=self.temperature)
        said = await self.step("recite", sampling=sample, question=question)
        return ((await self.step("reader", recited=said.recited or [], question=question)).answer or "").strip()
