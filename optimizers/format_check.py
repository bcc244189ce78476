"""Whether a teacher's answers can be read at all: found out from its first runs, before the others are paid for."""

from collections.abc import Awaitable, Sequence

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.teacher_runs import TeacherRun

# Questions that are asked at once. The calls, which cost something, must not depend on how many workers there are.
WAVE = 16


def check_format(runs: Sequence[TeacherRun]) -> None:
    """Give up a teacher that can't keep to the format.

    Args:
        runs: some of its runs, made in the present settings.

    Raises:
        UserError: in none of them could any output be parsed.
    """
    if runs and not any(run.is_readable for run in runs):
        raise UserError(
            f"the teacher {dspy.settings.lm.model} can't keep to the format: in {len(runs)} runs no output could be "
            "parsed; name another lm.teacher, or lm.default.prompt_format=json"
        )


class FormatCheck:
    """The first runs of a teacher, which is given up if it can't keep to the format in any of them.

    They are the first in the order of the questions, not those that end first.

    Args:
        questions: the ids of all questions that the teacher will be asked.
    """

    def __init__(self, questions: Sequence[str]) -> None:
        self._waited = set(questions[:WAVE])
        self._made: list[TeacherRun] = []

    async def run(self, make: Awaitable[TeacherRun], question: str) -> TeacherRun:
        """A run that is being made for a question.

        Raises:
            DSPyError: the run failed.
            UserError: none of the first runs, of which this is the last, could be parsed.
        """
        try:
            run = await make
        except DSPyError:
            self._over(question, [])
            raise
        self._over(question, [run])
        return run

    def _over(self, question: str, made: Sequence[TeacherRun]) -> None:
        if question in self._waited:
            self._waited.remove(question)
            self._made += made
            if not self._waited:
                check_format(self._made)
