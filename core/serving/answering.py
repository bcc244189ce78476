"""Questions to a program, many at once."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import dspy

from hoptimizer.answers import plain_answer
from hoptimizer.programs.record import StepRecord, counts
from hoptimizer.programs.trace import Listener, heard_steps
from hoptimizer.serving.admission import Limits
from hoptimizer.serving.work import Work
from hoptimizer.workbench import HISTORY

# Seconds after which a stream without news says that it is alive.
PING = 15.0


@dataclass(frozen=True)
class Answer:
    """What a program said.

    Attributes:
        values: the ``answer``, its ``passages`` and ``steps``, as plain data.
        counts: of the steps: language model calls, tokens and the like.
        seconds: it took.
    """

    values: dict[str, Any]
    counts: dict[str, float]
    seconds: float


class Answering:
    """A program that answers within limits.

    Args:
        program: what :func:`hoptimizer.load_variant` gives.
        limits: how much is taken on.
    """

    def __init__(self, program: dspy.Module, limits: Limits) -> None:
        self.work = Work("question", limits)
        self._program = program

    async def answer(self, question: str, main: str | None = None, listener: Listener | None = None) -> Answer:
        """Answer a question, together with others that are asked meanwhile.

        Args:
            question: the question.
            main: the page that it is asked about, if it is asked about one.
            listener: is told of each step as it ends.

        Raises:
            Refusal: it gets no answer.
        """
        start = time.perf_counter()
        async with self.work.place():
            # DSPy would keep the texts of 10,000 calls, once for each model and step.
            with heard_steps(listener), dspy.context(max_history_size=HISTORY, trace=None):
                prediction = await self._program.acall(question=question, main=main)
        seconds, counted = time.perf_counter() - start, counts(prediction.steps)
        self.work.metrics.answered(seconds, counted)
        return Answer(plain_answer(prediction), counted, seconds)

    async def stream(self, question: str, main: str | None = None) -> AsyncIterator[StepRecord | Answer | None]:
        """Each step as it ends, and the answer last; ``None`` now and then while there is no news.

        Whoever stops listening stops the work.

        Raises:
            Refusal: it gets no answer.
        """
        news: asyncio.Queue[StepRecord | None] = asyncio.Queue()
        work = asyncio.create_task(self.answer(question, main, news.put_nowait))
        work.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while True:
                try:
                    step = await asyncio.wait_for(news.get(), PING)
                except TimeoutError:
                    yield None
                    continue
                if step is None:
                    break
                yield step
            yield await work
        finally:
            work.cancel()
