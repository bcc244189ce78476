"""IRCoT: retrieval interleaved with chain-of-thought reasoning (Trivedi et al. 2023)."""

import re
from functools import partial
from typing import Annotated, ClassVar, Literal

import dspy
from pydantic import Field

from hoptimizer.common.options import Positive
from hoptimizer.common.text import sentences
from hoptimizer.programs.collection import Collection
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import asked_for, normalized
from hoptimizer.programs.reader import ReaderKind, answer_of, declines, make_reader, read, stated_answer
from hoptimizer.programs.steps.pages import find_pages
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import FollowUp, NextSentence, NextThought, ProposeTitles

# Arithmetic has spaces around its operator, and says what it comes to: "1912 + 4 = 1916". Years, dates and model
# numbers with hyphens are facts.
_INFERENCE = re.compile(r"\s*(thus|so|therefore|hence|that is)\b|.*\d\s+[-+*/×÷−]\s+\d.*=", re.IGNORECASE | re.DOTALL)
_INTERROGATIVES = re.compile(r"\b(who|whom|whose|what|which|when|where|why|how)\b\s*", re.IGNORECASE)


class IRCoT(Program):
    """Retrieves with each thought, and thinks with what was retrieved (IRCoT, section 3.1).

    Args:
        retriever: where passages come from.
        k: passages that the question itself brings.
        later_k: passages that each later query adds to the collection; ``None``: the first ``k`` that it finds, as in
            the paper. What a thought leads to is found first among what is not there yet, or the query is a wrong one,
            whose other passages would take the place of better ones.
        max_steps: the most thoughts.
        max_passages: the most passages that are collected.
        thoughts: how a chain goes on and ends: ``typed`` asks after each thought, without the passages, whether the
            answer follows from the thoughts, and if not, what to look up, which is the next query; with ``phrase``, the
            thought itself is the query, and ends the chain by "answer is:" (the paper's protocol).
        reader: ``cot``, ``phrase`` or ``direct`` reads the collection; ``none`` takes the answer from the chain
            (table 6).
        fill: give the places that are left in the collection to the question's own further results, so that the reader
            has as many passages as it may; off: what the thoughts have found, as in the paper.
        skip_inference: where a thought is the query, it is the last one that is not mere inference ("Thus …",
            arithmetic); off: the last thought, whatever it is. A query that was asked before is not asked again.
        drop_interrogatives: remove who, what, which and the like from the query, as the paper's code does; that finds
            as much with BM25, and less with ColBERT, which reads whole sentences (docs/log.md).
        pages: for questions that are asked about a page, as those of IIRC are: this page is always kept, the model
            proposes the titles of so many others, and searches are scoped to the pages whose titles are nearest
            (appendix B, which takes 3); ``None``: no search is scoped.
        skip_words: passages of more words are left out.
        cut_words: passages are cut to so many words.
        duplicate_ratio: passages with title and text both this similar (0 to 100) to a collected one's are left out.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import IRCoT
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> thoughts = [
        ...     {"next_thought": "Marie Curie was born in Warsaw."},
        ...     {"look_up": "Which river does Warsaw lie on?", "enough": "no", "final_answer": ""},
        ... ]
        >>> program = IRCoT(BM25Retriever(corpus), k=1, max_passages=2, reader="direct")
        >>> with dspy.context(lm=DummyLM([*thoughts, {"answer": "the Vistula"}])):
        ...     prediction = program(question="Which river flows through the city where Marie Curie was born?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('the Vistula', ['curie', 'warsaw'])
        >>> [record.step for record in prediction.steps]
        ['retrieve', 'reason', 'follow_up', 'retrieve', 'reader']
    """

    step_names: ClassVar[tuple[str, ...]] = ("titles", "reason", "follow_up", "reader")

    def __init__(
        self,
        retriever: Retriever,
        k: int = 4,
        later_k: Positive | None = 1,
        max_steps: Positive = 8,
        max_passages: Positive = 15,
        thoughts: Literal["typed", "phrase"] = "typed",
        reader: ReaderKind = "cot",
        fill: bool = True,
        skip_inference: bool = True,
        drop_interrogatives: bool = False,
        pages: Positive | None = None,
        skip_words: Positive = 600,
        cut_words: Positive = 350,
        duplicate_ratio: Annotated[float, Field(gt=0, le=100)] = 90,
    ) -> None:
        super().__init__(retriever, k)
        self.later_k = later_k
        self.max_steps = max_steps
        self.max_passages = max_passages
        self.fill = fill
        self.skip_inference = skip_inference
        self.drop_interrogatives = drop_interrogatives
        self.pages = pages
        self.skip_words = skip_words
        self.cut_words = cut_words
        self.duplicate_ratio = duplicate_ratio
        self.titles = dspy.Predict(ProposeTitles) if pages else None
        self.reason = dspy.Predict(NextThought if thoughts == "typed" else NextSentence)
        self.follow_up = dspy.Predict(FollowUp) if thoughts == "typed" else None
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        collection = Collection(self.max_passages, self.skip_words, self.cut_words, self.duplicate_ratio)
        pages = await find_pages(self, question, self.pages)
        collection.passages += pages.pinned
        retrieve = partial(self.retrieve, titles=pages.titles)
        first = self._query(question)
        found = await retrieve(first, k=max(self.k, self.max_passages) if self.fill else self.k)
        collection.add(found[: self.k])
        chain: list[str] = []
        asked, answer = {"", normalized(first)}, None
        # What is thought beyond a full collection would reach no reader.
        while len(chain) < self.max_steps and not (self.reader is not None and collection.full):
            thought = await self.think(question, collection.passages, chain)
            # A repeated thought leads nowhere new, and would come again and again.
            if not thought or normalized(thought) in map(normalized, chain):
                break
            chain.append(thought)
            answer, queries = await self.go_on(question, chain)
            if answer is not None or (self.reader is None and len(chain) == self.max_steps):
                break
            if query := next((query for query in queries if normalized(query) not in asked), None):
                asked.add(normalized(query))
                collection.add(await retrieve(query, k=max(self.k, self.later_k or 0)), self.later_k)
        collection.add(found)
        if self.reader is not None:
            return await read(self, question, collection.passages), collection.passages
        return answer or answer_of(chain[-1] if chain else ""), collection.passages

    async def think(self, question: str, passages: list[Passage], chain: list[str]) -> str:
        """The next sentence of the chain, empty where none comes; what the model says beyond it is dropped."""
        said = " ".join(chain)
        if self.follow_up is None:
            prediction = await self.step("reason", context=passages, question=question, thoughts=said)
            return _first_sentence(prediction.thought)
        prediction = await self.step("reason", context=passages, question=question, known=said)
        return _first_sentence(prediction.next_thought)

    async def go_on(self, question: str, chain: list[str]) -> tuple[str | None, list[str]]:
        """The answer, if the chain has come to it, and what to search with otherwise, the best first."""
        stated = [thought for thought in chain if not (self.skip_inference and _INFERENCE.match(thought))]
        facts = [self._query(fact) for fact in stated[-1:]]
        if self.follow_up is None:
            return stated_answer(chain[-1]), facts
        prediction = await self.step("follow_up", question=question, facts=" ".join(chain))
        final = prediction.final_answer or ""
        known = prediction.enough == "yes" and not (final and declines(final))
        return final if known else None, [self._query(asked_for(prediction.look_up)), *facts]

    def _query(self, text: str) -> str:
        return (_INTERROGATIVES.sub("", text).strip() if self.drop_interrogatives else "") or text


def _first_sentence(text: str | None) -> str:
    return next(iter(sentences(text or "")), "")
