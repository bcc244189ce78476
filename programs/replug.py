"""REPLUG: one reading for each passage, and the answer that all of them together find likeliest (Shi et al. 2024)."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import normalized
from hoptimizer.programs.steps.scoring import can_score, score
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Read

_NO_LOGPROBS = (
    "program=replug mixes answers by their probabilities, which the language model of its reader does not tell; take a "
    "local model, or a server that gives logprobs"
)


class REPLUG(Program):
    """Reads each passage on its own, and mixes what is answered by the retriever's scores (REPLUG).

    The probability of an answer is the sum, over the passages, of the passage's weight times the answer's probability
    where the model reads this passage. The paper mixes the distributions of each next token; here the answers that the
    passages give are mixed as wholes. A model in this process scores each of them with every passage. Servers tell the
    probability of what they wrote alone, so that a passage gives none to the answer of another one.

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
        ['retrieve', 'reader', 'reader', 'score', 'score', 'score', 'score']
        >>> 0 < prediction.steps[1].outputs["probability"] <= 1
        True
    """

    def __init__(
        self, retriever: Retriever, k: int = 4, temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    ) -> None:
        super().__init__(retriever, k)
        self.temperature = temperature
        self.reader = dspy.Predict(Read)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages = await self.retrieve(question)
        readings = await gather_steps(partial(self.read, question, passage) for passage in passages)
        wording: dict[str, str] = {}
        for answer, _ in readings:
            if answer:
                wording.setdefault(normalized(answer), answer)
        if len(wording) < 2:
            return "".join(wording.values()), passages
        given = [{normalized(answer): probability} for answer, probability in readings]
        if can_score(self, "reader"):
            given = await gather_steps(partial(self.scores, question, passage, wording) for passage in passages)
        shares = list(zip(weights(passages, self.temperature), given, strict=True))
        mixture = {key: sum(weight * one.get(key, 0.0) for weight, one in shares) for key in wording}
        # Of equally likely ones the first, whose passage the retriever put first.
        return wording[max(mixture, key=mixture.__getitem__)], passages

    async def scores(self, question: str, passage: Passage, wording: Mapping[str, str]) -> dict[str, float]:
        """How likely each answer is where the model reads one passage."""
        asked = (partial(score, self, "reader", answer, question, [passage]) for answer in wording.values())
        return dict(zip(wording, await gather_steps(asked), strict=True))

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
