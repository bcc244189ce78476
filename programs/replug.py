"""REPLUG: each passage is read on its own, and what is read from all of them is mixed (Shi et al. 2024)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.models.adapters import LMAdapter
from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.mixture import MixtureAdapter
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import normalized
from hoptimizer.programs.trace import current, gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Read

_NO_LOGPROBS = (
    "program=replug mixes answers by their probabilities, which the language model of its reader does not tell; take a "
    "local model, or a server that gives logprobs"
)


class REPLUG(Program):
    """Reads each passage on its own, and mixes what is read by the retriever's scores (REPLUG).

    A model in this process writes one answer from one prompt per passage, as in the paper (section 3.2): the
    distribution of each next token is the mean of those after all prompts, weighted by the passages' scores.

    A server writes each text by itself: to mix its next tokens, it would have to be called for each token and passage.
    There, each passage has an answer of its own, and answers are mixed as wholes: the probability of one is the sum,
    over the passages that give it, of the passage's weight times the answer's probability.

    Args:
        retriever: where passages come from.
        k: passages that are retrieved, each of which is read on its own.
        temperature: of the softmax over the retriever's scores that gives the passages their weights; a higher one
            makes them more alike.

    Raises:
        UserError: the reader's language model does not tell how likely its answers are.

    Example:
        >>> import dspy
        >>> from hoptimizer.models import LMSettings, build_adapter, build_lm
        >>> from hoptimizer.programs import REPLUG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=32))
        >>> with dspy.context(lm=lm, adapter=build_adapter()):
        ...     prediction = REPLUG(BM25Retriever(corpus), k=2)(question="Where was Marie Curie born?")
        >>> [record.step for record in prediction.steps]
        ['retrieve', 'reader']
        >>> prediction.steps[1].inputs["context"]
        ['curie', 'warsaw']
    """

    def __init__(
        self, retriever: Retriever, k: int = 4, temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    ) -> None:
        super().__init__(retriever, k)
        self.temperature = temperature
        self.reader = dspy.Predict(Read)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages = await self.retrieve(question)
        shares = weights(passages, self.temperature)
        mixed = self.mixed_tokens if passages and self.mixes_tokens else self.mixed_answers
        return await mixed(question, passages, shares), passages

    @property
    def mixes_tokens(self) -> bool:
        """Whether the reader's language model tells all of its distributions: one in this process does."""
        lm = self.language_models().get("reader")
        return lm is not None and is_local(lm) and isinstance(dspy.settings.adapter, LMAdapter)

    async def mixed_tokens(self, question: str, passages: list[Passage], shares: list[float]) -> str:
        """The answer whose every token is the likeliest in the mixture of the passages' distributions."""
        with dspy.context(adapter=MixtureAdapter(dspy.settings.adapter, "context", shares)):
            said = await self.step("reader", measured=True, question=question, context=passages)
        # Each prompt shows one passage, and so are demonstrations to.
        traced = current().entries()[-1].trace
        traced[:] = [
            (predictor, inputs | {"context": [passage]}, said)
            for predictor, inputs, said in traced
            for passage in inputs["context"]
        ]
        return (said.answer or "").strip()

    async def mixed_answers(self, question: str, passages: list[Passage], shares: list[float]) -> str:
        """The likeliest answer in the mixture of those that the passages give."""
        readings = await gather_steps(partial(self.read, question, passage) for passage in passages)
        wording: dict[str, str] = {}
        mixture: dict[str, float] = defaultdict(float)
        for share, (answer, probability) in zip(shares, readings, strict=True):
            if answer:
                wording.setdefault(normalized(answer), answer)
                mixture[normalized(answer)] += share * probability
        # Of equally likely ones the first, whose passage the retriever put first.
        return wording[max(mixture, key=mixture.__getitem__)] if mixture else ""

    async def read(self, question: str, passage: Passage) -> tuple[str, float]:
        """The answer from one passage, empty if it can't be understood, and how likely the model finds it."""
        said = await self.step("reader", measured=True, question=question, context=[passage])
        answer = (said.answer or "").strip()
        if answer and said.probability is None:
            raise UserError(_NO_LOGPROBS)
        return answer, said.probability or 0.0


def weights(passages: Sequence[Passage], temperature: float) -> list[float]:
    """The softmax over the scores of passages; all are equal where the retriever gives no scores.

    >>> first, second = weights([Passage("a", "", "", score=2.0), Passage("b", "", "", score=1.0)], temperature=1.0)
    >>> round(first, 3), round(second, 3)
    (0.731, 0.269)
    """
    scores = [passage.score for passage in passages if passage.score is not None]
    if len(scores) < len(passages):
        return [1 / len(passages)] * len(passages)
    best = max(scores, default=0.0)
    powers = [math.exp((score - best) / temperature) for score in scores]
    return [power / sum(powers) for power in powers]
