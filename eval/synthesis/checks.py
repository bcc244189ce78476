"""What a question must be to be kept, before anybody is asked about it."""

import re
from collections.abc import Sequence

from rapidfuzz import fuzz

from hoptimizer.common.text import find, folded
from hoptimizer.eval.answers import f1, normalize
from hoptimizer.retrieval import Passage

_LONGEST_ANSWER = 8  # words
_SHORTEST_QUESTION = 4
# So alike are two questions that ask the same, in percent of rapidfuzz's ratio of sorted words.
_ALIKE = 92
# The F1 from which an answer counts as given.
_GIVEN = 0.6
_POINTING = re.compile(
    r"\b(the|this|that|these|those|above|given|following) (passage|text|document|paragraph|excerpt|article)s?\b"
    r"|\baccording to (the|this)\b|\bmentioned\b",
    re.IGNORECASE,
)
_CAPITAL = re.compile(r"(?<!^)\b[A-Z][\w'’-]*")


class DroppedError(Exception):
    """Raised where a question is not to be kept; the message is the reason, the same for all questions with it."""


def check_form(question: str, answer: str, passage: Passage) -> None:
    """Make sure that a question stands for itself, and that its answer is a few words of its passage.

    Args:
        question: as the teacher wrote it.
        answer: likewise.
        passage: that it was written about.

    Raises:
        DroppedError: one of it is not so.
    """
    if len(question.split()) < _SHORTEST_QUESTION or not question.strip().endswith("?"):
        raise DroppedError("no question")
    if not normalize(answer) or len(answer.split()) > _LONGEST_ANSWER:
        raise DroppedError("an answer of too many words, or of none")
    if not find(passage.text, answer):
        raise DroppedError("an answer that its passage does not hold")
    if find(question, answer):
        raise DroppedError("a question with its answer in it")
    if _POINTING.search(question):
        raise DroppedError("a question that points at a text")
    title = {word for word in folded(passage.title).split() if len(word) > 3}
    if not _CAPITAL.search(question) and not title & set(folded(question).split()):
        raise DroppedError("a question that does not name what it is about")


def check_joined(joined: str, name: str, answer: str, parts: Sequence[str]) -> None:
    """Make sure that a joined question has lost its name, does not give its answer away, and is made of both questions.

    Args:
        joined: the question of two hops.
        name: that links the passages.
        answer: to the whole question.
        parts: the two questions.

    Raises:
        DroppedError: one of it is not so.
    """
    if len(joined.split()) < _SHORTEST_QUESTION or not joined.strip().endswith("?"):
        raise DroppedError("no question")
    if find(joined, name):
        raise DroppedError("a joined question with the name in it that is to be found")
    if find(joined, answer):
        raise DroppedError("a question with its answer in it")
    first, second = (set(folded(part).split()) - set(folded(name).split()) for part in parts)
    words = set(folded(joined).split())
    if len(words & (first - second)) < 2 or len(words & (second - first)) < 1:
        raise DroppedError("a joined question that lacks one of its parts")


def gives(said: str | None, answer: str) -> bool:
    """Whether what a model said is the answer, or has it."""
    return f1(said, [answer]) >= _GIVEN or bool(find(str(said or ""), answer))


def is_new(question: str, kept: Sequence[str]) -> bool:
    """Whether no question that is kept asks the same."""
    return all(fuzz.token_sort_ratio(folded(question), folded(other)) < _ALIKE for other in kept)
