"""EfficientRAG: retrieval in several hops without a language model (Zhuang et al. 2024)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import dspy
from pydantic import Field

from hoptimizer.common.text import find, folded, whole_names
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import LabelPassage, NextQuery
from hoptimizer.signatures.hopping import Tag

Merge = Literal["span", "passage", "query"]


@dataclass(frozen=True)
class LabelledPassage:
    """A passage that a query found, with its labels.

    Attributes:
        passage: the passage.
        tag: what becomes of it.
        useful: the phrases of it that help, in order.
        probability: how likely it is to be kept; 1 where the labeler does not tell.
    """

    passage: Passage
    tag: Tag
    useful: list[str]
    probability: float


class EfficientRAG(Program):
    """Labels what it finds, searches on with the labelled words, and reads once in the end (section 3.1).

    Its steps ``labeler`` and ``filter`` are for small models, which ``train_tagger`` trains, or for a language model
    that is named for the step; the default language model only reads. Without a labeler every passage that the question
    finds is read, and without a filter the labelled words are the next query.

    Args:
        retriever: where passages come from.
        k: passages per query; in a config ``retriever.k``.
        later_k: passages that a later query finds, or ``None`` for ``k``; fewer may do, because a query that names what
            it looks for finds it first.
        max_rounds: the most rounds of searching.
        max_queries: the most queries per round; those of the surest passages come first.
        queries: what makes a query of the next round: each ``span`` of labelled words, those of a ``passage``
            together, or those of all passages of a ``query`` together, as in the paper.
        whole_names: grow labelled words to the whole names that they are a part of.
        filter: let the filter write the next query; off: the labelled words are the next query.
        reader: reads the passages that were kept: ``direct``, ``cot``, ``phrase``, or ``none`` to score the
            retrieval alone.

    The preset ``paper`` has the settings of the paper, and of its published code where the paper leaves them open.

    Example:
        >>> from hoptimizer.programs import EfficientRAG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> async def labeler(inputs):  # in the place of a small model
        ...     helps = "Marie Curie" in inputs["passage"]
        ...     return {"tag": "continue", "useful": ["Warsaw"]} if helps else {"tag": "finish", "useful": []}
        >>> program = EfficientRAG(BM25Retriever(corpus), k=1, reader="none")
        >>> program.models["labeler"] = labeler
        >>> prediction = program(question="On which river does the city lie where Marie Curie was born?")
        >>> [passage.id for passage in prediction.passages]
        ['curie', 'warsaw']
    """

    step_names: ClassVar[tuple[str, ...]] = ("labeler", "filter", "reader")
    without: ClassVar[Mapping[str, str]] = {"labeler": "retrieves once"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "later_k": None,
            "max_rounds": 4,
            "max_queries": 1,
            "queries": "query",
            "whole_names": False,
            "filter": True,
            "reader": "direct",
        }
    }

    def __init__(
        self,
        retriever: Retriever,
        k: int = 10,
        later_k: Annotated[int, Field(ge=1)] | None = None,
        max_rounds: Annotated[int, Field(ge=1)] = 4,
        max_queries: Annotated[int, Field(ge=1)] = 4,
        queries: Merge = "span",
        whole_names: bool = True,
        filter: bool = True,
        reader: ReaderKind = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.later_k = later_k
        self.max_rounds = max_rounds
        self.max_queries = max_queries
        self.queries = queries
        self.whole_names = whole_names
        self.labeler = dspy.Predict(LabelPassage)
        self.filter = dspy.Predict(NextQuery) if filter else None
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages = await self.collect(question)
        return await read(self, question, passages), passages

    async def collect(self, question: str) -> list[Passage]:
        """All passages that are kept, in the order in which they were found."""
        if not self.has_own_model("labeler"):
            return await self.retrieve(question)
        pool: dict[str, Passage] = {}
        asked = {folded(question)}
        queries = [question]
        for number in range(self.max_rounds):
            k = self.k if number == 0 else self.later_k or self.k
            rounds = await gather_steps((partial(self.hop, query, k, pool, number) for query in queries), deeper=number)
            for labelled in rounds:
                pool |= {one.passage.id: one.passage for one in labelled if one.tag != "terminate"}
            wanted = list(self.wanted(queries, rounds)) if number + 1 < self.max_rounds else []
            written = await gather_steps((partial(self.next_query, *pair) for pair in wanted), deeper=number)
            new: dict[str, str] = {}
            for query in written:  # of those that say the same, the first has the surest passage
                if folded(query) not in asked:
                    new.setdefault(folded(query), query)
            queries = list(new.values())[: self.max_queries]
            if not queries:
                break
            asked |= set(map(folded, queries))
        return list(pool.values())

    async def hop(self, query: str, k: int, pool: dict[str, Passage], number: int) -> list[LabelledPassage]:
        """Search once, and label the passages that are not in the pool yet."""
        found = await self.retrieve(query, k=k)
        return await gather_steps(
            partial(self.label, query, passage, rank, number)
            for rank, passage in enumerate(found, 1)
            if passage.id not in pool
        )

    async def label(self, query: str, passage: Passage, rank: int, number: int) -> LabelledPassage:
        """Label a passage for a query; without a tag that can be understood it is left out."""
        # A small model may have learned what a place in the search is worth; a language model is asked about the text.
        search: dict[str, Any] = {"rank": rank, "round": number}
        place = {name: value for name, value in search.items() if name in self.extra_inputs("labeler")}
        said = await self.step("labeler", query=query, passage=passage, **place)
        probability = said.get("probability")
        return LabelledPassage(
            passage, said.tag or "terminate", said.useful or [], 1.0 if probability is None else probability
        )

    def wanted(self, queries: Sequence[str], rounds: Sequence[Sequence[LabelledPassage]]) -> Iterator[tuple[str, str]]:
        """For each query to come, what was asked and what is known of it now; the surest passages come first."""
        found = [(one, query) for query, labelled in zip(queries, rounds, strict=True) for one in labelled]
        found.sort(key=lambda pair: -pair[0].probability)
        known: dict[object, tuple[str, list[str]]] = {}
        for place, (one, query) in enumerate(found):
            for number, span in enumerate(self.known(one, query) if one.tag == "continue" else ()):
                keys: dict[Merge, object] = {"span": (place, number), "passage": place, "query": query}
                known.setdefault(keys[self.queries], (query, []))[1].append(span)
        for query, spans in known.values():
            yield query, " ".join(dict.fromkeys(spans))

    def known(self, one: LabelledPassage, query: str) -> list[str]:
        """The labelled words of a passage that its query does not name, or all of them where it names all."""
        spans = one.useful
        if self.whole_names:
            text = str(one.passage)
            places = [place for span in spans for place in find(text, span)[:1]]
            spans = [text[start:end] for start, end in whole_names(text, places)]
        spans = [span for span in dict.fromkeys(spans) if folded(span)]
        return [span for span in spans if not find(query, span)] or spans

    async def next_query(self, query: str, known: str) -> str:
        """The query of the next round: what the filter writes, or else what is known."""
        if self.filter is None or not self.has_own_model("filter"):
            return known
        return (await self.step("filter", query=query, known=known)).next_query or known
