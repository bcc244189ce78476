"""Questions of a data set, with what is known about their answers."""

import hashlib
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

if TYPE_CHECKING:
    import dspy

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
AnyText = Annotated[str, StringConstraints(min_length=0)]
"""A text that may be empty. Pydantic refuses halves of a character, which can't be written, in texts with constraints
alone."""


class Record(BaseModel):
    """A row of a data file: no value changes its type silently when it is read, and none changes afterwards."""

    model_config = ConfigDict(frozen=True, strict=True)


class Hop(Record):
    """One hop of a multi-hop question: a single-hop question, its answer, and the passage that states it.

    Attributes:
        question: the single-hop question, which can be answered on its own: references to earlier hops are filled in.
        answer: its answer.
        passage: id of the passage that holds the answer, where known.

    Example:
        >>> from hoptimizer.eval import Hop
        >>> Hop(question="Who designed the Harbour Bridge?", answer="Ines Moreau", passage="harbour-bridge").answer
        'Ines Moreau'
    """

    question: Text
    answer: Text
    passage: Text | None = None


class Question(Record):
    """A multi-hop question.

    Attributes:
        id: unique in its data set, across the splits.
        question: the question as asked.
        answers: every answer that counts as right; the first is the one shown and demonstrated.
        passages: ids of the supporting (gold) passages, where known.
        hops: the chain of single-hop questions, where known.
        rationale: a chain of thought that ends in the answer, where known.
        type: the data set's name for the kind of question, such as ``bridge``.
        main: id of the passage that the question is asked about and that a program may always show, as IIRC has it; the
            title of that page, where it is several passages.

    Example:
        >>> from hoptimizer.eval import Question
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"], passages=["curie"])
        >>> question.to_dspy().inputs().toDict()
        {'question': 'Where was Marie Curie born?'}
    """

    id: Text
    question: Text
    answers: Annotated[list[Text], Field(min_length=1)]
    # Made by a function: Pydantic copies a list deeply, which takes longer than all else about a question.
    passages: list[Text] = Field(default_factory=list)
    hops: list[Hop] = Field(default_factory=list)
    rationale: Text | None = None
    type: Text | None = None
    # Left out where it is not known, so that data sets without it keep their digest.
    main: Text | None = Field(default=None, exclude_if=lambda main: main is None)

    @property
    def asked(self) -> dict[str, str]:
        """What a program is asked: the ``question`` and, where there is one, the ``main`` passage."""
        return {"question": self.question} | ({"main": self.main} if self.main else {})

    def to_dspy(self) -> "dspy.Example":
        """The question as a ``dspy.Example`` whose input is ``question``; ``answer`` is the first of ``answers``."""
        import dspy  # imported here: it takes a second, and reading data does not need it

        return dspy.Example(
            id=self.id,
            question=self.question,
            answers=self.answers,
            answer=self.answers[0],
            passages=self.passages,
            hops=self.hops,
            rationale=self.rationale,
            type=self.type,
            main=self.main,
        ).with_inputs(*self.asked)


def id_of(text: str) -> str:
    """The id of a question that has none: the start of its text's SHA-256, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
