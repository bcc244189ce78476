"""Published formats of data sets: one model a format, which turns an item into a question.

Here are what all have in common, MuSiQue (Trivedi et al., 2022) and StrategyQA (Geva et al., 2021). Fields that nothing
here needs are ignored.
"""

import html
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from hoptimizer.eval.datasets.pool import Pool
from hoptimizer.eval.datasets.question import AnyText, Hop, Question, Text

NO_ANSWER = "unanswerable"
"""The answer of questions that have none, until the importer is told another."""

_ENTITY = re.compile(r"&#?\w+;")


def without_entities(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Texts, however deep in lists and objects, with HTML's entities as the characters that they stand for.

    Without its semicolon none is one: a URL may have ``&copy=1``.

    Example:
        >>> from hoptimizer.eval.datasets.published_formats import without_entities
        >>> without_entities(["Simon &amp; Simon", "a=1&copy=1"])
        ['Simon & Simon', 'a=1&copy=1']
    """
    if isinstance(value, str):
        return _ENTITY.sub(lambda entity: html.unescape(entity[0]), value)
    if isinstance(value, dict):
        return {key: without_entities(one) for key, one in value.items()}
    return [without_entities(one) for one in value] if isinstance(value, list | tuple) else value


class QaPair(BaseModel):
    """A single-hop question with its answer."""

    question: Text
    answer: Text


class Decomposition(BaseModel):
    """2WikiMultihopQA's decompositions, which are published beside the questions."""

    id: Text = Field(alias="_id")
    qa_pairs: list[QaPair]
    explanation: Text | None = None


class Contexts(BaseModel):
    """An item without its annotations, as published test sets have them: what is of use is its paragraphs."""

    @abstractmethod
    def texts(self) -> Iterator[tuple[str, str]]:
        """The titles and texts of the paragraphs."""


class Published(BaseModel):
    """An item of a published file.

    Attributes:
        under: the key that has the items, where a file is one object.
        unlabelled: the model of an item without annotations; ``None`` where such items have no paragraphs.
    """

    model_config = ConfigDict(frozen=True)

    under: ClassVar[str | None] = None
    unlabelled: ClassVar[type[Contexts] | None] = None

    @classmethod
    def items(cls, fields: dict[str, Any], file: Path | None) -> "Iterator[tuple[type[Published], Any]]":
        """The items of a row, each with its model; by default the row is one.

        Args:
            fields: of the row.
            file: that has the row, if it is from a file.
        """
        yield cls, fields

    @property
    def has_answer(self) -> bool:
        """Whether the data set says that the question can be answered."""
        return True

    @property
    def marked(self) -> Sequence[str]:
        """The sentences that the data set marks as supporting."""
        return ()

    @abstractmethod
    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question | None:
        """The item as a question, its paragraphs handed to ``pool``; ``None`` where it is to be left out.

        Raises:
            ValueError: the paragraphs that it needs are not there; the message is one line.
        """


class MusiqueText(BaseModel):
    """A paragraph of MuSiQue's test set."""

    title: AnyText
    paragraph_text: AnyText


class MusiqueContexts(Contexts):
    """An item of MuSiQue's test set."""

    paragraphs: Annotated[list[MusiqueText], Field(min_length=1)]

    def texts(self) -> Iterator[tuple[str, str]]:
        """The titles and texts of the paragraphs."""
        return ((paragraph.title, paragraph.paragraph_text) for paragraph in self.paragraphs)


class MusiqueParagraph(MusiqueText):
    """A paragraph of a MuSiQue item."""

    idx: int
    is_supporting: bool


class MusiqueStep(BaseModel):
    """A step of a MuSiQue item's chain; ``#1`` in its question stands for the first step's answer."""

    question: Text
    answer: Text
    paragraph_support_idx: int | None = None


class MusiqueItem(Published):
    """An item of MuSiQue-Ans or MuSiQue-Full, which marks the items whose paragraphs lack a part of the chain."""

    unlabelled = MusiqueContexts

    id: Text
    question: Text
    answer: Text
    answer_aliases: list[AnyText] = []
    answerable: bool = True
    paragraphs: Annotated[list[MusiqueParagraph], Field(min_length=1)]
    question_decomposition: list[MusiqueStep] = []

    @property
    def has_answer(self) -> bool:
        """Whether its paragraphs have the answer."""
        return self.answerable

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; its type is the shape of its chain, such as ``3hop1``."""
        ids = {paragraph.idx: pool(paragraph.title, paragraph.paragraph_text) for paragraph in self.paragraphs}
        gold = dict.fromkeys(id for p in self.paragraphs if p.is_supporting and (id := ids[p.idx]))
        shape, _, rest = self.id.partition("__")
        return Question(
            id=self.id,
            question=self.question,
            answers=with_aliases([self.answer], self.answer_aliases),
            passages=list(gold),
            hops=self._hops(ids),
            type=shape if rest else None,
        )

    def _hops(self, ids: dict[int, str | None]) -> list[Hop]:
        hops: list[Hop] = []
        for step in self.question_decomposition:
            question = _fill_in(_asked(step.question), [hop.answer for hop in hops])
            passage = None if step.paragraph_support_idx is None else ids.get(step.paragraph_support_idx)
            hops.append(Hop(question=question, answer=step.answer, passage=passage))
        return hops


def with_aliases(answers: list[str], aliases: list[str]) -> list[str]:
    """The answers and after them their aliases, each once; a published alias may be blank."""
    return list(dict.fromkeys([*answers, *(stripped for alias in aliases if (stripped := alias.strip()))]))


def _asked(step: str) -> str:
    """A step as a question: many of MuSiQue's are triples of Wikidata, such as ``#1 >> place of birth``."""
    subject, separator, relation = (part.strip() for part in step.partition(">>"))
    if not separator:
        return step
    if relation.startswith("located in"):
        return f"Where is {subject} located?"
    if team := re.fullmatch(r"member of (.+)", relation):
        return f"Of which {team[1]} is {subject} a member?"
    if re.match(r"\w+s\b(?! of\b)", relation):
        return f"What is it that {subject} {relation}?"
    if re.search(r"\b(of|at|to|by|with)$", relation):
        return f"What is it that {subject} is {relation}?"
    return f"What is the {relation} of {subject}?"


def _fill_in(question: str, answers: list[str]) -> str:
    def answer(reference: re.Match[str]) -> str:
        number = int(reference[1])
        return answers[number - 1] if 0 < number <= len(answers) else reference[0]

    return re.sub(r"#(\d+)", answer, question).replace(" ?", "?")


class StrategyItem(Published):
    """An item of StrategyQA: a yes/no question, and the facts that answer it together.

    Its decomposition has no answers to the steps, so there are no hops.
    """

    id: Text = Field(alias="qid")
    question: Text
    answer: bool
    term: AnyText = ""
    facts: list[Text] = []

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; its facts are passages, titled after what the question is about."""
        return Question(
            id=self.id,
            question=self.question,
            answers=["yes", "true"] if self.answer else ["no", "false"],
            passages=list(dict.fromkeys(id for fact in self.facts if (id := pool(self.term, fact)))),
        )
