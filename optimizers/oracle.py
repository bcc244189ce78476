"""What a program would do if each of its steps were taken as the data set's annotations say."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sentencex

from hoptimizer.eval.question import Question
from hoptimizer.programs import Program


@dataclass(frozen=True)
class Taken:
    """One step that an oracle took.

    Attributes:
        step: the step's name.
        inputs: the signature's input fields, as its model sees them.
        outputs: its output field, as annotated.
    """

    step: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


def reasoning(question: Question) -> list[str]:
    """The annotated chain of thought of a question, in sentences; the last one states the answer.

    A hop gives a sentence of its own, since a retrieval follows each (IRCoT, section 3.1); published rationales often
    have several facts in one. Questions without hops have their rationale's sentences, or the answer alone.
    """
    facts = [f"{hop.question.strip().rstrip('?').rstrip()}: {hop.answer}." for hop in question.hops]
    if not facts and question.rationale:
        return [text for sentence in sentencex.segment("en", question.rationale) if (text := sentence.strip())]
    return [*facts, f"So the answer is: {question.answers[0]}."]


class _Oracle:
    """Takes one step of a program for one question.

    Args:
        step: the step's name.
        output: name of its signature's output field.
        question: has the annotations.
        taken: where what it did is put.
    """

    def __init__(self, step: str, output: str, question: Question, taken: list[Taken]) -> None:
        self._step, self._output, self._taken = step, output, taken
        self._answer = _ANSWERS[output]
        self._question = question

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        place = sum(taken.step == self._step for taken in self._taken)
        outputs = {self._output: self._answer(self._question, inputs, place)}
        self._taken.append(Taken(self._step, inputs, outputs))
        return outputs


def _thought(question: Question, inputs: dict[str, Any], place: int) -> str:
    return reasoning(question)[place]


def _chain(question: Question, inputs: dict[str, Any], place: int) -> str:
    return " ".join(reasoning(question))


def _answer(question: Question, inputs: dict[str, Any], place: int) -> str:
    asked = {hop.question: hop.answer for hop in question.hops}
    return asked.get(inputs["question"], question.answers[0])


_ANSWERS: dict[str, Callable[[Question, dict[str, Any], int], Any]] = {
    "thought": _thought,
    "chain": _chain,
    "answer": _answer,
}


def replay(program: Program, questions: Sequence[Question], workers: int) -> list[list[Taken]]:
    """Run a program with oracles in its steps, so that each step's inputs are what the right steps before it lead to.

    Args:
        program: whose steps; it is not changed.
        questions: annotated.
        workers: questions under way at once.

    Returns:
        for each question the steps that were taken, in order.
    """
    slots = asyncio.Semaphore(workers)

    async def one(question: Question) -> list[Taken]:
        taken: list[Taken] = []
        guided = program.deepcopy()
        for step, predictor in program.named_predictors():
            (output,) = predictor.signature.output_fields
            guided.models[step] = _Oracle(step, output, question, taken)
        async with slots:
            await guided.acall(question=question.question)
        return taken

    async def every() -> list[list[Taken]]:
        return await asyncio.gather(*(one(question) for question in questions))

    return asyncio.run(every())
