"""RA-ISF: answering by iterative self-feedback (Liu et al. 2024)."""

import re
import sys
import time
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Annotated, Any, ClassVar, Literal, get_args

import dspy
from pydantic import Field

from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import make_reader, read
from hoptimizer.programs.record import StepRecord
from hoptimizer.programs.trace import SharedTasks, current, gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Answer, Combine, Decompose, Relevance, SelfKnowledge

UNKNOWN = "unknown"

Module = Literal["self_knowledge", "relevance", "decomposition", "unknown"]
"""What settles a question; ``unknown`` is what none of the modules could."""

_NUMBERING = re.compile(r"^(\d{1,2}(\.\d{1,2})*[.)]|[-*•])\s+")
_EDGES = " .,;:!?…¿¡\"'“”‘’«»。、，；：？！「」"


@dataclass(frozen=True)
class Frame:
    """The place of a question in the tree of sub-questions.

    Attributes:
        shared: the steps that were asked already, anywhere in the tree.
        depth: 0 for the question itself.
        ancestors: the questions that it is a part of, normalized.
        calls: language model calls that it and its sub-questions may take together; ``None`` for any number.
    """

    shared: SharedTasks
    depth: int = 0
    ancestors: frozenset[str] = frozenset()
    calls: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a question ended.

    Attributes:
        answer: the answer, or ``"unknown"``.
        by: what settled it.
        passages: the relevant passages that it and its sub-questions were answered from.
        why: the reason for an unknown answer: ``depth``, ``repeat`` (it is a part of the same question), ``calls``
            (none were left) or ``no_subquestions``.
    """

    answer: str
    by: Module
    passages: list[Passage] = field(default_factory=list)
    why: str | None = None


class CallBudgetExhausted(Exception):
    """The budget of language model calls is used up."""


class RAISF(Program):
    """Answers what the model knows, reads what is relevant, and splits up the rest (RA-ISF, algorithm 1).

    Args:
        retriever: where passages come from.
        k: passages per retrieval; each is judged on its own.
        max_depth: the most levels of sub-questions; what lies deeper is unknown (the paper's D_th).
        max_subquestions: the most sub-questions of a decomposition; further ones are dropped.
        max_calls: the most language model calls per question, after which the rest is unknown. Sub-questions get equal
            shares of what is left, so that the answer does not depend on which of them is faster.
        self_knowledge: ask whether the model knows the answer; off: always search (table 2, "No SKM").
        relevance: search and judge passages; off: split up at once what the model does not know (table 2, "No PRM").
        decomposition: split questions up; off: what no passage helps with is unknown (table 2, "No QDM").
        reader: reads the relevant passages: ``direct`` answers at once, ``cot`` with a chain of thought.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import RAISF
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> program = RAISF(BM25Retriever(corpus), k=1)
        >>> with dspy.context(lm=DummyLM([{"knows": "no"}, {"relevant": "yes"}, {"answer": "Warsaw"}])):
        ...     prediction = program(question="Where was Marie Curie born?")
        >>> prediction.answer, prediction.steps[-1].outputs["by"]
        ('Warsaw', 'relevance')
        >>> [record.step for record in prediction.steps]
        ['self_knowledge', 'retrieve', 'relevance', 'reader', 'settle']
    """

    step_names: ClassVar[tuple[str, ...]] = (
        "self_knowledge",
        "closed_book",
        "relevance",
        "reader",
        "decompose",
        "combine",
    )
    outcomes: ClassVar[tuple[str, ...]] = get_args(Module)

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        max_depth: Annotated[int, Field(ge=0)] = 3,
        max_subquestions: Annotated[int, Field(ge=1)] = 5,
        max_calls: Annotated[int, Field(ge=1)] | None = None,
        self_knowledge: bool = True,
        relevance: bool = True,
        decomposition: bool = True,
        reader: Literal["direct", "cot"] = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.max_depth = max_depth
        self.max_subquestions = max_subquestions
        self.max_calls = max_calls
        self.self_knowledge = dspy.Predict(SelfKnowledge) if self_knowledge else None
        self.closed_book = dspy.Predict(Answer) if self_knowledge else None
        self.relevance = dspy.Predict(Relevance) if relevance else None
        self.reader = make_reader(reader, passages=True) if relevance else None
        self.decompose = dspy.Predict(Decompose) if decomposition else None
        self.combine = dspy.Predict(Combine) if decomposition else None

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        async with SharedTasks() as shared:
            outcome = await self.settle(question, Frame(shared, calls=self.max_calls))
        return outcome.answer, outcome.passages

    async def problem_solving(self, question: str, frame: Frame) -> Outcome:
        """Solve a question by the paper's algorithm 1, which has this name there.

        Raises:
            CallBudgetExhausted: no calls are left, and no answer was found.
        """
        if frame.depth > self.max_depth:
            return Outcome(UNKNOWN, "unknown", why="depth")
        if normalized(question) in frame.ancestors:
            return Outcome(UNKNOWN, "unknown", why="repeat")
        if await self.knows(question, frame):
            return Outcome(await self.recite(question, frame), "self_knowledge")
        if relevant := await self.relevant(question, frame):
            return Outcome(await self.read(question, relevant, frame), "relevance", relevant)
        subquestions = await self.split(question, frame)
        if not subquestions:
            return Outcome(UNKNOWN, "unknown", why="no_subquestions")
        frames = self.below(question, frame, len(subquestions))
        outcomes = await gather_steps(map(partial, repeat(self.settle), subquestions, frames), deeper=1)
        answer = await self.conclude(question, subquestions, [part.answer for part in outcomes], frame)
        return Outcome(answer, "decomposition", _each_once(p for part in outcomes for p in part.passages))

    async def settle(self, question: str, frame: Frame) -> Outcome:
        """Solve a question or sub-question, and record how it ended."""
        start = time.perf_counter()
        try:
            outcome = await self.problem_solving(question, frame)
        except CallBudgetExhausted:
            outcome = Outcome(UNKNOWN, "unknown", why="calls")
        outputs = {"answer": outcome.answer, "by": outcome.by} | ({"why": outcome.why} if outcome.why else {})
        seconds = time.perf_counter() - start
        record = StepRecord(
            "settle", "outcome", {"question": question}, outputs, seconds=seconds, choices=self.outcomes
        )
        current().add(record)
        return outcome

    async def knows(self, question: str, frame: Frame) -> bool:
        """Whether the model says that it knows the answer; an output that can't be understood counts as no."""
        if self.self_knowledge is None:
            return False
        asked: dict[str, Any] = {"question": question}
        if self.confident:
            self.check_call_budget("closed_book", frame)
            asked[ANSWER_PROBABILITY] = (await self.closed_book_answer(question, frame)).probability
        self.check_call_budget("self_knowledge", frame)
        return (await self.ask("self_knowledge", frame, **asked)).knows == "yes"

    async def recite(self, question: str, frame: Frame) -> str:
        """The answer that the model knows, without passages (equation 2)."""
        if not self.confident:
            self.check_call_budget("closed_book", frame)
        return _stated((await self.closed_book_answer(question, frame)).answer)

    @property
    def confident(self) -> bool:
        """Whether self-knowledge is judged by how likely the model's own answer is; it is asked for first then."""
        return ANSWER_PROBABILITY in self.extra_inputs("self_knowledge")

    async def closed_book_answer(self, question: str, frame: Frame) -> dspy.Prediction:
        """What the model answers without passages; it is asked once."""
        return await self.ask("closed_book", frame, measured=self.confident, question=question)

    async def relevant(self, question: str, frame: Frame) -> list[Passage]:
        """The retrieved passages that are judged relevant, each on its own; unclear judgements count as no."""
        if self.relevance is None:
            return []
        # One call is kept for the reading.
        affordable = self.calls_left(frame) - 1
        if affordable < self.lm_calls("relevance"):
            raise CallBudgetExhausted
        passages = await frame.shared(("retrieve", question), lambda: self.retrieve(question))
        if self.lm_calls("relevance"):
            passages = passages[:affordable]
        ask = partial(self.ask, "relevance", frame, question=question)
        judged = await gather_steps(partial(ask, passage=passage) for passage in passages)
        return [passage for passage, judgement in zip(passages, judged, strict=True) if judgement.relevant == "yes"]

    async def read(self, question: str, passages: list[Passage], frame: Frame) -> str:
        """The answer from the relevant passages (equation 3)."""
        self.check_call_budget("reader", frame)
        key = ("reader", question, *passages)
        return _stated(await frame.shared(key, lambda: read(self, question, passages)))

    async def split(self, question: str, frame: Frame) -> list[str]:
        """The sub-questions of a question, without repetitions; none if the model gives none."""
        if self.decompose is None:
            return []
        self.check_call_budget("decompose", frame)
        found = (await self.ask("decompose", frame, question=question)).subquestions or []
        cleaned = [_NUMBERING.sub("", " ".join(text.split())).strip() for text in found]
        unique = {normalized(text): text for text in reversed(cleaned) if text}
        return list(reversed(unique.values()))[: self.max_subquestions]

    async def conclude(self, question: str, subquestions: list[str], answers: list[str], frame: Frame) -> str:
        """The answer from sub-questions and their answers, unknown ones included (equation 4)."""
        self.check_call_budget("combine", frame)
        findings = [f"{asked} {answer}" for asked, answer in zip(subquestions, answers, strict=True)]
        return _stated((await self.ask("combine", frame, question=question, findings=findings)).answer)

    async def ask(self, name: str, frame: Frame, *, measured: bool = False, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - as Program.step
        """Take a step, unless the same was asked before anywhere in the tree.

        Steps are shared rather than whole sub-questions: the answer of a sub-question depends on its depth and on its
        ancestors, and two sub-questions that are part of each other would wait for each other.
        """
        key = (name, *(tuple(value) if isinstance(value, list) else value for value in inputs.values()))
        return await frame.shared(key, lambda: self.step(name, measured=measured, **inputs))

    def below(self, question: str, frame: Frame, count: int) -> list[Frame]:
        """The frames of a question's sub-questions."""
        ancestors = frame.ancestors | {normalized(question)}
        calls: list[int | None] = [None] * count
        if frame.calls is not None:
            # One call is kept for putting the answers together.
            each, over = divmod(max(0, self.calls_left(frame) - 1), count)
            calls = [each + (number < over) for number in range(count)]
        return [Frame(frame.shared, frame.depth + 1, ancestors, share) for share in calls]

    def calls_left(self, frame: Frame) -> int:
        """Language model calls that a frame may still take."""
        return sys.maxsize if frame.calls is None else frame.calls - current().calls

    def check_call_budget(self, name: str, frame: Frame) -> None:
        """Make sure that enough calls are left for a step.

        Raises:
            CallBudgetExhausted: too few are left.
        """
        if self.calls_left(frame) < self.lm_calls(name):
            raise CallBudgetExhausted


def normalized(question: str) -> str:
    """A question in a form that is the same for questions that differ in case, spaces or outer punctuation alone."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return text.strip(_EDGES) or text


def _stated(answer: str | None) -> str:
    return (answer or "").strip() or UNKNOWN


def _each_once(passages: Iterable[Passage]) -> list[Passage]:
    """Passages without repetitions, in the order of the sub-questions that they were read for."""
    kept: dict[str, Passage] = {}
    for passage in passages:
        kept.setdefault(passage.id, passage)
    return list(kept.values())
