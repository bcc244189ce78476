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
_POSSESSIVE = re.compile(r"['’]s\b")
_CAPITAL = re.compile(r"(?<!^)\b[A-Z][\w'’-]*")  # but the first word


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
    # "Who is Janet Jackson?", answered with her full name, asks for nothing, and "Which bridge?" for any.
    title = {word for word in folded(passage.bare_title).split() if len(word) > 3}
    names = set(folded(" ".join(_CAPITAL.findall(question))).split()) | title & set(folded(question).split())
    if not names - set(folded(answer).split()):
        raise DroppedError("a question that does not name what it is about")


def to_ask_for(answers: Sequence[str], passage: Passage) -> list[str]:
    """Those of a passage's answers that a question can ask for: a few of its words, and not what it is about.

    Args:
        answers: as a teacher copied them.
        passage: that they are of.
    """
    short = (answer.strip().rstrip(".") for answer in answers)
    fitting = (answer for answer in short if normalize(answer) and len(answer.split()) <= _LONGEST_ANSWER)
    return [
        answer
        for answer in dict.fromkeys(fitting)
        if find(passage.text, answer) and not find(passage.title, answer) and not find(answer, passage.bare_title)
    ]


def put_in(question: str, name: str, phrase: str) -> str:
    """A question with a phrase in the place of a name.

    Args:
        question: has the name, or its possessive.
        name: that is to be found.
        phrase: describes it.

    Raises:
        DroppedError: the question has no such name, or the phrase gives it away.
    """
    places = find(_POSSESSIVE.sub(_blank, question), name)
    if not places:
        raise DroppedError("a second question without the name that links the passages")
    phrase = phrase.strip().strip('.?"')
    if "?" in phrase or not phrase.lower().startswith("the "):
        raise DroppedError("a description that is no phrase")
    if find(_POSSESSIVE.sub(_blank, phrase), name):
        raise DroppedError("a description with the name in it that is to be found")
    start, end = places[0]
    phrase = phrase[0].upper() + phrase[1:] if start == 0 else phrase[0].lower() + phrase[1:]
    return question[:start] + phrase + question[end:]


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def gives(said: str | None, answer: str) -> bool:
    """Whether what a model said is the answer, or has it."""
    return f1(said, [answer]) >= _GIVEN or bool(find(str(said or ""), answer))


def is_new(question: str, kept: Sequence[str]) -> bool:
    """Whether no question that is kept asks the same."""
    return all(fuzz.token_sort_ratio(folded(question), folded(other)) < _ALIKE for other in kept)
