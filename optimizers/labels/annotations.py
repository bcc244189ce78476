"""What a data set's annotations make of each output of a step: one table for all that learns from them.

Demonstrations, oracles, fine-tuned steps and language models, GEPA's feedback and the checks before a compile read it,
so that they agree on what is right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import sentencex

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.metrics import Gold
from hoptimizer.programs import Program
from hoptimizer.programs.ra_isf import normalized
from hoptimizer.programs.reader import states_answer
from hoptimizer.retrieval import Corpus

# What a model knows by itself is no annotation, though RA-ISF's closed_book writes an answer.
_OWN_KNOWLEDGE = ("closed_book",)


class Unannotated(Exception):
    """A question lacks the annotation that a step needs."""


class Annotated(Gold, Protocol):
    """What a question needs to have for its annotations to be read: :class:`Question` and its ``dspy.Example`` do."""

    @property
    def hops(self) -> list[Hop]: ...

    @property
    def rationale(self) -> str | None: ...


def is_reasoned(question: Annotated) -> bool:
    """Whether a question has a chain of thought."""
    return bool(question.hops or question.rationale)


def reasoning(question: Annotated) -> list[str]:
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


def hop_of(question: Annotated, asked: str) -> Hop | None:
    """The hop that is asked; ``None`` for the question itself.

    Raises:
        Unannotated: it is neither.
    """
    if normalized(asked) == normalized(question.question):
        return None
    for hop in question.hops:
        if normalized(asked) == normalized(hop.question):
            return hop
    raise Unannotated


def supporting(question: Annotated, hop: Hop | None = None) -> list[str]:
    """Ids of the passages that support a question, or one of its hops."""
    if hop is None:
        return question.passages
    return [hop.passage] if hop.passage else []


def subquestions(question: Annotated) -> list[str]:
    """The sub-questions that a question is to be split up into; none where it has a single hop."""
    return [hop.question for hop in question.hops] if len(question.hops) > 1 else []


def findings(question: Annotated) -> list[str]:
    """The sub-questions with their answers."""
    return [f"{hop.question} {hop.answer}" for hop in question.hops] if len(question.hops) > 1 else []


@dataclass(frozen=True)
class Case:
    """A question that a program is asked, with the passages that its annotations name."""

    question: Question
    corpus: Corpus


Tell = Callable[[Case, Mapping[str, Any], int], Any]
"""An output's value, from a question with its corpus, the step's inputs, and how often the step was taken before.

It raises :class:`Unannotated` where the question does not tell."""


@dataclass(frozen=True)
class Annotation:
    """How an output field is annotated.

    Attributes:
        key: what data sets call it.
        given: whether a question has it.
        tell: the field's value.
    """

    key: str
    given: Callable[[Annotated], bool]
    tell: Tell


def _thought(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    return reasoning(case.question)[place]


def _chain(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    hop = hop_of(case.question, inputs["question"])
    return " ".join([_fact(hop), _statement(hop.answer)] if hop else reasoning(case.question))


def _answer(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    hop = hop_of(case.question, inputs["question"])
    return hop.answer if hop else case.question.answers[0]


def _relevant(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    ids = supporting(case.question, hop_of(case.question, inputs["question"]))
    if not ids:
        raise Unannotated
    return "yes" if inputs["passage"] in [str(case.corpus[id]) for id in ids] else "no"


def _subquestions(case: Case, inputs: Mapping[str, Any], place: int) -> list[str]:
    if hop_of(case.question, inputs["question"]):
        return []  # a hop can't be split up
    if not case.question.hops:
        raise Unannotated
    return subquestions(case.question)


def _unsaid(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    """What is labelled for all hops of a question together (:mod:`hoptimizer.optimizers.labels.hop_labels`)."""
    raise Unannotated


def _has_passages(question: Annotated) -> bool:
    return bool(question.passages)


ANNOTATIONS: Mapping[str, Annotation] = MappingProxyType(
    {
        "thought": Annotation("hops or rationale", is_reasoned, _thought),
        "chain": Annotation("hops or rationale", is_reasoned, _chain),
        "answer": Annotation("answers", lambda question: True, _answer),
        "relevant": Annotation("passages", _has_passages, _relevant),
        "subquestions": Annotation("hops", lambda question: len(question.hops) > 1, _subquestions),
        "tag": Annotation("passages", _has_passages, _unsaid),
        "next_query": Annotation("passages", _has_passages, _unsaid),
    }
)
"""By the name of an output field."""


def annotations(program: Program) -> dict[str, Annotation]:
    """How the output of a program's steps is annotated, by the step; what only the model itself can say is not."""
    outputs = {step: tuple(predictor.signature.output_fields) for step, predictor in program.named_predictors()}
    return {
        step: ANNOTATIONS[fields[0]]
        for step, fields in outputs.items()
        if step not in _OWN_KNOWLEDGE
        and len(fields) == 1
        and fields[0] in ANNOTATIONS
        and ANNOTATIONS[fields[0]].tell is not _unsaid
    }


def check_annotations(
    option: str, step: str, annotation: Annotation, splits: Mapping[str, Sequence[Question]], remedy: str
) -> None:
    """Make sure that the questions tell what a step is to learn.

    Args:
        option: the key of the config that asks for it.
        step: what learns.
        annotation: of its output.
        splits: the questions by split.
        remedy: what to do besides adding annotations.

    Raises:
        UserError: no question of a split has the annotation.
    """
    for split, questions in splits.items():
        if not any(annotation.given(question) for question in questions):
            raise UserError(
                f"{option}: {step!r} learns from the questions' {annotation.key}, which no {split} question has; add "
                f"them to the data, {remedy}"
            )
