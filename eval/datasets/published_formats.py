"""Published formats of question answering data sets: one model a format, which turns an item into a question.

HotpotQA (Yang et al., 2018; distractor setting), 2WikiMultihopQA (Ho et al., 2020), MuSiQue-Ans (Trivedi et al.,
2022), StrategyQA (Geva et al., 2021), and lines of question and answers as NQ-open (Lee et al., 2019) has them and
TriviaQA (Joshi et al., 2017) is passed around in. Fields that nothing here needs are ignored.
"""

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rapidfuzz import fuzz, process
from rapidfuzz.utils import default_process

from hoptimizer.eval.datasets.question import AnyText, Hop, Question, Text

# Takes a paragraph's title and text into the corpus and gives its id; None where it has no text.
Pool = Callable[[str, str], str | None]


class QaPair(BaseModel):
    """A single-hop question with its answer."""

    question: Text
    answer: Text


class Decomposition(BaseModel):
    """2WikiMultihopQA's decompositions, which are published beside the questions."""

    id: Text = Field(alias="_id")
    qa_pairs: list[QaPair]
    explanation: Text | None = None


class Aliases(BaseModel):
    """A line of 2WikiMultihopQA's ``id_aliases.json``: the other names of an entity of Wikidata."""

    id: Text = Field(alias="Q_id")
    aliases: list[AnyText]
    demonyms: list[AnyText]

    @property
    def names(self) -> list[str]:
        """All of them: the published evaluation accepts demonyms, too."""
        return [*self.aliases, *self.demonyms]


class Published(BaseModel):
    """An item of a published file."""

    model_config = ConfigDict(frozen=True)

    @abstractmethod
    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question | None:
        """The item as a question, its paragraphs handed to ``pool``; ``None`` where it has no answer to find."""


class Fact(NamedTuple):
    """A triple of 2WikiMultihopQA's evidences."""

    subject: Text
    relation: Text
    object: Text


class HotpotItem(Published):
    """An item of HotpotQA, whose sentences carry their own leading spaces."""

    id: Text = Field(alias="_id")
    question: Text
    answer: Text
    type: Text | None = None
    context: Annotated[list[tuple[Text, list[AnyText]]], Field(min_length=1)]
    supporting_facts: Annotated[list[tuple[AnyText, int]], Field(min_length=1)]

    @model_validator(mode="after")
    def _facts_in_context(self) -> Self:
        titles = {title for title, _ in self.context}
        for title, _ in self.supporting_facts:
            if title.strip() not in titles:
                raise ValueError(
                    f"'supporting_facts' names {title!r}, which 'context' lacks; import the file whose contexts "
                    "hold the supporting paragraphs (HotpotQA calls it distractor)"
                )
        return self

    def join(self, sentences: list[str]) -> str:
        """A paragraph's sentences as one text."""
        return "".join(sentences)

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; its hops and rationale are the decomposition's, where there is one.

        Without one, the rationale is made of the supporting sentences.
        """
        ids: dict[str, str] = {}
        for title, sentences in self.context:
            if id := pool(title, self.join(sentences)):
                ids.setdefault(title, id)
        facts = dict.fromkeys(title.strip() for title, _ in self.supporting_facts)  # in order, each once
        gold = {title: ids[title] for title in facts if title in ids}
        return Question(
            id=self.id,
            question=self.question,
            answers=[self.answer],
            passages=list(gold.values()),
            hops=self.hops(gold, decomposition.qa_pairs if decomposition else []),
            rationale=decomposition.explanation if decomposition else self.facts(),
            type=self.type,
        )

    def facts(self) -> str:
        """The supporting sentences, each after its paragraph's title, and the answer.

        The published order says nothing about the chain. It begins with a paragraph that the question names, and ends
        with one that has the answer.
        """
        texts = {(title, number): text for title, some in self.context for number, text in enumerate(some)}
        places = [(title.strip(), number) for title, number in self.supporting_facts]
        found = [(title, texts[title, number].strip()) for title, number in places if (title, number) in texts]
        found.sort(key=lambda fact: (fact[0].lower() not in self.question.lower(), self.answer in fact[1]))
        return " ".join([*(f"{title}: {text}" for title, text in found if text), f"So the answer is: {self.answer}."])

    def hops(self, gold: dict[str, str], pairs: list[QaPair]) -> list[Hop]:
        """The chain, where it is known.

        Args:
            gold: ids of the supporting paragraphs by their titles.
            pairs: of the decomposition.
        """
        return []


class WikiItem(HotpotItem):
    """An item of 2WikiMultihopQA: HotpotQA's format, with sentences that were stripped, and a triple for each hop.

    Newer files give the answer's entity in Wikidata, under which ``id_aliases.json`` has its aliases.
    """

    evidences: list[Fact] = []
    answer_id: Text | None = None

    def join(self, sentences: list[str]) -> str:
        """A paragraph's sentences as one text."""
        return " ".join(sentences)

    def hops(self, gold: dict[str, str], pairs: list[QaPair]) -> list[Hop]:
        """A hop for each triple: its answer is the object, its passage the one that is titled after the subject."""
        asked = [pair.question for pair in pairs]
        if len(asked) != len(self.evidences):
            asked = [f"What is the {fact.relation} of {fact.subject}?" for fact in self.evidences]
        return [
            Hop(question=question, answer=fact.object, passage=_titled(fact.subject, gold))
            for question, fact in zip(asked, self.evidences, strict=True)
        ]


