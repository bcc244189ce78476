"""What a data set's hops say of how a question should be split up.

A hop has the answers of earlier hops filled in, which nobody knows when the question is split up: such an answer is
either referred to, as ``#1``, or the question can't be split into sub-questions that are complete in themselves.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from hoptimizer.common.text import Span, find
from hoptimizer.eval.datasets.question import Hop
from hoptimizer.eval.metrics import Gold, exact_match
from hoptimizer.signatures.decomposing import Task

_POSSESSIVE = re.compile(r"['’](?=s\b)")


class Annotated(Gold, Protocol):
    """A question whose annotations can be read: a :class:`Question` or its ``dspy.Example``."""

    @property
    def hops(self) -> list[Hop]: ...

    @property
    def rationale(self) -> str | None: ...

    @property
    def main(self) -> str | None: ...


def ordered_subquestions(question: Annotated) -> list[str]:
    """The sub-questions that a question should be split into, with ``#1`` for the answer to the first, and so on.

    There are none where it has a single hop. An answer that the question itself names is no reference, since it can be
    copied from there. If several earlier hops have the same answer, the last of them is meant.

    Args:
        question: the question.

    >>> from hoptimizer.eval import Question
    >>> hops = [Hop(question="Who built the mill?", answer="Ada"), Hop(question="Where was Ada born?", answer="Bern")]
    >>> asked = "Where was the builder of the mill born?"
    >>> ordered_subquestions(Question(id="1", question=asked, answers=["Bern"], hops=hops))
    ['Who built the mill?', 'Where was #1 born?']
    """
    hops = question.hops
    if len(hops) < 2:
        return []
    answers = [(number, hop.answer) for number, hop in enumerate(hops, 1)]
    open = [(number, answer) for number, answer in answers if not find(apart(question.question), apart(answer))]
    return [_referring(hop.question, dict(one for one in open if one[0] <= place)) for place, hop in enumerate(hops)]


def subquestions(question: Annotated) -> list[str]:
    """The sub-questions, complete in themselves, that a question should be split into.

    There are none where it has a single hop, and where a hop asks about the answer of an earlier one: to describe that
    answer in its place would be to ask the question itself.

    Args:
        question: the question.
    """
    asked = [hop.question for hop in question.hops]
    return asked if ordered_subquestions(question) == asked else []


def findings(question: Annotated) -> list[str]:
    """The sub-questions with their answers; none where the question has a single hop.

    Args:
        question: the question.
    """
    return answered(question, len(question.hops)) if len(question.hops) > 1 else []


def next_question(question: Annotated, place: int) -> str:
    """The follow-up question after as many as ``place``: the next hop's, with earlier answers filled in; empty after
    the last.

    Args:
        question: the question, with hops.
        place: the number of hops that were asked.
    """
    return "".join(hop.question for hop in question.hops[place : place + 1])


def task_question(question: Annotated, place: int) -> str:
    """The sub-question of the task after as many as ``place``; empty at the end.

    Args:
        question: the question, with hops.
        place: the number of tasks that are done.
    """
    return _task(question, place)[0]


def task(question: Annotated, place: int) -> Task:
    """What the task after as many as ``place`` is handled by: hops are searched for, and the question itself follows
    from them, unless the last of them has its answer.

    Args:
        question: the question, with hops.
        place: the number of tasks that are done.
    """
    return _task(question, place)[1]


def _task(question: Annotated, place: int) -> tuple[str, Task]:
    tasks: list[tuple[str, Task]] = [(hop.question, "search") for hop in question.hops]
    if not exact_match(question.hops[-1].answer, question.answers):
        tasks.append((question.question, "combine"))
    return tasks[place] if place < len(tasks) else ("", "end")


def later_query(question: Annotated, place: int) -> str:
    """The query that follows as many as ``place`` later ones and the first; after the last hop that hop's again.

    Args:
        question: the question, with hops.
        place: the number of later queries that were asked.
    """
    return question.hops[min(place + 1, len(question.hops) - 1)].question


def answered(question: Annotated, place: int) -> list[str]:
    """The first follow-up questions with their answers.

    Args:
        question: the question, with hops.
        place: the number of hops that were asked.
    """
    return [f"{hop.question} {hop.answer}" for hop in question.hops[:place]]


def _referring(asked: str, answers: Mapping[int, str]) -> str:
    """A hop's question with references in the place of answers: the longest ones first, and of equal ones the last."""
    text, found = apart(asked), list[tuple[Span, int]]()
    for number, answer in sorted(answers.items(), key=lambda one: (-len(one[1]), -one[0])):
        found += [(span, number) for span in find(text, apart(answer)) if not _overlaps(span, found)]
    for (start, end), number in sorted(found, reverse=True):
        asked = f"{asked[:start]}#{number}{asked[end:]}"
    return asked


def apart(text: str) -> str:
    """A text of the same length in which a possessive's s is a word of its own, since "Ada's" names Ada.

    Args:
        text: any text.
    """
    return _POSSESSIVE.sub(" ", text)


def _overlaps(span: Span, found: Sequence[tuple[Span, int]]) -> bool:
    return any(span[0] < end and start < span[1] for (start, end), _ in found)
