"""ITER-RETGEN: retrieval with what was generated, and generation again (Shao et al. 2023)."""

from typing import Annotated, Literal

from pydantic import Field

from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import make_reader, read_aloud
from hoptimizer.retrieval import Passage, Retriever


class IterRetGen(Program):
    """Retrieves with the question and all that it said the last time, and reads again (section 3.1).

    Each round reads what it has found itself, and nothing of earlier rounds.

    Args:
        retriever: where passages come from.
        k: passages that each round finds and reads.
        rounds: how often it retrieves and reads (the paper's T). Where nothing was said, nothing new can be found, and
            no further round follows.
        reader: ``cot`` or ``phrase`` says a chain of thought, which is searched with as a whole; ``direct`` an answer
            alone.
        keep: which passages count as found: those of the ``last`` round, which its answer is read from, or of ``all``,
            as where EfficientRAG's paper measures recall.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import IterRetGen
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> warsaw = Passage("warsaw", "Warsaw", "It lies on the Vistula, the longest river of Poland.")
        >>> said = [
        ...     {"reasoning": "Warsaw lies on the longest river of Poland.", "answer": "the Oder"},
        ...     {"reasoning": "Warsaw lies on the Vistula.", "answer": "the Vistula"},
        ... ]
        >>> program = IterRetGen(BM25Retriever(Corpus([curie, warsaw])), k=1)
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = program(question="Which river flows through Marie Curie's place of birth?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('the Vistula', ['warsaw'])
        >>> [record.step for record in prediction.steps]
        ['retrieve', 'reader', 'retrieve', 'reader']
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        rounds: Annotated[int, Field(ge=1)] = 2,
        reader: Literal["direct", "cot", "phrase"] = "cot",
        keep: Literal["last", "all"] = "last",
    ) -> None:
        super().__init__(retriever, k)
        self.rounds = rounds
        self.keep = keep
        self.reader = make_reader(reader, passages=True)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        query, answer = question, ""
        found: list[Passage] = []
        for number in range(1, self.rounds + 1):
            passages = await self.retrieve(query)
            found = each_once([*found, *passages])
            said = await read_aloud(self, question, passages)
            answer = said.answer or answer  # one that can't be understood does not undo the one before
            if number == self.rounds or not said.text:
                break
            # The question comes first: retrievers cut queries that are too long at the end.
            query = f"{question} {said.text}"
        return answer, found if self.keep == "all" else passages
