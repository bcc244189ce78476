"""Self-RAG: retrieval, generation and critique as decisions of their own (Asai et al. 2024)."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import dspy
from pydantic import Field

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import make_reader, read
from hoptimizer.programs.steps.knowing import known_answer
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Answer, Relevance, SelfKnowledge, Support, Usefulness

Weight = Annotated[float, Field(ge=0)]

# What the decisions are worth (section 3.3); without the tokens' probabilities that the paper weights them by.
_SUPPORT = {"fully": 1.0, "partially": 0.5, "no": 0.0}
_USEFUL = {"completely": 1.0, "mostly": 0.5, "partly": 0.0, "hardly": -0.5, "not at all": -1.0}


@dataclass(frozen=True)
class Candidate:
    """An answer from one passage.

    Attributes:
        answer: the answer.
        score: the weighted sum of what the decisions on it are worth.
    """

    answer: str
    score: float


class SelfRAG(Program):
    """Decides whether to retrieve, answers from each passage, and gives the answer that its critique puts first.

    The four decisions, which the paper's model writes as reflection tokens, are typed steps (table 1): retrieve?
    relevant? supported? useful?

    Args:
        retriever: where passages come from.
        k: passages that are retrieved, each of which gives an answer.
        always_retrieve: retrieve for every question, without the first decision.
        relevant_weight: weight of the passage's relevance (equation 4).
        supported_weight: weight of whether the passage supports the answer.
        useful_weight: weight of the answer's usefulness.
        reader: answers from each passage: ``direct`` at once, ``cot`` or ``phrase`` with a chain of thought.

    Example:
        >>> import dspy
        >>> from hoptimizer.models import LMSettings, build_adapter, build_lm
        >>> from hoptimizer.programs import SelfRAG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> program = SelfRAG(BM25Retriever(corpus), k=1, always_retrieve=True)
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=32))
        >>> with dspy.context(lm=lm, adapter=build_adapter()):
        ...     prediction = program(question="Where was Marie Curie born?")
        >>> [record.step for record in prediction.steps]
        ['retrieve', 'relevance', 'reader', 'support', 'usefulness']
    """

    step_names: ClassVar[tuple[str, ...]] = (
        "self_knowledge",
        "closed_book",
        "relevance",
        "reader",
        "support",
        "usefulness",
    )

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        always_retrieve: bool = False,
        relevant_weight: Weight = 1.0,
        supported_weight: Weight = 1.0,
        useful_weight: Weight = 0.5,
        reader: Literal["direct", "cot", "phrase"] = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.relevant_weight = relevant_weight
        self.supported_weight = supported_weight
        self.useful_weight = useful_weight
        self.self_knowledge = None if always_retrieve else dspy.Predict(SelfKnowledge)
        self.closed_book = None if always_retrieve else dspy.Predict(Answer)
        self.relevance = dspy.Predict(Relevance)
        self.reader = make_reader(reader, passages=True)
        self.support = dspy.Predict(Support)
        self.usefulness = dspy.Predict(Usefulness)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        if self.self_knowledge and (known := await known_answer(self, question)) is not None:
            return known, []
        passages = await self.retrieve(question)
        candidates = await gather_steps(partial(self.candidate, question, passage) for passage in passages)
        # Of equal ones the first, whose passage the retriever put first.
        best = max(candidates, key=lambda candidate: candidate.score, default=Candidate("", 0.0))
        return best.answer, passages

    async def candidate(self, question: str, passage: Passage) -> Candidate:
        """The answer from one passage, with its score; one that can't be understood is last."""
        judge = partial(self.step, "relevance", question=question, passage=passage)
        works: list[Callable[[], Coroutine[Any, Any, Any]]] = [judge, partial(self.criticized, question, passage)]
        judged, (answer, support) = await gather_steps(works)
        return Candidate(answer, self.relevant_weight * (judged.relevant == "yes") + support)

    async def criticized(self, question: str, passage: Passage) -> tuple[str, float]:
        """The answer from one passage, with what its support and its use add to the weighted sum of equation 4.

        A decision that can't be understood is worth nothing.
        """
        if not (answer := await read(self, question, [passage])):
            return "", float("-inf")
        inputs: dict[str, Any] = {"question": question, "candidate": answer}
        supported, useful = await gather_steps(
            (
                partial(self.step, "support", passage=passage, **inputs),
                partial(self.step, "usefulness", **inputs),
            )
        )
        return answer, (
            self.supported_weight * _SUPPORT.get(supported.supported, 0.0)
            + self.useful_weight * _USEFUL.get(useful.useful, 0.0)
        )
