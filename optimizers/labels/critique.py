"""What a data set's annotations say of an answer that is to be judged (Self-RAG)."""

from collections.abc import Collection, Sequence

from hoptimizer.eval.metrics import exact_match
from hoptimizer.optimizers.labels.decomposition import Annotated
from hoptimizer.signatures.judging import Supporting, Useful

_BEST: Useful = "completely"
_WORST: Useful = "not at all"


def supports(
    question: Annotated, supporting: Collection[str], holding: Collection[str], passage: str, candidate: str
) -> Supporting:
    """Whether a passage supports an answer: a right one fully if it holds it, partially if it supports it with others.

    Args:
        question: the question.
        supporting: the passages that support its right answer.
        holding: those of them that hold it by themselves.
        passage: the passage.
        candidate: the answer.
    """
    if passage not in supporting or not exact_match(candidate, question.answers):
        return "no"
    return "fully" if passage in holding else "partially"


def usefulness(question: Annotated, candidate: str) -> Useful:
    """How useful an answer is: completely if it is right, else not at all.

    Args:
        question: the question.
        candidate: the answer.
    """
    return _BEST if exact_match(candidate, question.answers) else _WORST


def wrong_answers(question: Annotated, others: Sequence[str] = ()) -> list[str]:
    """What might be taken for the answer: the answers of hops that are not the question's own.

    Args:
        question: the question.
        others: answers of another question, taken in the place of those of hops where they are given.
    """
    answers = dict.fromkeys(others or [hop.answer for hop in question.hops])
    return [answer for answer in answers if not exact_match(answer, question.answers)]
