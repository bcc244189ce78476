"""What a data set's annotations say of a chain of thought."""

import re

from hoptimizer.common.text import sentences
from hoptimizer.eval.datasets.question import Hop
from hoptimizer.optimizers.labels.decomposition import Annotated
from hoptimizer.programs.reader import stated_answer

# The title of the page that a fact is of.
_PAGE = re.compile(r"([^\W_a-z].{0,80}?): ")


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
        return [fact(hop) for hop in question.hops]
    found = sentences(question.rationale or "")
    return found[:-1] if found and stated_answer(found[-1]) else found


def reasoning(question: Annotated) -> list[str]:
    """The annotated chain of thought of a question, in sentences: its facts, and one that states the answer.

    Args:
        question: the question.
    """
    return [*facts(question), statement(question.answers[0])]


def thought(question: Annotated, place: int) -> str:
    """The sentence of a question's annotated chain of thought at a place.

    Args:
        question: the question.
        place: index of a sentence of its :func:`reasoning`.
    """
    return reasoning(question)[place]


def enough(question: Annotated, place: int) -> str:
    """Whether a question can be answered once its chain of thought has come to a place: ``yes`` or ``no``.

    Args:
        question: the question.
        place: index of a sentence of its :func:`reasoning`.
    """
    return "yes" if place >= len(facts(question)) - 1 else "no"


def look_up(question: Annotated, place: int) -> str:
    """What must be looked up once a chain of thought has come to a place; empty where the answer is known.

    It is the next hop's question, with the earlier answers filled in. Where there are no hops, it is asked for the page
    that the next fact is of, as HotpotQA's rationales tell.

    Args:
        question: the question.
        place: index of a sentence of its :func:`reasoning`.

    Raises:
        LookupError: there are no hops, and the rationale does not tell the page.
    """
    if enough(question, place) == "yes":
        return ""
    if question.hops:
        return question.hops[place + 1].question
    if page := _PAGE.match(facts(question)[place + 1]):
        return f"Who or what is {page[1]}?"
    raise LookupError("no page")


def final_answer(question: Annotated, place: int) -> str:
    """The answer of a question, or nothing before its chain of thought has come far enough.

    Args:
        question: the question.
        place: index of a sentence of its :func:`reasoning`.
    """
    return question.answers[0] if enough(question, place) == "yes" else ""


def fact(hop: Hop) -> str:
    """What a hop of a question says, as a sentence.

    Args:
        hop: the hop.
    """
    return f"{hop.question.strip().rstrip('?').rstrip()}: {hop.answer}."


def statement(answer: str) -> str:
    """The sentence that ends a chain of thought in the protocol of IRCoT's paper.

    Args:
        answer: the answer.
    """
    return f"So the answer is: {answer}."
