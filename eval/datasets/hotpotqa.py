"""The published formats of HotpotQA (Yang et al., 2018), distractor and fullwiki, and of 2WikiMultihopQA (Ho et al.,
2020), which is HotpotQA's with a triple for each hop.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, Field, model_validator
from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from hoptimizer.common.text import find
from hoptimizer.eval.datasets.pool import Pool
from hoptimizer.eval.datasets.published_formats import (
    Contexts,
    Decomposition,
    Published,
    QaPair,
    without_entities,
)
from hoptimizer.eval.datasets.question import AnyText, Hop, Question, Text


class Aliases(BaseModel):
    """A line of 2WikiMultihopQA's ``id_aliases.json``: the other names of an entity of Wikidata."""

    id: Text = Field(alias="Q_id")
    aliases: list[AnyText]
    demonyms: list[AnyText]

    @property
    def names(self) -> list[str]:
        """All of them: the published evaluation accepts demonyms, too."""
        return [*self.aliases, *self.demonyms]


class Fact(NamedTuple):
    """A triple of 2WikiMultihopQA's evidences."""

    subject: Text
    relation: Text
    object: Text


class HotpotContexts(Contexts):
    """An item of HotpotQA's test set, whose sentences carry their own leading spaces, and its texts HTML's entities."""

    separator: ClassVar[str] = ""  # between sentences

    context: Annotated[list[tuple[Text, list[AnyText]]], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _without_entities(cls, fields: Any) -> Any:  # noqa: ANN401 - whatever a row holds
        return without_entities(fields)

    def texts(self) -> Iterator[tuple[str, str]]:
        """The titles and texts of the paragraphs."""
        return ((title, self.separator.join(sentences)) for title, sentences in self.context)


class HotpotItem(HotpotContexts, Published):
    """An item of HotpotQA in the distractor setting: its contexts have the supporting paragraphs."""

    unlabelled = HotpotContexts

    id: Text = Field(alias="_id")
    question: Text
    answer: Text
    type: Text | None = None
    supporting_facts: Annotated[list[tuple[AnyText, int]], Field(min_length=1)]

    @model_validator(mode="after")
    def _facts_in_context(self) -> Self:
        titles = {title for title, _ in self.context}
        for title in self.gold_titles:
            if title not in titles:
                self.refuse(title)
        return self

    def refuse(self, title: str) -> None:
        """Say that the contexts lack a supporting paragraph.

        Raises:
            ValueError: always, unless a subclass finds the paragraph elsewhere.
        """
        raise ValueError(
            f"'supporting_facts' names {title!r}, which 'context' lacks; import the file whose contexts hold the "
            "supporting paragraphs (HotpotQA calls it distractor), or as fullwiki with --corpus"
        )

    @property
    def gold_titles(self) -> list[str]:
        """The titles of the supporting paragraphs in order, each once."""
        return list(dict.fromkeys(title.strip() for title, _ in self.supporting_facts))

    @property
    def marked(self) -> Sequence[str]:
        """The supporting sentences."""
        return [text for _, text in self._facts()]

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; its hops and rationale are the decomposition's, where there is one.

        Without one, the rationale is made of the supporting sentences.
        """
        ids: dict[str, str] = {}
        for title, text in self.texts():
            if id := pool(title, text):
                ids.setdefault(title, id)
        gold = self.gold(ids, pool)
        return Question(
            id=self.id,
            question=self.question,
            answers=[self.answer],
            passages=list(gold.values()),
            hops=self.hops(gold, decomposition.qa_pairs if decomposition else []),
            rationale=decomposition.explanation if decomposition else self.facts(),
            type=self.type,
        )

    def gold(self, ids: Mapping[str, str], pool: Pool) -> dict[str, str]:
        """The ids of the supporting paragraphs by their titles.

        Args:
            ids: of the item's own paragraphs.
            pool: what else there is.
        """
        return {title: ids[title] for title in self.gold_titles if title in ids}

    def facts(self) -> str:
        """The supporting sentences, each after its paragraph's title, and the answer.

        The published order says nothing about the chain. It begins with a paragraph that the question names, and ends
        with one that has the answer.
        """
        found = sorted(
            self._facts(), key=lambda fact: (fact[0].lower() not in self.question.lower(), self.answer in fact[1])
        )
        return " ".join([*(f"{title}: {text}" for title, text in found), f"So the answer is: {self.answer}."])

    def _facts(self) -> list[tuple[str, str]]:
        """The titles and texts of the supporting sentences that the contexts have."""
        texts = {(title, number): text for title, some in self.context for number, text in enumerate(some)}
        places = ((title.strip(), number) for title, number in self.supporting_facts)
        found = ((place[0], texts.get(place, "").strip()) for place in places)
        return [(title, text) for title, text in found if text]

    def hops(self, gold: dict[str, str], pairs: list[QaPair]) -> list[Hop]:
        """The chain, where it is known.

        Args:
            gold: ids of the supporting paragraphs by their titles.
            pairs: of the decomposition.
        """
        return []


class FullwikiItem(HotpotItem):
    """An item of HotpotQA in the fullwiki setting: the supporting paragraphs are found by their titles in the corpus.

    Its contexts are what a retriever found, and may lack them.
    """

    def refuse(self, title: str) -> None:
        """Nothing is wrong with contexts that lack a supporting paragraph."""

    def gold(self, ids: Mapping[str, str], pool: Pool) -> dict[str, str]:
        """The ids of the supporting paragraphs by their titles.

        Raises:
            ValueError: the corpus has no page of such a title.
        """
        found = dict(super().gold(ids, pool))
        for title in self.gold_titles:
            if title not in found:
                paragraphs = pool.paragraphs(title)
                if not paragraphs:
                    raise ValueError(
                        f"'supporting_facts' names {title!r}, which neither 'context' nor the corpus has; give the "
                        "published paragraphs of Wikipedia with --corpus"
                    )
                having = (id for id, text in paragraphs.items() if find(text, self.answer))
                found[title] = next(having, next(iter(paragraphs)))
        return {title: found[title] for title in self.gold_titles}


class WikiContexts(HotpotContexts):
    """An item of 2WikiMultihopQA's test set: HotpotQA's format, with sentences that were stripped."""

    separator: ClassVar[str] = " "


class WikiItem(HotpotItem):
    """An item of 2WikiMultihopQA: HotpotQA's format, with sentences that were stripped, and a triple for each hop.

    Newer files give the answer's entity in Wikidata, under which ``id_aliases.json`` has its aliases.
    """

    separator: ClassVar[str] = " "
    unlabelled = WikiContexts

    evidences: list[Fact] = Field(default=[])
    answer_id: Text | None = None

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
    asked = default_process(subject)

    def alike(title: str) -> tuple[float, float]:
        name = default_process(re.sub(r" \(.*\)$", "", title))
        # A name that holds all words of another one is as like as that one itself in the first of these.
        return fuzz.token_set_ratio(asked, name), fuzz.ratio(asked, name)

    return gold[max(gold, key=alike)] if gold else None