def _titled(subject: str, gold: dict[str, str]) -> str | None:
    """The passage whose title is most like a subject; titles tell namesakes apart in brackets."""
    titles = {title: re.sub(r" \(.*\)$", "", title) for title in gold}
    best = process.extractOne(subject, titles, scorer=fuzz.token_set_ratio, processor=default_process)
    return gold[best[2]] if best else None


class MusiqueParagraph(BaseModel):
    """A paragraph of a MuSiQue item."""

    idx: int
    title: AnyText
    paragraph_text: AnyText
    is_supporting: bool


class MusiqueStep(BaseModel):
    """A step of a MuSiQue item's chain; ``#1`` in its question stands for the first step's answer."""

    question: Text
    answer: Text
    paragraph_support_idx: int | None = None


class MusiqueItem(Published):
    """An item of MuSiQue-Ans. Items that MuSiQue-Full marks as unanswerable become no question."""

    id: Text
    question: Text
    answer: Text
    answer_aliases: list[AnyText] = []
    answerable: bool = True
    paragraphs: Annotated[list[MusiqueParagraph], Field(min_length=1)]
    question_decomposition: list[MusiqueStep] = []

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question | None:
        """The item as a question; its type is the shape of its chain, such as ``3hop1``."""
        if not self.answerable:
            return None
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
            question = _fill_in(step.question, [hop.answer for hop in hops])
            passage = None if step.paragraph_support_idx is None else ids.get(step.paragraph_support_idx)
            hops.append(Hop(question=question, answer=step.answer, passage=passage))
        return hops


def with_aliases(answers: list[str], aliases: list[str]) -> list[str]:
    """The answers and after them their aliases, each once; a published alias may be blank."""
    return list(dict.fromkeys([*answers, *(stripped for alias in aliases if (stripped := alias.strip()))]))


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


class OpenItem(Published):
    """A question with its answers, without paragraphs."""

    question: Text
    answer: Annotated[list[Text], Field(min_length=1)]

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; its id is made of its words."""
        id = hashlib.sha256("\n".join([self.question, *self.answer]).encode()).hexdigest()[:16]
        return Question(id=id, question=self.question, answers=list(dict.fromkeys(self.answer)))


FORMATS: dict[str, type[Published]] = {
    "hotpotqa": HotpotItem,
    "2wikimultihopqa": WikiItem,
    "musique": MusiqueItem,
    "strategyqa": StrategyItem,
    "nq": OpenItem,
    "triviaqa": OpenItem,
}
