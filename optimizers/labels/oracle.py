"""What a program would do if its steps were taken as the data set's annotations say."""

import copy
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import sentencex

from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.programs import Program
from hoptimizer.programs.ra_isf import normalized
from hoptimizer.programs.reader import states_answer
from hoptimizer.retrieval import Corpus

# What a model knows is no annotation, though RA-ISF's closed_book writes an answer.
_OWN_KNOWLEDGE = ("closed_book",)


class Unannotated(Exception):
    """A question lacks the annotation that a step needs."""


@dataclass(frozen=True)
class StepExample:
    """One step that was taken.

    Attributes:
        step: the step's name.
        inputs: the signature's input fields, as its model sees them.
        outputs: its output fields.
    """

    step: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class Annotation:
    """How an output field is annotated.

    Attributes:
        key: what the data set calls it.
        given: whether a question has it.
        tell: the field's value, from a question with its corpus, the step's inputs, and how often the step was taken
            before; raises :class:`Unannotated` where the question does not tell.
    """

    key: str
    given: Callable[[Question], bool]
    tell: Callable[["_Case", dict[str, Any], int], Any]


@dataclass(frozen=True)
class _Case:
    question: Question
    corpus: Corpus

    def hop(self, asked: str) -> Hop | None:
        """The hop that a step is about; ``None`` for the question itself.

        Raises:
            Unannotated: it is neither.
        """
        if normalized(asked) == normalized(self.question.question):
            return None
        for hop in self.question.hops:
            if normalized(asked) == normalized(hop.question):
                return hop
        raise Unannotated


def reasoning(question: Question) -> list[str]:
    """The annotated chain of thought of a question, in sentences; the last one states the answer.

    A hop gives a sentence of its own, since a retrieval follows each (IRCoT, section 3.1); published rationales often
    have several facts in one. Questions without hops have their rationale's sentences, or the answer alone.
    """
    sentences = [_fact(hop) for hop in question.hops]
    if not sentences and question.rationale:
        sentences = [text for sentence in sentencex.segment("en", question.rationale) if (text := sentence.strip())]
    stated = bool(sentences) and not question.hops and states_answer(sentences[-1])
    return sentences if stated else [*sentences, _statement(question.answers[0])]


def _fact(hop: Hop) -> str:
    return f"{hop.question.strip().rstrip('?').rstrip()}: {hop.answer}."


def _statement(answer: str) -> str:
    return f"So the answer is: {answer}."


def _thought(case: _Case, inputs: dict[str, Any], place: int) -> str:
    return reasoning(case.question)[place]


def _chain(case: _Case, inputs: dict[str, Any], place: int) -> str:
    hop = case.hop(inputs["question"])
    return " ".join([_fact(hop), _statement(hop.answer)] if hop else reasoning(case.question))


def _answer(case: _Case, inputs: dict[str, Any], place: int) -> str:
    hop = case.hop(inputs["question"])
    return hop.answer if hop else case.question.answers[0]


def _relevant(case: _Case, inputs: dict[str, Any], place: int) -> str:
    hop = case.hop(inputs["question"])
    ids = [hop.passage] if hop else case.question.passages
    supporting = [str(case.corpus[id]) for id in ids if id is not None]
    if not supporting:
        raise Unannotated
    return "yes" if inputs["passage"] in supporting else "no"


def _subquestions(case: _Case, inputs: dict[str, Any], place: int) -> list[str]:
    if case.hop(inputs["question"]):
        return []  # a hop can't be split up
    if not case.question.hops:
        raise Unannotated
    return [hop.question for hop in case.question.hops] if len(case.question.hops) > 1 else []


_REASONED = ("hops or rationale", lambda question: bool(question.hops or question.rationale))
_ANNOTATIONS: dict[str, Annotation] = {
    "thought": Annotation(*_REASONED, _thought),
    "chain": Annotation(*_REASONED, _chain),
    "answer": Annotation("answers", lambda question: True, _answer),
    "relevant": Annotation("passages", lambda question: bool(question.passages), _relevant),
    "subquestions": Annotation("hops", lambda question: len(question.hops) > 1, _subquestions),
}


def annotations(program: Program) -> dict[str, Annotation]:
    """How the output of a program's steps is annotated, by the step; what only the model itself can say is not."""
    outputs = {step: tuple(predictor.signature.output_fields) for step, predictor in program.named_predictors()}
    return {
        step: _ANNOTATIONS[fields[0]]
        for step, fields in outputs.items()
        if step not in _OWN_KNOWLEDGE and len(fields) == 1 and fields[0] in _ANNOTATIONS
    }


class _Oracle:
    """Takes one step of a program for one question, and keeps what it did."""

    def __init__(self, step: str, output: str, tell: Callable[[_Case, dict[str, Any], int], Any], case: _Case) -> None:
        self._step, self._output, self._tell, self._case = step, output, tell, case
        self._asked = 0
        self.taken: list[StepExample] = []

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = {self._output: self._tell(self._case, inputs, self._asked)}
        self._asked += 1
        if outputs[self._output] != []:  # that nothing can be split further is no example of splitting
            self.taken.append(StepExample(self._step, inputs, outputs))
        return outputs


async def replay(program: Program, question: Question, corpus: Corpus, steps: Collection[str]) -> list[StepExample]:
    """Run a program with oracles in some of its steps, whose inputs are then what right steps before them lead to.

    Args:
        program: its other steps are taken as ever; it is not changed.
        question: annotated.
        corpus: holds its supporting passages.
        steps: of :func:`annotations`.

    Returns:
        what the oracles did, in an order that does not depend on which of several calls was first.

    Raises:
        Unannotated: the program asks for what the question has no annotation of.
    """
    case, known = _Case(question, corpus), annotations(program)
    oracles = {}
    for step in steps:
        (output,) = getattr(program, step).signature.output_fields
        oracles[step] = _Oracle(step, output, known[step].tell, case)
    guided = copy.copy(program)
    guided.models = program.models | oracles
    await guided.acall(question=question.question)
    taken = [one for oracle in oracles.values() for one in oracle.taken]
    return sorted(taken, key=lambda one: json.dumps([one.step, one.inputs], sort_keys=True))
