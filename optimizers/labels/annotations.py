"""The table of how a data set annotates each output of a step.

Demonstrations, oracles, fine-tuned steps and language models, GEPA's feedback and the checks before a compile all read
this table, so that they agree on what is right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import sentences
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.metrics import Gold
from hoptimizer.programs import Program
from hoptimizer.programs.ra_isf import normalized
from hoptimizer.programs.reader import stated_answer
from hoptimizer.retrieval import Corpus

# What a model knows by itself is not annotated, although RA-ISF's closed_book step writes an answer.
_OWN_KNOWLEDGE = ("closed_book",)


class Unannotated(Exception):
    """Raised where a question lacks the annotation that a step needs."""


class Annotated(Gold, Protocol):
    """A question whose annotations can be read: a :class:`Question` or its ``dspy.Example``."""

    @property
    def hops(self) -> list[Hop]: ...

    @property
    def rationale(self) -> str | None: ...


def is_reasoned(question: Annotated) -> bool:
    """Whether a question has an annotated chain of thought.

    Args:
        question: the question.
    """
    return bool(question.hops or question.rationale)


def facts(question: Annotated) -> list[str]:
    """The annotated facts that lead to the answer of a question, a sentence each; empty where none are annotated.

    Each hop gives one sentence, since a retrieval follows each sentence (IRCoT, section 3.1), and the sentences of
    published rationales often hold several facts. A question without hops has the sentences of its rationale.

    Args:
        question: the question.
    """
    if question.hops:
        return [_fact(hop) for hop in question.hops]
    found = sentences(question.rationale or "")
    return found[:-1] if found and stated_answer(found[-1]) else found


def reasoning(question: Annotated) -> list[str]:
    """The annotated chain of thought of a question, in sentences: its facts, and one that states the answer.

    Args:
        question: the question.
    """
    return [*facts(question), _statement(question.answers[0])]


def enough(question: Annotated, place: int) -> str:
    """Whether a question can be answered once its chain of thought has come to a place: ``yes`` or ``no``.

    Args:
        question: the question.
        place: index of a sentence of its :func:`reasoning`.
    """
    return "yes" if place >= len(facts(question)) - 1 else "no"


def final_answer(question: Annotated, place: int) -> str:
    """The answer of a question, or nothing before its chain of thought has come far enough.

    Args:
        question: the question.
        place: index of a sentence of its :func:`reasoning`.
    """
    return question.answers[0] if enough(question, place) == "yes" else ""


def _fact(hop: Hop) -> str:
    return f"{hop.question.strip().rstrip('?').rstrip()}: {hop.answer}."


def _statement(answer: str) -> str:
    return f"So the answer is: {answer}."


def hop_of(question: Annotated, asked: str) -> Hop | None:
    """The hop that a text asks for; ``None`` where the text is the question itself.

    Args:
        question: the question.
        asked: the text that a step is asked.

    Raises:
        Unannotated: the text is neither a hop nor the question.
    """
    if normalized(asked) == normalized(question.question):
        return None
    for hop in question.hops:
        if normalized(asked) == normalized(hop.question):
            return hop
    raise Unannotated


def supporting(question: Annotated, hop: Hop | None = None) -> list[str]:
    """The ids of the passages that support a question, or one of its hops.

    Args:
        question: the question.
        hop: one of its hops; ``None`` for the question itself.
    """
    if hop is None:
        return question.passages
    return [hop.passage] if hop.passage else []


def subquestions(question: Annotated) -> list[str]:
    """The sub-questions that a question should be split into; none where it has a single hop.

    Args:
        question: the question.
    """
    return [hop.question for hop in question.hops] if len(question.hops) > 1 else []


def findings(question: Annotated) -> list[str]:
    """The sub-questions with their answers; none where the question has a single hop.

    Args:
        question: the question.
    """
    return [f"{hop.question} {hop.answer}" for hop in question.hops] if len(question.hops) > 1 else []


@dataclass(frozen=True)
class Case:
    """A question that a program is asked, and the corpus that holds the passages that its annotations name."""

    question: Question
    corpus: Corpus


Tell = Callable[[Case, Mapping[str, Any], int], Any]
"""A function that gives an output's right value.

Its arguments are a question with its corpus, the step's inputs, and how often the step was taken before. It raises
:class:`Unannotated` where the annotations do not say."""


@dataclass(frozen=True)
class Annotation:
    """How an output field is annotated.

    Attributes:
        key: the name of the annotation in a data set.
        given: tells whether a question has the annotation.
        tell: gives the field's right value.
    """

    key: str
    given: Callable[[Annotated], bool]
    tell: Tell


def _thought(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    return reasoning(case.question)[place]


def _enough(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    return enough(case.question, place)


def _final_answer(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    return final_answer(case.question, place)


def _reasoning(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    if hop := hop_of(case.question, inputs["question"]):
        return _fact(hop)
    if not is_reasoned(case.question):
        raise Unannotated
    return " ".join(facts(case.question))


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
        return []  # a hop can't be split further
    if not case.question.hops:
        raise Unannotated
    return subquestions(case.question)


def _unsaid(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    """For outputs that are labelled for all hops of a question together, by ``hop_labels``, and not one by one."""
    raise Unannotated


def _has_passages(question: Annotated) -> bool:
    return bool(question.passages)


ANNOTATIONS: Mapping[str, Annotation] = MappingProxyType(
    {
        "thought": Annotation("hops or rationale", is_reasoned, _thought),
        "next_thought": Annotation("hops or rationale", is_reasoned, _thought),
        "enough": Annotation("hops or rationale", is_reasoned, _enough),
        "final_answer": Annotation("hops or rationale", is_reasoned, _final_answer),
        "chain": Annotation("hops or rationale", is_reasoned, _chain),
        "reasoning": Annotation("hops or rationale", is_reasoned, _reasoning),
        "answer": Annotation("answers", lambda question: True, _answer),
        "relevant": Annotation("passages", _has_passages, _relevant),
        "subquestions": Annotation("hops", lambda question: len(question.hops) > 1, _subquestions),
        "tag": Annotation("passages", _has_passages, _unsaid),
        "next_query": Annotation("passages", _has_passages, _unsaid),
    }
)
"""Annotations by the name of an output field."""


def annotations(program: Program) -> dict[str, dict[str, Annotation]]:
    """The annotations of a program's steps: of each step those of its outputs, by the step's and the output's name.

    Steps whose outputs depend on what the model itself knows have none.

    Args:
        program: the program.
    """
    outputs = {step: tuple(predictor.signature.output_fields) for step, predictor in program.named_predictors()}
    return {
        step: {field: ANNOTATIONS[field] for field in fields}
        for step, fields in outputs.items()
        if step not in _OWN_KNOWLEDGE
        and all(field in ANNOTATIONS and ANNOTATIONS[field].tell is not _unsaid for field in fields)
    }


def check_annotations(
    option: str, step: str, outputs: Mapping[str, Annotation], splits: Mapping[str, Sequence[Question]], remedy: str
) -> None:
    """Make sure that the questions have the annotations that a step learns from.

    Args:
        option: the config key that the error names.
        step: the name of the step that learns.
        outputs: the annotations of the step's outputs.
        splits: the questions by split.
        remedy: what the error proposes besides adding annotations.

    Raises:
        UserError: no question of a split has an annotation.
    """
    for split, questions in splits.items():
        for annotation in outputs.values():
            if not any(annotation.given(question) for question in questions):
                raise UserError(
                    f"{option}: {step!r} learns from the questions' {annotation.key}, which no {split} question has; "
                    f"add them to the data, {remedy}"
                )
