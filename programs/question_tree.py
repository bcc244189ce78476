"""The tree of sub-questions that RA-ISF splits a question into."""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hoptimizer.programs.reader import declines
from hoptimizer.programs.trace import SharedTasks
from hoptimizer.retrieval import Passage

UNKNOWN = "unknown"

Module = Literal["self_knowledge", "relevance", "decomposition", "unknown"]
"""What settles a question; ``unknown`` is what none of the modules could."""

REFERENCE = re.compile(r"#(\d{1,2})\b")
"""How a sub-question names the answer to an earlier one: ``#1`` is that to the first of the list."""

_NUMBERING = re.compile(
    r"^(\d{1,2}(\.\d{1,2})*[.)]|[-*•]|\(\d{1,2}\)|#\d{1,2}:|(sub-?question|question|step|q)\s?\d{1,2}[.:)])\s+",
    re.IGNORECASE,
)
_EDGES = " .,;:!?…¿¡\"'“”‘’«»。、，；：？！「」"


@dataclass(frozen=True)
class Frame:
    """The place of a question in the tree of sub-questions.

    Attributes:
        shared: the steps that were asked already, anywhere in the tree.
        depth: 0 for the question itself.
        ancestors: the questions that it is a part of, normalized.
        calls: language model calls that it and its sub-questions may take together; ``None`` for any number.
    """

    shared: SharedTasks
    depth: int = 0
    ancestors: frozenset[str] = frozenset()
    calls: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a question ended.

    Attributes:
        answer: the answer, or ``"unknown"``.
        by: what settled it.
        passages: the passages that it and its sub-questions were answered from.
        why: the reason for an unknown answer: ``depth`` (it would have to be split up deeper than the limit),
            ``repeat`` (it is a part of the same question), ``reference`` (an answer that it refers to is unknown),
            ``calls`` (none were left) or ``no_subquestions``.
    """

    answer: str
    by: Module
    passages: list[Passage] = field(default_factory=list)
    why: str | None = None

    @property
    def known(self) -> bool:
        """Whether there is an answer; a model may say itself that it is unknown.

        >>> [Outcome(answer, "relevance").known for answer in ("Oslo", '"Unknown"', "I don't know.")]
        [True, False, False]
        """
        return not declines(normalized(self.answer))


class CallBudgetExhausted(Exception):
    """The budget of language model calls is used up."""


@dataclass(frozen=True)
class SubQuestion:
    """A part of a question.

    Attributes:
        text: what it asks, as the model wrote it.
        references: for each number in the text that refers to an earlier answer, the place of the sub-question that
            gives it among those that are solved, from 0; ``None`` if that one is not solved.
    """

    text: str
    references: Mapping[int, int | None] = field(default_factory=dict)

    def filled_in(self, answers: Mapping[int, str]) -> str:
        """The text with answers in the place of its references.

        Args:
            answers: the answers by the number that refers to them.

        >>> SubQuestion("Where was #1 born?", {1: 0}).filled_in({1: "Ada"})
        'Where was Ada born?'
        """
        return REFERENCE.sub(lambda found: answers.get(int(found[1]), found[0]), self.text)


def subquestions(texts: Sequence[str], question: str, most: int, references: bool) -> list[SubQuestion]:
    """The sub-questions to solve, of those that a model wrote.

    Empty ones, repeated ones and the question itself are left out. A number that does not refer back is mere text, as
    in "the #1 hit".

    Args:
        texts: what the model wrote.
        question: what it was to split up.
        most: the most sub-questions; further ones are left out.
        references: whether sub-questions may refer to earlier answers.

    >>> [part.text for part in subquestions(["1. Who?", "who", "Where was #1 born?"], "Q?", 5, references=False)]
    ['Who?', 'Where was #1 born?']
    >>> [part.text for part in subquestions(["#1: Who?", "Step 2: Where was #1 born?"], "Q?", 5, references=True)]
    ['Who?', 'Where was #1 born?']
    """
    parts: dict[str, SubQuestion] = {}
    places: list[int | None] = []  # of what solves each item of the model's list
    for text in texts:
        cleaned = _NUMBERING.sub("", " ".join(text.split())).strip()
        key = normalized(cleaned)
        if not cleaned or key == normalized(question):
            places.append(None)
            continue
        if key not in parts:
            if len(parts) == most:
                break
            numbers = {int(number) for number in REFERENCE.findall(cleaned)} if references else set()
            earlier = {number: places[number - 1] for number in sorted(numbers) if 0 < number <= len(places)}
            parts[key] = SubQuestion(cleaned, earlier)
        places.append(list(parts).index(key))
    return list(parts.values())


def normalized(question: str) -> str:
    """A question in a form that is the same for questions that differ in case, spaces or outer punctuation alone."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return text.strip(_EDGES) or text


_NOTHING = re.compile(
    r"\W*(n/a|null|empty|done|finished|not (needed|required|necessary)"
    r"|(none\W+)?the (final )?answer is (already )?known( already| now)?"
    r"|(none|nothing)\W*\(([^)]+\s){2}[^)]+\)"  # with the reason
    r"|(none|nothing|no (further|more|other|additional|follow[- ]?up)"
    r"( (follow[- ]?up |sub-?)?(questions?|queries|searches|information|facts|details))?)"
    r"( (else )?(is |are )?(needed|required|necessary|left)(\W* (as|since|because|to|the)\b[^?]*)?)?)?\W*",
    re.IGNORECASE,
)


def asked_for(text: str | None) -> str:
    """What a model asks for; empty where it writes in words or signs that it asks for nothing more.

    Args:
        text: the output of a step that may be left empty.

    >>> [asked_for(text) for text in ("(empty)", "None needed.", "No further questions are needed", '""')]
    ['', '', '', '']
    >>> [asked_for(text) for text in ("No follow-up question is needed.", "None (the answers suffice)", "Not needed")]
    ['', '', '']
    >>> [asked_for(text) for text in ("No more questions needed; the answer is Oslo.", "None needed, as it is known")]
    ['', '']
    >>> [asked_for(text) for text in ("None, the answer is known.", "Done.")]
    ['', '']
    >>> [asked_for(text) for text in (" Where was she born? ", "No More Heroes", "Na Hong-jin", "Empty Nest")]
    ['Where was she born?', 'No More Heroes', 'Na Hong-jin', 'Empty Nest']
    """
    text = (text or "").strip()
    return "" if _NOTHING.fullmatch(text) else text


def is_repeated(question: str, asked: Collection[str]) -> bool:
    """Whether a question was asked before, be it with something behind it: small models copy its answer, too.

    Args:
        question: the question.
        asked: the questions before it, normalized.

    >>> is_repeated("Where was she born? Warsaw", ["where was she born"])
    True
    >>> is_repeated("Where was she born in 1867?", ["where was she born"])
    False
    """
    said = f"{normalized(question)}?"
    return any(said.startswith(f"{earlier}?") for earlier in asked)
