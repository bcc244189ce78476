"""One decomposition, and retrieval for each of its parts (Decompose-R in EfficientRAG)."""

from functools import partial
from typing import ClassVar

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.collection import in_turn
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.programs.steps.splitting import split
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Decompose


class DecomposeRAG(Program):
    """Splits the question up, retrieves for all sub-questions together, and reads what they found (section 4.2).

    Args:
        retriever: where passages come from.
        k: passages that each sub-question finds.
        max_subquestions: the most sub-questions; further ones are dropped. If there are none, the question itself is
            searched with.
        max_passages: the most passages that are read: the best one of each sub-question, then the second best ones, and
            so on.
        reader: ``direct``, ``cot``, ``phrase``, or ``none`` to score the retrieval alone.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import DecomposeRAG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in 1867.")
        >>> corpus = Corpus([curie, Passage("tesla", "Nikola Tesla", "He was born in 1856.")])
        >>> parts = {"subquestions": '["When was Marie Curie born?", "When was Nikola Tesla born?"]'}
        >>> with dspy.context(lm=DummyLM([parts, {"answer": "Nikola Tesla"}])):
        ...     prediction = DecomposeRAG(BM25Retriever(corpus), k=1)(question="Who is older, Curie or Tesla?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('Nikola Tesla', ['curie', 'tesla'])
        >>> [record.step for record in prediction.steps]
        ['decompose', 'retrieve', 'retrieve', 'reader']
    """

    step_names: ClassVar[tuple[str, ...]] = ("decompose", "reader")

    def __init__(
        self,
        retriever: Retriever,
        k: int = 4,
        max_subquestions: Positive = 5,
        max_passages: Positive = 15,
        reader: ReaderKind = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.max_subquestions = max_subquestions
        self.max_passages = max_passages
        self.decompose = dspy.Predict(Decompose)
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        parts = await split(self, question, self.max_subquestions)
        queries = [part.text for part in parts] or [question]
        # One level deeper, since searches that run together are one round.
        found = await gather_steps((partial(self.retrieve, query) for query in queries), deeper=1)
        passages = in_turn(found, self.max_passages)
        return await read(self, question, passages), passages
