"""A check that a teacher's answers can be parsed, made on its first runs, before the others are paid for."""

from collections.abc import Awaitable, Sequence

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.teacher_runs import TeacherRun
from hoptimizer.programs.program import FAILURES

# How many questions are asked at once. It is fixed, since the number of workers must not change which calls are made.
WAVE = 16


def check_format(runs: Sequence[TeacherRun]) -> None:
    """Make sure that a teacher can keep to the format.

    Args:
        runs: some of its runs, made with the present DSPy settings.

    Raises:
        UserError: no output of any of the runs could be parsed.
    """
    if runs and not any(run.is_readable for run in runs):
        raise UserError(
            f"the teacher {dspy.settings.lm.model} can't keep to the format: in {len(runs)} runs no output could be "
            "parsed; name another lm.teacher, or lm.default.prompt_format=json"
        )


class FormatCheck:
    """The first runs of a teacher; the compile is stopped if the teacher keeps to the format in none of them.

    They are the first runs in the order of the questions, not those that end first.

    Args:
        questions: the ids of all questions that the teacher will be asked.
    """

    def __init__(self, questions: Sequence[str]) -> None:
        self._waited = set(questions[:WAVE])
        self._made: list[TeacherRun] = []

    async def run(self, make: Awaitable[TeacherRun], question: str) -> TeacherRun:
        """Wait for a run, and count it if it is one of the first.

        Args:
            make: makes the run.
            question: the question's id.

        Returns:
            the run.

        Raises:
            DSPyError: the run failed.
            RefusedQueryError: a search refused its query.
            UserError: this was the last of the first runs, and none of them could be parsed.
        """
        try:
            run = await make
        except FAILURES:
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
