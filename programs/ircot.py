"""IRCoT: retrieval interleaved with chain-of-thought reasoning (Trivedi et al. 2023)."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import dspy
from pydantic import Field

from hoptimizer.common.text import sentences
from hoptimizer.programs.collection import Collection
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, answer_of, make_reader, read, stated_answer
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import NextSentence, NextThought

Positive = Annotated[int, Field(ge=1)]

# Arithmetic has spaces around its operator, and says what it comes to: "1912 + 4 = 1916". Years, dates and model
# numbers with hyphens are facts.
_INFERENCE = re.compile(r"\s*(thus|so|therefore|hence|that is)\b|.*\d\s+[-+*/×÷−]\s+\d.*=", re.IGNORECASE | re.DOTALL)
_INTERROGATIVES = re.compile(r"\b(who|whom|whose|what|which|when|where|why|how)\b\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Thought:
    """A sentence of the chain of thought.

    Attributes:
        sentence: the sentence; empty where none came.
        answer: the answer, where the chain ends here because it is known.
    """

    sentence: str
    answer: str | None


class IRCoT(Program):
    """Retrieves with each thought, and thinks with what was retrieved (IRCoT, section 3.1).

    Args:
        retriever: where passages come from.
        k: passages per retrieval.
        max_steps: the most thoughts.
        max_passages: the most passages that are collected.
        thoughts: how a thought ends the chain: ``typed`` says in fields of their own whether the facts suffice, and
            what the answer is; ``phrase`` is the sentence alone, which ends the chain by "answer is:" (the paper's
            protocol).
        reader: ``cot``, ``phrase`` or ``direct`` reads the collection; ``none`` takes the answer from the chain
            (table 6).
        skip_inference: search with the last thought that is not mere inference ("Thus …", arithmetic), or with the
            question where there is none; off: search with the last thought, whatever it is.
        drop_interrogatives: remove who, what, which and the like from the query, as the paper's code does; that finds
            as much with BM25, and less with ColBERT, which reads whole sentences (docs/log.md).
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
        ...     {"next_thought": "Her birthplace is Warsaw.", "enough": "no", "final_answer": ""},
        ...     {"next_thought": "Warsaw lies on it.", "enough": "yes", "final_answer": "the Vistula"},
        ... ]
        >>> program = IRCoT(BM25Retriever(corpus), k=1, reader="direct")
        >>> with dspy.context(lm=DummyLM([*thoughts, {"answer": "the Vistula"}])):
        ...     prediction = program(question="Which river flows through the city where Marie Curie was born?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('the Vistula', ['curie', 'warsaw'])
        >>> [record.step for record in prediction.steps]
        ['retrieve', 'reason', 'retrieve', 'reason', 'reader']
    """

    step_names: ClassVar[tuple[str, ...]] = ("reason", "reader")

    def __init__(
        self,
        retriever: Retriever,
        k: int = 4,
        max_steps: Positive = 8,
        max_passages: Positive = 15,
        thoughts: Literal["typed", "phrase"] = "typed",
        reader: ReaderKind = "cot",
        skip_inference: bool = True,
        drop_interrogatives: bool = False,
        skip_words: Positive = 600,
        cut_words: Positive = 350,
        duplicate_ratio: Annotated[float, Field(gt=0, le=100)] = 90,
    ) -> None:
        super().__init__(retriever, k)
        self.max_steps = max_steps
        self.max_passages = max_passages
        self.skip_inference = skip_inference
        self.drop_interrogatives = drop_interrogatives
        self.skip_words = skip_words
        self.cut_words = cut_words
        self.duplicate_ratio = duplicate_ratio
        self.reason = dspy.Predict(NextThought if thoughts == "typed" else NextSentence)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        collection = Collection(self.max_passages, self.skip_words, self.cut_words, self.duplicate_ratio)
        collection.add(await self.retrieve(self.query(question, [])))
        chain: list[str] = []
        answer = None
        while answer is None and len(chain) < self.max_steps:
            thought = await self.think(question, collection.passages, chain)
            # A repeated thought finds nothing new, and would come again and again.
            if not thought.sentence or thought.sentence in chain:
                break
            chain.append(thought.sentence)
            answer = thought.answer
            if answer is None and len(chain) < self.max_steps:
                collection.add(await self.retrieve(self.query(question, chain)))
        if self.reader is not None:
            return await read(self, question, collection.passages), collection.passages
        return answer or answer_of(chain[-1] if chain else ""), collection.passages

    async def think(self, question: str, passages: list[Passage], chain: list[str]) -> Thought:
        """The next sentence of the chain; what the model says beyond it is dropped."""
        prediction = await self.step("reason", context=passages, question=question, thoughts=" ".join(chain))
        if "enough" in prediction:
            known = prediction.final_answer if prediction.enough == "yes" else None
            return Thought(_first_sentence(prediction.next_thought), known)
        sentence = _first_sentence(prediction.thought)
        return Thought(sentence, stated_answer(sentence))

    def query(self, question: str, chain: list[str]) -> str:
        """The query to search with next."""
        query = question
        if chain:
            stated = [t for t in chain if not (self.skip_inference and _INFERENCE.match(t))]
            query = stated[-1] if stated else question
        if self.drop_interrogatives:
            query = _INTERROGATIVES.sub("", query).strip() or query
        return query


def _first_sentence(text: str | None) -> str:
    return next(iter(sentences(text or "")), "")
