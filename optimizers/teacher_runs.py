"""Runs of a program that are kept, and a program that replays them."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import dspy

from hoptimizer.programs import Program

Demos = list[list[dspy.Example]]


@dataclass(frozen=True)
class TeacherRun:
    """What a program did with a question.

    Attributes:
        prediction: the program's prediction.
        trace: for each call the predictor's name, the inputs and the outputs, as DSPy traces them.
    """

    prediction: dspy.Prediction
    trace: list[tuple[str, dict[str, Any], dspy.Prediction]]

    @property
    def is_readable(self) -> bool:
        """Whether at least one output of a language model could be parsed; true for a run without any."""
        asked = [record for record in self.prediction.steps if record.kind == "lm"]
        return not asked or any(record.failure is None for record in asked)


class TeacherRuns:
    """Runs of one program by question and demonstrations, each made once; copies of a program share them.

    Args:
        lm: the language model of the DSPy settings with which the runs are made; they are found with no other.
        workers: the number of runs that are made at once.

    Attributes:
        scores: what runs scored, of those that were scored.
    """

    def __init__(self, lm: dspy.LM, workers: int) -> None:
        self._lm = lm
        self.scores: list[float] = []
        self._slots = asyncio.Semaphore(workers)
        self._tasks: dict[tuple[str, str | None], list[tuple[Demos, asyncio.Task[TeacherRun]]]] = defaultdict(list)

    def __deepcopy__(self, memo: dict[int, object]) -> "TeacherRuns":
        return self

    async def make(self, program: Program, question: str, main: str | None = None) -> TeacherRun:
        """Run a program on a question, unless that was done or is under way.

        Args:
            program: the program, whose demonstrations identify the run.
            question: the question's text.
            main: the page that the question is asked about, where it is asked about one.

        Raises:
            DSPyError: the run failed.
        """
        task = self._find(program, question, main)
        if task is None:
            asked = {"question": question} | ({"main": main} if main else {})
            task = asyncio.create_task(self._run(program, asked))
            self._tasks[question, main].append((_demos(program), task))
        return await task

    def made_run(self, program: Program, question: str, main: str | None = None) -> TeacherRun | None:
        """The run of a program on a question; ``None`` where it was not made.

        Args:
            program: the program, whose demonstrations identify the run.
            question: the question's text.
            main: the page that the question is asked about, where it is asked about one.

        Raises:
            DSPyError: the run failed.
        """
        task = self._find(program, question, main)
        return task.result() if task else None

    def _find(self, program: Program, question: str, main: str | None) -> asyncio.Task[TeacherRun] | None:
        if dspy.settings.lm is not self._lm:
            return None
        demos = _demos(program)
        return next((task for shown, task in self._tasks[question, main] if shown == demos), None)

    @property
    def made(self) -> list[TeacherRun]:
        """The runs that ended without an error."""
        tasks = [task for some in self._tasks.values() for _, task in some if task.done()]
        return [task.result() for task in tasks if task.exception() is None]

    async def _run(self, program: Program, asked: dict[str, str]) -> TeacherRun:
        async with self._slots:
            with dspy.context(trace=[]):
                prediction = await program.acall(**asked)
                traced = dspy.settings.trace
        names = {id(predictor): name for name, predictor in program.named_predictors()}
        return TeacherRun(prediction, [(names[id(predictor)], *call) for predictor, *call in traced])


def replaying(program: Program, runs: TeacherRuns) -> Program:
    """A copy of a program that returns the kept run of a question where there is one, and otherwise runs.

    To DSPy's bootstrap both look the same: demonstrations come from the same predictions and the same trace.

    Args:
        program: the program.
        runs: its runs.
    """
    copy = program.deepcopy()
    copy.runs = runs
    # The class is replaced, not the method: an attribute would stay bound to this copy when DSPy makes its own.
    copy.__class__ = type(type(program).__name__, (_Replaying, type(program)), {})
    return copy


class _Replaying(Program):
    runs: TeacherRuns

    def forward(self, question: str, main: str | None = None) -> dspy.Prediction:
        run = self.runs.made_run(self, question, main)
        if run is None:
            return super().forward(question, main)
        if dspy.settings.trace is not None:
            dspy.settings.trace.extend((getattr(self, name), *call) for name, *call in run.trace)
        return run.prediction


def _demos(program: Program) -> Demos:
    return [list(predictor.demos) for predictor in program.predictors()]
