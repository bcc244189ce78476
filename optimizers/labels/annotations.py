"""The table of how a data set annotates each output of a step.

Demonstrations, oracles, fine-tuned steps and language models, GEPA's feedback and the checks before a compile all read
this table, so that they agree on what is right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import find
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.metrics import exact_match
from hoptimizer.optimizers.labels.critique import supports, usefulness
from hoptimizer.optimizers.labels.decomposition import (
    Annotated,
    later_query,
    next_question,
    ordered_subquestions,
    subquestions,
    task,
    task_question,
)
from hoptimizer.optimizers.labels.pages import is_about_page, page_titles
from hoptimizer.optimizers.labels.reasoning import (
    enough,
    fact,
    facts,
    final_answer,
    is_reasoned,
    look_up,
    reasoning,
    statement,
    thought,
)
from hoptimizer.programs import Program
from hoptimizer.programs.question_tree import normalized
from hoptimizer.retrieval import Corpus

# What a model knows by itself is not annotated, although RA-ISF's closed_book step writes an answer.
_OWN_KNOWLEDGE = ("closed_book",)
_VERDICTS = ("yes", "no")


class Unannotated(Exception):
    """Raised where a question lacks the annotation that a step needs."""


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


def holding(question: Annotated, corpus: Corpus, hop: Hop | None = None) -> list[str]:
    """The ids of the passages that hold the answer to a question, or to one of its hops, each by itself.

    A question that several passages support is answered by the hop whose answer is the question's, and that hop's
    passage holds it; where the hops are not known, the supporting passages that state it. A verdict, or one of two
    things that the question names, follows from several passages, and none of them holds it.

    Args:
        question: the question.
        corpus: the corpus with its supporting passages.
        hop: one of its hops; ``None`` for the question itself.
    """
    ids = supporting(question, hop)
    if hop or len(ids) < 2:
        return ids
    if question.hops and all(hop.passage for hop in question.hops):
        stating = [hop.passage for hop in question.hops if hop.passage and exact_match(hop.answer, question.answers)]
        return list(dict.fromkeys(stating))
    if any(normalized(answer) in _VERDICTS or find(question.question, answer) for answer in question.answers):
        return []
    return [id for id in ids if any(find(str(corpus[id]), answer) for answer in question.answers)]


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


def _in_turn(say: Callable[[Annotated, int], str], *, hops: bool = False) -> Tell:
    """What says something else of a question each time, by its hops alone if it is said so."""

    def tell(case: Case, inputs: Mapping[str, Any], place: int) -> str:
        if not (case.question.hops if hops else is_reasoned(case.question)):
            raise Unannotated
        try:
            return say(case.question, place)
        except LookupError:  # the chain went on, since an answer such as "unknown" does not end it; or it tells no page
            raise Unannotated from None

    return tell


def _reasoning(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    if hop := hop_of(case.question, inputs["question"]):
        return fact(hop)
    if not is_reasoned(case.question):
        raise Unannotated
    return " ".join(facts(case.question))


def _chain(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    hop = hop_of(case.question, inputs["question"])
    return " ".join([fact(hop), statement(hop.answer)] if hop else reasoning(case.question))


def _answer(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    hop = hop_of(case.question, inputs["question"])
    return hop.answer if hop else case.question.answers[0]


def _relevant(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    hop = hop_of(case.question, inputs["question"])
    if not supporting(case.question, hop):
        raise Unannotated
    return "yes" if inputs["passage"] in _texts(case, holding(case.question, case.corpus, hop)) else "no"


def _sufficient(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    needed = supporting(case.question, hop_of(case.question, inputs["question"]))
    if not needed:
        raise Unannotated
    return "yes" if set(_texts(case, needed)) <= set(inputs["retrieved"]) else "no"


def _texts(case: Case, ids: Sequence[str]) -> list[str]:
    return [str(case.corpus[id]) for id in ids]


def _split_by(split: Callable[[Annotated], list[str]]) -> Tell:
    """What gives the sub-questions of a question; a hop has none, since it can't be split further."""

    def tell(case: Case, inputs: Mapping[str, Any], place: int) -> list[str]:
        if hop_of(case.question, inputs["question"]):
            return []
        if not case.question.hops:
            raise Unannotated
        return split(case.question)

    return tell


def _recited(case: Case, inputs: Mapping[str, Any], place: int) -> list[str]:
    if hop_of(case.question, inputs["question"]) or not supporting(case.question):
        raise Unannotated
    return _texts(case, supporting(case.question))


def _supported(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    held = _texts(case, holding(case.question, case.corpus))
    return supports(
        case.question, _texts(case, supporting(case.question)), held, inputs["passage"], inputs["candidate"]
    )


def _useful(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    return usefulness(case.question, inputs["candidate"])


def _unsaid(case: Case, inputs: Mapping[str, Any], place: int) -> str:
    """For outputs that are labelled for all hops of a question together, by ``hop_labels``, and not one by one."""
    raise Unannotated


def _has_passages(question: Annotated) -> bool:
    return bool(question.passages)


def _has_hops(question: Annotated) -> bool:
    return bool(question.hops)


def _has_several_hops(question: Annotated) -> bool:
    return len(question.hops) > 1


ANNOTATIONS: Mapping[str, Annotation] = MappingProxyType(
    {
        "thought": Annotation("hops or rationale", is_reasoned, _in_turn(thought)),
        "next_thought": Annotation("hops or rationale", is_reasoned, _in_turn(thought)),
        "look_up": Annotation("hops or rationale", is_reasoned, _in_turn(look_up)),
        "enough": Annotation("hops or rationale", is_reasoned, _in_turn(enough)),
        "final_answer": Annotation("hops or rationale", is_reasoned, _in_turn(final_answer)),
        "chain": Annotation("hops or rationale", is_reasoned, _chain),
        "reasoning": Annotation("hops or rationale", is_reasoned, _reasoning),
        "answer": Annotation("answers", lambda question: True, _answer),
        "relevant": Annotation("passages", _has_passages, _relevant),
        "sufficient": Annotation("passages", _has_passages, _sufficient),
        "subquestions": Annotation("hops", _has_several_hops, _split_by(subquestions)),
        "ordered_subquestions": Annotation("hops", _has_several_hops, _split_by(ordered_subquestions)),
        "next_question": Annotation("hops", _has_hops, _in_turn(next_question, hops=True)),
        "task_question": Annotation("hops", _has_hops, _in_turn(task_question, hops=True)),
        "task": Annotation("hops", _has_hops, _in_turn(task, hops=True)),
        "first_query": Annotation("hops", _has_hops, _in_turn(next_question, hops=True)),
        "search_query": Annotation("hops", _has_several_hops, _in_turn(later_query, hops=True)),
        "recited": Annotation("passages", _has_passages, _recited),
        "supported": Annotation("passages", _has_passages, _supported),
        "useful": Annotation("answers", lambda question: True, _useful),
        "titles": Annotation("main", is_about_page, lambda case, *_: page_titles(case.question, case.corpus)),
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
