"""Runs a program over many questions at once and scores what comes out."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import DSPyError, LMAuthError, LMConfigurationError, LMTransportError

from hoptimizer.eval.dataset import Question
from hoptimizer.eval.metrics import score_prediction
from hoptimizer.models.errors import UserError
from hoptimizer.programs.program import Program
from hoptimizer.programs.record import counts, solved

Progress = Callable[[int, int, dict[str, float]], None]
"""Called after each question with how many are done, of how many, and the mean scores so far."""

SYSTEMIC = (LMTransportError, LMAuthError, LMConfigurationError)
"""No later question can succeed where one of these is raised."""


@dataclass(frozen=True)
class Row:
    """One question's outcome.

    Attributes:
        question: what was asked, with its gold annotations.
        answer: the program's answer; empty where it failed.
        passages: ids of the passages the program collected.
        scores: every metric and count of this question, ``seconds`` among them.
        steps: the step records as plain data.
        failure: why the program failed on this question, or ``None``.
    """

    question: Question
    answer: str
    passages: list[str]
    scores: dict[str, float]
    steps: list[dict[str, Any]]
    failure: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """A program's scores on a list of questions.

    Attributes:
        rows: one a question, in the order of the questions.
        seconds: wall time of the whole evaluation.
    """

    rows: list[Row]
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the questions; ``failures`` is the number of questions on which the program failed, and
        ``seconds_per_question`` the wall time of the whole evaluation over their number."""
        return mean_scores(self.rows) | {
            "parse_failures": sum(row.scores.get("parse_failures", 0.0) for row in self.rows),
            "failures": float(sum(row.failure is not None for row in self.rows)),
            "seconds_per_question": self.seconds / len(self.rows),
        }

    def scores(self, metric: str) -> list[float]:
        """The scores of one metric, one for each question that has it."""
        return [row.scores[metric] for row in self.rows if metric in row.scores]


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of every score over the rows that have it (recall exists only where supporting passages are known)."""
    names = dict.fromkeys(name for row in rows for name in row.scores)
    values = {name: [row.scores[name] for row in rows if name in row.scores] for name in names}
    return {name: sum(scores) / len(scores) for name, scores in values.items()}


def evaluate(
    program: Program, questions: Sequence[Question], *, workers: int = 64, progress: Progress | None = None
) -> Evaluation:
    """Score a program.

    Args:
        program: what to run.
        questions: what to ask it; at least one.
        workers: questions under way at once.
        progress: called after each question.

    Raises:
        UserError: the language model can't be reached or refuses its key, so that no question can succeed.
    """
    return asyncio.run(_evaluate(program, questions, workers, progress))


async def _evaluate(
    program: Program, questions: Sequence[Question], workers: int, progress: Progress | None
) -> Evaluation:
    slots = asyncio.Semaphore(workers)
    done: list[Row] = []
    start = time.perf_counter()

    async def run(question: Question) -> Row:
        async with slots:
            row = await _ask(program, question)
        done.append(row)
        if progress:
            progress(len(done), len(questions), mean_scores(done))
        return row

    tasks = [asyncio.create_task(run(question)) for question in questions]
    try:
        rows = await asyncio.gather(*tasks)
    except BaseException:
        # Nobody wants the answers of a run that was stopped.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return Evaluation(list(rows), time.perf_counter() - start)


async def _ask(program: Program, question: Question) -> Row:
    start = time.perf_counter()
    failure = None
    try:
        prediction = await program.acall(question=question.question)
    except SYSTEMIC as error:
        raise UserError(f"the language model can't be used: {one_line(error)}; check the lm section") from error
    except DSPyError as error:
        if isinstance(error.__cause__, UserError):  # the model could not be loaded
            raise error.__cause__ from None
        failure = one_line(error)
        prediction = dspy.Prediction(answer="", passages=[], steps=[])
    scores, counted = score_prediction(question, prediction), counts(prediction.steps)
    scores |= counted | solved(counted, scores["em"])
    scores["seconds"] = time.perf_counter() - start
    passages = [passage.id for passage in prediction.passages]
    steps = [record.as_dict() for record in prediction.steps]
    return Row(question, prediction.answer, passages, scores, steps, failure)


def one_line(error: BaseException) -> str:
    """An exception's message on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
