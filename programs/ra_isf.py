"""RA-ISF: answering by iterative self-feedback (Liu et al. 2024)."""

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args

import dspy
from pydantic import Field

from hoptimizer.models.engine.engine import seconds_since
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import (
    UNKNOWN,
    CallBudgetExhausted,
    Frame,
    Module,
    Outcome,
    SubQuestion,
    normalized,
    subquestions,
)
from hoptimizer.programs.reader import given_answer, make_reader, read
from hoptimizer.programs.record import StepRecord
from hoptimizer.programs.trace import SharedTasks, current, gather_steps
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import (
    Answer,
    Combine,
    Decompose,
    DecomposeInOrder,
    Relevance,
    SelfKnowledge,
    Sufficiency,
)

Judging = Literal["passage", "sufficiency", "none"]


class RAISF(Program):
    """Answers what the model knows, reads what is relevant, and splits up the rest (RA-ISF, algorithm 1).

    Args:
        retriever: where passages come from.
        k: passages per retrieval.
        max_depth: the most levels of sub-questions; what would have to be split up deeper is unknown at once (the
            paper's D_th, section 3.3).
        max_subquestions: the most sub-questions of a decomposition; further ones are dropped.
        max_calls: the most language model calls per question, after which the rest is unknown. Sub-questions get equal
            shares of what is left, so that the answer does not depend on which of them is faster.
        self_knowledge: ask whether the model knows the answer; off: always search (table 2, "No SKM").
        relevance: how the passages of a search are judged. ``passage``: each on its own, whether it holds the answer
            (appendix A.2); those that do are read. ``sufficiency``: all in one call, whether they suffice for the
            answer (tables 11 and 12); all are read. ``none``: no search; what the model does not know is split up at
            once (table 2, "No PRM").
        decomposition: split questions up; off: what no passage helps with is unknown (table 2, "No QDM").
        ordered_subquestions: whether a sub-question may refer to the answer of an earlier one, as ``#1``. It is then
            asked after that one, with its answer filled in, and is unknown if that answer is. All others are solved
            together, as all are without this option.
        reader: reads the passages: ``direct`` answers at once, ``cot`` with a chain of thought.

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
        "sufficiency",
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
        relevance: Judging = "passage",
        decomposition: bool = True,
        ordered_subquestions: bool = False,
        reader: Literal["direct", "cot", "phrase"] = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.max_depth = max_depth
        self.max_subquestions = max_subquestions
        self.max_calls = max_calls
        self.ordered_subquestions = ordered_subquestions
        self.self_knowledge = dspy.Predict(SelfKnowledge) if self_knowledge else None
        self.closed_book = dspy.Predict(Answer) if self_knowledge else None
        self.relevance = dspy.Predict(Relevance) if relevance == "passage" else None
        self.sufficiency = dspy.Predict(Sufficiency) if relevance == "sufficiency" else None
        self.reader = None if relevance == "none" else make_reader(reader, passages=True)
        split = DecomposeInOrder if ordered_subquestions else Decompose
        self.decompose = dspy.Predict(split) if decomposition else None
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
        if normalized(question) in frame.ancestors:
            return Outcome(UNKNOWN, "unknown", why="repeat")
        if await self.knows(question, frame) and (answer := await self.recite(question, frame)):
            return Outcome(answer, "self_knowledge")
        if relevant := await self.relevant(question, frame):
            return Outcome(await self.read(question, relevant, frame), "relevance", relevant)
        if frame.depth == self.max_depth:
            # Algorithm 1 splits it up even so, and all parts are unknown. By section 3.3 the whole is unknown then.
            return Outcome(UNKNOWN, "unknown", why="depth")
        parts = await self.split(question, frame)
        if not parts:
            return Outcome(UNKNOWN, "unknown", why="no_subquestions")
        solved = await self.solve_parts(question, parts, frame)
        findings = [f"{asked} {outcome.answer}" for asked, outcome in solved]
        answer = await self.conclude(question, findings, frame)
        return Outcome(answer, "decomposition", each_once(p for _, outcome in solved for p in outcome.passages))

    async def settle(self, question: str, frame: Frame) -> Outcome:
        """Solve a question or sub-question, and record how it ended."""
        start = time.perf_counter()
        try:
            outcome = await self.problem_solving(question, frame)
        except CallBudgetExhausted:
            outcome = Outcome(UNKNOWN, "unknown", why="calls")
        self.record(question, outcome, seconds_since(start))
        return outcome

    def record(self, question: str, outcome: Outcome, seconds: float = 0.0) -> None:
        """Record how a question or sub-question ended."""
        outputs = {"answer": outcome.answer, "by": outcome.by} | ({"why": outcome.why} if outcome.why else {})
        current().add(
            StepRecord("settle", "outcome", {"question": question}, outputs, seconds=seconds, choices=self.outcomes)
        )

    async def solve_parts(self, question: str, parts: Sequence[SubQuestion], frame: Frame) -> list[tuple[str, Outcome]]:
        """Solve the sub-questions of a question, each as soon as the answers that it refers to are there.

        Returns:
            For each the text that was asked, and how it ended.
        """
        loop = asyncio.get_running_loop()
        ended: list[asyncio.Future[Outcome]] = [loop.create_future() for _ in parts]

        async def solve_part(part: SubQuestion, frame: Frame, end: asyncio.Future[Outcome]) -> tuple[str, Outcome]:
            needed = {number: at if at is None else await ended[at] for number, at in part.references.items()}
            answers = {number: earlier.answer for number, earlier in needed.items() if earlier and earlier.known}
            asked = part.filled_in(answers)
            if len(answers) == len(needed):
                outcome = await self.settle(asked, frame)
            else:
                outcome = Outcome(UNKNOWN, "unknown", why="reference")
                self.record(asked, outcome)
            end.set_result(outcome)
            return asked, outcome

        frames = self.below(question, frame, len(parts))
        return await gather_steps(map(partial, [solve_part] * len(parts), parts, frames, ended), deeper=1)

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

    async def recite(self, question: str, frame: Frame) -> str | None:
        """The answer that the model knows, without passages (equation 2); ``None`` where it has none after all."""
        if not self.confident:
            self.check_call_budget("closed_book", frame)
        return given_answer((await self.closed_book_answer(question, frame)).answer)

    @property
    def confident(self) -> bool:
        """Whether self-knowledge is judged by how likely the model's own answer is; it is asked for first then."""
        return ANSWER_PROBABILITY in self.extra_inputs("self_knowledge")

    async def closed_book_answer(self, question: str, frame: Frame) -> dspy.Prediction:
        """What the model answers without passages; it is asked once."""
        return await self.ask("closed_book", frame, measured=self.confident, question=question)

    async def relevant(self, question: str, frame: Frame) -> list[Passage]:
        """The retrieved passages that are to be read; none if no passage is relevant, or if all do not suffice.

        A judgement that is unclear counts as no.
        """
        if self.reader is None:
            return []
        step = "relevance" if self.sufficiency is None else "sufficiency"
        # One call is kept for the reading.
        affordable = self.calls_left(frame) - 1
        if affordable < self.lm_calls(step):
            raise CallBudgetExhausted
        passages = await frame.shared(("retrieve", question), lambda: self.retrieve(question))
        if self.sufficiency is not None:
            judged = await self.ask(step, frame, question=question, retrieved=passages) if passages else None
            return passages if judged and judged.sufficient == "yes" else []
        if self.lm_calls(step):
            passages = passages[:affordable]
        ask = partial(self.ask, step, frame, question=question)
        each = await gather_steps(partial(ask, passage=passage) for passage in passages)
        return [passage for passage, judged in zip(passages, each, strict=True) if judged.relevant == "yes"]

    async def read(self, question: str, passages: list[Passage], frame: Frame) -> str:
        """The answer from the relevant passages (equation 3)."""
        self.check_call_budget("reader", frame)
        key = ("reader", question, *passages)
        return _stated(await frame.shared(key, lambda: read(self, question, passages)))

    async def split(self, question: str, frame: Frame) -> list[SubQuestion]:
        """The sub-questions of a question, without repetitions; none if the model gives none."""
        if self.decompose is None:
            return []
        self.check_call_budget("decompose", frame)
        said = await self.ask("decompose", frame, question=question)
        texts = said.ordered_subquestions if self.ordered_subquestions else said.subquestions
        return subquestions(texts or [], question, self.max_subquestions, references=self.ordered_subquestions)

    async def conclude(self, question: str, findings: list[str], frame: Frame) -> str:
        """The answer from sub-questions with their answers, unknown ones included (equation 4)."""
        self.check_call_budget("combine", frame)
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


def _stated(answer: str | None) -> str:
    return (answer or "").strip() or UNKNOWN
