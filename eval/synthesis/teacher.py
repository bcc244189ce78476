"""How a teacher writes a question about passages, and how it is asked whether the question is a good one."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from hoptimizer.common.text import find
from hoptimizer.eval.datasets.question import Hop, Question, id_of
from hoptimizer.eval.synthesis.checks import DroppedError, check_form, gives, put_in, to_ask_for
from hoptimizer.eval.synthesis.links import Link
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures.answering import Answer, Read
from hoptimizer.signatures.writing import DescribeAnswer, FindAnswers, WriteQuestionAbout, WriteQuestionFor

SINGLE_CALLS = 4
"""Calls that a question over one passage takes, if no check before the last one drops it."""

MORE_CALLS = SINGLE_CALLS - 1
"""Likewise, of a further one over the same passage, whose answers are known."""

BRIDGE_CALLS = 8
"""Likewise, of a question over two."""

# Among so many passages that a question finds, its own must be.
_FIRST = 3


class QuestionWriter:
    """A language model that writes questions and answers them.

    What is asked for is chosen before the question is written (as by Lewis et al., 2021, section 3): a small model that
    chooses both asks who somebody is, and copies the passage for an answer.

    Args:
        lm: the language model; ``None`` for the one of DSPy's settings.
        retriever: over the corpus.
        lm_calls: of the language model, at most, those that a cache answers among them; ``None`` for no limit.

    Attributes:
        calls: that were made.
    """

    def __init__(self, lm: dspy.LM | None, retriever: Retriever, lm_calls: int | None = None) -> None:
        self._lm = lm
        self._retriever = retriever
        self._limit = lm_calls
        self._others: dict[str, list[str]] = {}
        self.calls = 0

    @property
    def exhausted(self) -> bool:
        """Whether no call is left."""
        return self._limit is not None and self.calls >= self._limit

    def rounds(self, passages: Sequence[Passage]) -> Iterator[list[tuple[Passage, str | None]]]:
        """What :meth:`single` is asked for: each passage first; once that is done, what else they can be asked for.

        Args:
            passages: in their order; none is asked about a third time before the others were a second time.
        """
        yield [(passage, None) for passage in passages]
        asked = [passage for passage in passages if passage.id in self._others]
        turns = zip_longest(*(self._others[passage.id] for passage in asked))
        yield [(passage, answer) for turn in turns for passage, answer in zip(asked, turn, strict=True) if answer]

    async def single(self, passage: Passage, answer: str | None = None) -> Question:
        """A question that one passage answers.

        Args:
            passage: the passage.
            answer: what is asked for; ``None`` for one of what the teacher names, the others of which are left for a
                later round.

        Raises:
            DroppedError: what was written is not to be kept.
        """
        if answer is None:
            answers = await self._answers(passage)
            answer = _drawn(passage, answers)
            self._others[passage.id] = [other for other in answers if other != answer]
        said = await self._ask(WriteQuestionFor, passage=str(passage), answer=answer)
        self._check_question(said.question, answer, passage)
        await self._check_answers(said.question, answer, [passage])
        hop = Hop(question=said.question, answer=answer, passage=passage.id)
        return _question(said.question, answer, [hop], "single")

    async def bridge(self, link: Link) -> Question:
        """A question over two passages: the name that links them is found in the first, and asked about in the second.

        Args:
            link: the passages and the name.

        Raises:
            DroppedError: what was written is not to be kept.
        """
        answer = _drawn(link.second, await self._answers(link.second, (link.first.text, link.name)))
        first, second = await asyncio.gather(
            self._ask(WriteQuestionFor, passage=str(link.first), answer=link.name),
            self._ask(WriteQuestionAbout, passage=str(link.second), subject=link.name, answer=answer),
        )
        self._check_question(first.question, link.name, link.first)
        self._check_question(second.question, answer, link.second)
        described = await self._ask(DescribeAnswer, question=first.question)
        joined = put_in(second.question, link.name, described.phrase)
        if find(joined, answer):
            raise DroppedError("a question with its answer in it")
        await self._check_answers(joined, answer, [link.first, link.second])
        hops = [
            Hop(question=first.question, answer=link.name, passage=link.first.id),
            Hop(question=second.question, answer=answer, passage=link.second.id),
        ]
        return _question(joined, answer, hops, "bridge")

    async def _answers(self, passage: Passage, known: Sequence[str] = ()) -> list[str]:
        """What a passage can be asked for: what the teacher names of it that no text of ``known`` has."""
        said = await self._ask(FindAnswers, passage=str(passage))
        answers = [a for a in to_ask_for(said.answers, passage) if not any(find(text, a) for text in known)]
        if not answers:
            raise DroppedError("nothing in the passage to ask for")
        return answers

    def _check_question(self, question: str, answer: str, passage: Passage) -> None:
        """Make sure that a question is well formed, and leads to its passage, or to another one with the answer.

        A question that other passages fit better is about these as well (round-trip consistency; Dai et al., 2023,
        section 3.2).
        """
        check_form(question, answer, passage)
        [found] = self._retriever.search([question], _FIRST)
        if not any(find(one.text, answer) for one in found):
            raise DroppedError("a question that other passages fit better")

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
        if self.exhausted:
            raise DroppedError("no call was left for it")
        self.calls += 1
        try:
            said = await dspy.Predict(signature).acall(lm=self._lm, **inputs)
        except AdapterParseError as error:
            raise DroppedError("an output that could not be parsed") from error
        if any(not str(said.get(field) or "").strip() for field in signature.output_fields):
            raise DroppedError("an output that lacks a field")
        return said


def _drawn(passage: Passage, answers: Sequence[str]) -> str:
    """One of a passage's answers, by chance, and the same one each time."""
    return random.Random(passage.id).choice(answers)


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
