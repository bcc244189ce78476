"""Training data of EfficientRAG from a teacher (Zhuang et al., 2024, section 3.2).

There are four steps: split the question by its passages and find which parts depend on which, label the words of each
passage, write the next query, and mine hard negatives (which
:mod:`hoptimizer.optimizers.labels.tagger_examples` does with the retriever). The teacher's outputs are checked: words
must occur in the text, in its order; the parts must not depend on each other in a circle; an answer must occur in its
passage. A question that fails a check, or whose prompt is refused, is skipped and counted by the reason.
"""

import asyncio
from collections.abc import Sequence
from graphlib import CycleError
from pathlib import Path
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, DSPyError

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.text import find, folded
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.failures import ends_all, explained, one_line
from hoptimizer.optimizers.labels.hop_labels import HopLabel, LabelledQuestion, unknown_to
from hoptimizer.optimizers.labels.hop_order import hop_order
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.retrieval import Passage
from hoptimizer.signatures import FindDependencies, LabelWords, NextQuery, SplitByPassages

# The most letters of why a prompt was refused: questions are counted by it.
_REASON = 80


class UnusableError(Exception):
    """Raised where the teacher's output can't be learned from, or where a prompt is refused; the message is the reason,
    without the output."""


def synthesize(
    questions: Sequence[Question], context: CompileContext, file: Path, stage: str, merged: bool = False
) -> list[LabelledQuestion]:
    """Have a teacher label questions; each is in the file as soon as it is labelled.

    A compile that was killed labels them again: the run's own cache holds the calls that were already made.

    Args:
        questions: questions with supporting passages.
        context: the compile, with the teacher, the corpus, and the number of questions that are labelled at once.
        file: the file of JSON lines that is written.
        stage: the stage under which progress is reported.
        merged: whether a round has one query for all its hops, as with ``program.queries=query``.

    Raises:
        UserError: the teacher can't be used; a ``ServiceError`` where a call got no answer.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, LabelledQuestion] = {}
    teacher = Teacher(context.teacher_lm, merged)

    async def run() -> None:
        slots = asyncio.Semaphore(context.workers)
        with file.open("w", encoding="utf-8") as rows:

            async def label(question: Question) -> None:
                async with slots:
                    passages = [context.corpus[id] for id in question.passages]
                    try:
                        result = await teacher.label(question, passages)
                    except UnusableError as error:
                        result = LabelledQuestion(id=question.id, question=question.question, failure=str(error))
                rows.write(result.model_dump_json() + "\n")
                rows.flush()
                done[question.id] = result
                context.listener.progress(stage, len(done), len(questions), "")

            await all_of(label(question) for question in questions)

    run_async(run())
    return [done[question.id] for question in questions]


class Teacher:
    """A language model that labels questions by their supporting passages.

    Args:
        lm: the language model; ``None`` for the one of DSPy's settings.
        merged: whether a round has one query for all its hops.
    """

    def __init__(self, lm: dspy.LM | None, merged: bool = False) -> None:
        self._lm, self._merged = lm, merged

    async def label(self, question: Question, passages: Sequence[Passage]) -> LabelledQuestion:
        """A question's labels.

        Args:
            question: the question.
            passages: its supporting passages.

        Raises:
            UnusableError: the teacher's output failed a check, or a prompt was refused.
            UserError: the teacher can't be used; a ``ServiceError`` where a call got no answer.
        """
        asked, answers = await self._split(question, passages)
        needs = await asyncio.gather(*(self._needs(asked, number) for number in range(len(asked))))
        try:
            order = hop_order(needs, self._merged)
        except CycleError as error:
            raise UnusableError("sub-questions that wait for each other in a circle") from error
        useful = await asyncio.gather(
            *(self._words(str(p), q, a) for p, q, a in zip(passages, asked, answers, strict=True))
        )
        needed = {need for wanted in needs for need in wanted}
        hops: list[HopLabel] = []
        following: dict[tuple[str, str], str] = {}  # hops of one round may share their query
        for number, after in zip(order.hops, order.after, strict=True):
            query = question.question
            if after:
                before = hops[after[-1]].query
                known = " ".join(unknown_to(before, [phrase for source in after for phrase in hops[source].useful]))
                if (before, known) not in following:
                    following[before, known] = await self._next(before, known)
                query = following[before, known]
            hop = HopLabel(
                query=query,
                passage=passages[number].id,
                text=str(passages[number]),
                useful=useful[number],
                tag="continue" if number in needed else "finish",
                after=after,
                asked=asked[number],
            )
            hops.append(hop)
        return LabelledQuestion(id=question.id, question=question.question, hops=hops)

    async def _split(self, question: Question, passages: Sequence[Passage]) -> tuple[list[str], list[str]]:
        texts = [str(passage) for passage in passages]
        said = await self._ask(SplitByPassages, passages=texts, question=question.question, answer=question.answers[0])
        asked, answers = said.subquestions, said.answers
        if len(asked) != len(texts) or len(answers) != len(texts) or not all(map(str.strip, [*asked, *answers])):
            raise UnusableError("not one sub-question and answer for each passage")
        if not all(find(text, answer) for text, answer in zip(texts, answers, strict=True)):
            raise UnusableError("an answer that its passage does not hold")
        return asked, answers

    async def _needs(self, asked: list[str], number: int) -> list[int]:
        numbered = [f"{place}. {text}" for place, text in enumerate(asked, 1)]
        said = (await self._ask(FindDependencies, subquestions=numbered, subquestion=numbered[number])).after
        after = [place - 1 for place in said]
        if any(not 0 <= place < len(asked) for place in after):
            raise UnusableError("a sub-question that waits for one that is not there")
        return after

    async def _words(self, passage: str, question: str, answer: str) -> list[str]:
        useful = (await self._ask(LabelWords, passage=passage, question=question, answer=answer)).useful
        useful = [words for words in useful if folded(words)]
        if not useful or not in_order(passage, useful):
            raise UnusableError("words that are not the passage's, or not in its order")
        return useful

    async def _next(self, query: str, known: str) -> str:
        following = (await self._ask(NextQuery, query=query, known=known)).next_query
        if not following.strip() or not in_order(f"{query} {known}", following.split()):
            raise UnusableError("a next query with words that neither the query nor what is known has, or out of order")
        return following

    async def _ask(self, signature: type[dspy.Signature], **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - its fields
        try:
            said = await dspy.Predict(signature).acall(lm=self._lm, **inputs)
        except AdapterParseError as error:
            raise UnusableError("an output that could not be parsed") from error
        except DSPyError as error:
            if ends_all(error):
                raise explained(error, "the teacher", "lm.teacher") from error
            raise UnusableError(one_line(error)[:_REASON]) from error
        if any(said.get(field) is None for field in signature.output_fields):
            raise UnusableError("an output that lacks a field")
        return said


def in_order(text: str, phrases: Sequence[str]) -> bool:
    """Whether a text contains some phrases, each as a whole and one after the other.

    Args:
        text: the text.
        phrases: the phrases.
    """
    at = 0
    for phrase in phrases:
        if not folded(phrase):
            continue
        following = [end for start, end in find(text[at:], phrase)][:1]
        if not following:
            return False
        at += following[0]
    return True
