"""How a teacher writes a question about passages, and how it is asked whether the question is a good one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from hoptimizer.common.text import find
from hoptimizer.eval.datasets.question import Hop, Question, id_of
from hoptimizer.eval.synthesis.checks import DroppedError, check_form, check_joined, gives
from hoptimizer.eval.synthesis.links import Link
from hoptimizer.retrieval import Passage
from hoptimizer.signatures.answering import Answer, Read
from hoptimizer.signatures.writing import JoinQuestions, WriteQuestion, WriteQuestionAbout, WriteQuestionFor


class QuestionWriter:
    """A language model that writes questions and answers them.

    Args:
        lm: the language model; ``None`` for the one of DSPy's settings.
    """

    def __init__(self, lm: dspy.LM | None) -> None:
        self._lm = lm

    async def single(self, passage: Passage) -> Question:
        """A question that one passage answers.

        Args:
            passage: the passage.

        Raises:
            DroppedError: what was written is not to be kept.
        """
        said = await self._ask(WriteQuestion, passage=str(passage))
        check_form(said.question, said.answer, passage)
        await self._check_answers(said.question, said.answer, [passage])
        hop = Hop(question=said.question, answer=said.answer, passage=passage.id)
        return _question(said.question, said.answer, [hop], "single")

    async def bridge(self, link: Link) -> Question:
        """A question over two passages: the name that links them is found in the first, and asked about in the second.

        Args:
            link: the passages and the name.

        Raises:
            DroppedError: what was written is not to be kept.
        """
        first, second = await asyncio.gather(
            self._ask(WriteQuestionFor, passage=str(link.first), answer=link.name),
            self._ask(WriteQuestionAbout, passage=str(link.second), subject=link.name),
        )
        check_form(first.question, link.name, link.first)
        check_form(second.question, second.answer, link.second)
        if not find(second.question, link.name):
            raise DroppedError("a second question without the name that links the passages")
        if find(link.first.text, second.answer):
            raise DroppedError("an answer that stands in the first passage already")
        said = await self._ask(
            JoinQuestions, first_question=first.question, name=link.name, second_question=second.question
        )
        check_joined(said.question, link.name, second.answer, [first.question, second.question])
        await self._check_answers(said.question, second.answer, [link.first, link.second])
        hops = [
            Hop(question=first.question, answer=link.name, passage=link.first.id),
            Hop(question=second.question, answer=second.answer, passage=link.second.id),
        ]
        return _question(said.question, second.answer, hops, "bridge")

    async def _check_answers(self, question: str, answer: str, passages: Sequence[Passage]) -> None:
        """Make sure that all passages together answer a question, and neither one of several nor none does."""
        contexts = [list(passages)] + ([[passage] for passage in passages] if len(passages) > 1 else [])
        whole, *alone = await asyncio.gather(*(self._read(question, context) for context in contexts))
        if not gives(whole, answer):
            raise DroppedError("its passages do not answer it")
        if any(gives(said, answer) for said in alone):
            raise DroppedError("one of its passages answers it alone")
        if gives((await self._ask(Answer, question=question)).answer, answer):
            raise DroppedError("answered without its passages")

    async def _read(self, question: str, passages: Sequence[Passage]) -> str:
        said = await self._ask(Read, context=[str(passage) for passage in passages], question=question)
        return str(said.answer)

    async def _ask(self, signature: type[dspy.Signature], **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - its fields
        try:
            said = await dspy.Predict(signature).acall(lm=self._lm, **inputs)
        except AdapterParseError as error:
            raise DroppedError("an output that could not be parsed") from error
        if any(not str(said.get(field) or "").strip() for field in signature.output_fields):
            raise DroppedError("an output that lacks a field")
        return said


def _question(text: str, answer: str, hops: list[Hop], kind: str) -> Question:
    text = " ".join(text.split())
    return Question(
        id=id_of(text),
        question=text,
        answers=[answer.strip().rstrip(".")],
        passages=[hop.passage for hop in hops if hop.passage],
        hops=hops,
        type=kind,
    )
