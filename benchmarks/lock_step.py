"""An evaluation in lock step: the next calls of all questions are made once the last of them has ended."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dspy

from hoptimizer.eval import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import Evaluation, QuestionResult, aevaluate_by, ask
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


async def in_lock_step(program: Program, questions: Sequence[Question], objective: Objective) -> Evaluation:
    """Ask a program all questions, one call of each at a time."""
    steps, lm = LockStep(len(questions)), dspy.settings.lm
    own = lm.acall

    async def asks(question: Question) -> QuestionResult:
        with steps.question(question.id):
            return await ask(program, question, objective, None)

    async def acall(*_: Any, **options: Any) -> Any:  # noqa: ANN401 - DSPy's
        return await steps.call(own, **options)

    lm.acall = acall
    try:
        return await aevaluate_by(asks, questions, workers=len(questions))
    finally:
        del lm.acall
