"""Self-RAG: retrieval, generation and critique as decisions of their own (Asai et al. 2024)."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import dspy
from pydantic import Field

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import make_reader, read_aloud
from hoptimizer.programs.steps.knowing import known_answer
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Answer, Relevance, SelfKnowledge, Support, Usefulness

Weight = Annotated[float, Field(ge=0)]

# What the choices of each decision are worth (section 3.3 and appendix A.3).
_WORTHS = {
    "relevance": {"yes": 1.0, "no": 0.0},
    "support": {"fully": 1.0, "partially": 0.5, "no": 0.0},
    "usefulness": {"completely": 1.0, "mostly": 0.5, "partly": 0.0, "hardly": -0.5, "not at all": -1.0},
}


@dataclass(frozen=True)
class Candidate:
    """An answer from one passage.

    Attributes:
        answer: the answer.
        score: its probability by token, and the weighted sum of what the decisions on it are worth (equations 3 and 4).
    """

    answer: str
    score: float


class SelfRAG(Program):
    """Decides whether to retrieve, answers from each passage, and gives the answer that its critique puts first.

    The four decisions, which the paper's model writes as reflection tokens, are typed steps (table 1): retrieve?
    relevant? supported? useful? Where the language model tells how likely its output is, the last three count by their
    probabilities, and so does the answer; else they count as a whole, and the answer does not. An answer's probability
    is the geometric mean of those of its tokens, as in the code of the paper, or longer answers would not count at all;
    a chain of thought before it is not part of it.

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
        >>> all(0 < record.outputs["probability"] <= 1 for record in prediction.steps[1:])
        True
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
        judge = partial(self.decision, "relevance", question=question, passage=passage)
        works: list[Callable[[], Coroutine[Any, Any, Any]]] = [judge, partial(self.criticized, question, passage)]
        relevant, (answer, rest) = await gather_steps(works)
        return Candidate(answer, self.relevant_weight * relevant + rest)

    async def criticized(self, question: str, passage: Passage) -> tuple[str, float]:
        """The answer from one passage, with its probability and what its support and its use add to the sum."""
        reading = await read_aloud(self, question, [passage], measured=True)
        if not reading.answer:
            return "", float("-inf")
        inputs: dict[str, Any] = {"question": question, "candidate": reading.answer}
        supported, useful = await gather_steps(
            (
                partial(self.decision, "support", passage=passage, **inputs),
                partial(self.decision, "usefulness", **inputs),
            )
        )
        likely = reading.probability or 0.0  # of no answer, where the model does not tell
        return reading.answer, likely + self.supported_weight * supported + self.useful_weight * useful

    async def decision(self, step: str, **inputs: Any) -> float:  # noqa: ANN401 - typed by its signature
        """What the model decides in one step is worth; one that can't be understood is worth nothing."""
        decided = await self.step(step, measured=True, **inputs)
        [field] = getattr(self, step).signature.output_fields
        # A small model chooses by its threshold, and tells how likely a yes is, whatever it chose.
        probability = None if step in self.models else decided.probability
        return expected_worth(_WORTHS[step], decided[field], probability)


def expected_worth(worths: Mapping[str, float], choice: str | None, probability: float | None) -> float:
    """The mean of what the choices of a decision are worth, each by its probability among them (equation 4).

    Models tell the probability of what they chose; the other choices have equal shares of the rest.

    Args:
        worths: what each choice is worth.
        choice: the one that was made; ``None`` is worth nothing.
        probability: the probability of it; ``None`` if it is not known, so that the choice counts as a whole.

    >>> expected_worth({"yes": 1.0, "no": 0.0}, "yes", 0.75), expected_worth({"yes": 1.0, "no": 0.0}, "no", 0.75)
    (0.75, 0.25)
    >>> expected_worth({"fully": 1.0, "partially": 0.5, "no": 0.0}, "partially", None)
    0.5
    """
    if choice is None:
        return 0.0
    if probability is None:
        return worths[choice]
    # The likeliest choice has at least an equal share, whatever a small model spends on words that are no choice.
    share = max(probability, 1 / len(worths))
    return share * worths[choice] + (1 - share) * fmean(worth for name, worth in worths.items() if name != choice)
