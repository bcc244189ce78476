"""An evaluation in lock step: the next calls of all questions are made once the last of them has ended."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import dspy

from hoptimizer.eval import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import QuestionResult, aevaluate_by, ask
from hoptimizer.programs import Program


class LockStep:
    """Holds a question's calls back until every question that is under way waits for one.

    Args:
        questions: how many are asked.
    """

    def __init__(self, questions: int) -> None:
        self._left = questions
        self._asking: ContextVar[str] = ContextVar("asking")
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    @contextmanager
    def question(self, name: str) -> Iterator[None]:
        """Within it, the calls are those of one question."""
        token = self._asking.set(name)
        try:
            yield
        finally:
            self._asking.reset(token)
            self._left -= 1
            self._go_on()

    async def call(self, make: Callable[..., Any], **options: Any) -> Any:  # noqa: ANN401 - DSPy's
        """Make a call once its turn has come."""
        name, turn = self._asking.get(), asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(turn)
        self._go_on()
        await turn
        return await make(**options)

    def _go_on(self) -> None:
        if len(self._waiting) == self._left:
            turns = [turn for waiting in self._waiting.values() for turn in waiting]
            self._waiting = {}
            for turn in turns:
                turn.set_result(None)


async def in_lock_step(program: Program, questions: Sequence[Question], objective: Objective, size: int) -> None:
    """Ask a program all questions in batches of a size, one call of each question at a time."""
    lm = dspy.settings.lm
    own = lm.acall
    try:
        for first in range(0, len(questions), size):
            batch = questions[first : first + size]
            steps = LockStep(len(batch))
            lm.acall = partial(steps.call, own)
            asks = partial(_asked, steps, program, objective)
            await aevaluate_by(asks, batch, workers=size)
    finally:
        del lm.acall


async def _asked(steps: LockStep, program: Program, objective: Objective, question: Question) -> QuestionResult:
    with steps.question(question.id):
        return await ask(program, question, objective, None)
