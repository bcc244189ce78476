"""Runs of a teacher, made concurrently ahead of DSPy's sequential bootstrap loops."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.models.errors import UserError
from hoptimizer.optimizers.job import Job
from hoptimizer.optimizers.loops import Loop
from hoptimizer.optimizers.recall import Run, Runs, recalling
from hoptimizer.optimizers.teacher import teacher, teacher_settings
from hoptimizer.programs import Program

# Questions that a loop asks at once. Its calls, which cost something, must not depend on how many workers there are.
WAVE = 16


def prefetch(job: Job, loops: Sequence[Loop], threshold: float) -> Program:
    """Make the runs of a teacher that DSPy's bootstrap loops are going to ask for, many at once.

    A loop of DSPy's asks one question after the other until enough of them scored well. Here they are asked in waves
    of 16, the waves of all loops at the same time: the same runs, and of each loop those that the last wave has more.
    Which runs are made depends on their outcomes alone, not on their speed or ``job.workers``, which says how many
    are under way at once. So with an optimizer of DSPy's::

        teacher = prefetch(job, [Loop(trainset, bootstrapped, labeled)], threshold)
        optimizer = dspy.BootstrapFewShot(metric=job.objective, metric_threshold=threshold, ...)
        optimizer.compile(job.program, teacher=teacher, trainset=trainset)

    the optimizer finds every run made, failed ones too, and gives the demonstrations that it would give without. It
    needs the same ``teacher_settings``, see :mod:`hoptimizer.optimizers.teacher`.

    Args:
        job: the compile; its program, on the teacher's language model where there is one, is the teacher.
        loops: those of the optimizer, see :mod:`hoptimizer.optimizers.loops`.
        threshold: the optimizer's ``metric_threshold``, the least score of a run that counts; above 0, which DSPy takes
            for none.

    Returns:
        the optimizer's ``teacher``, which remembers its runs; others it makes when it is asked.

    Raises:
        UserError: none of its outputs can be parsed; of the first loop's first wave that is said at once.
    """
    taught = teacher(job)
    with dspy.context(**teacher_settings(job)):
        runs = Runs(dspy.settings.lm, job.workers)
        asyncio.run(_all_waves(taught, job, loops, threshold, runs))
        check_format(runs.made)
    return recalling(taught, runs)


async def _all_waves(taught: Program, job: Job, loops: Sequence[Loop], threshold: float, runs: Runs) -> None:
    await asyncio.gather(
        *(_waves(_labeled(taught, loop), job, loop, threshold, runs, number == 0) for number, loop in enumerate(loops))
    )


async def _waves(taught: Program, job: Job, loop: Loop, threshold: float, runs: Runs, judged: bool) -> None:
    asked = failed = 0
    running: set[asyncio.Task[_Outcome]] = set()
    first: list[asyncio.Task[_Outcome]] = []
    try:
        while True:
            # A wave need not wait for the end of the one before, only until that can't be enough any more.
            while asked - failed < loop.bootstrapped and asked < len(loop.trainset):
                wave = loop.trainset[asked : asked + WAVE]
                tasks = [asyncio.create_task(_outcome(taught, example, job, threshold, runs)) for example in wave]
                if judged and not asked:
                    first = tasks
                running.update(tasks)
                asked += len(wave)
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed += sum(not outcome.succeeds for outcome in await asyncio.gather(*done))
            if first and all(task.done() for task in first):
                check_format([run for task in first if (run := task.result().run)])
                first = []
    finally:
        # Nobody wants the answers of a compile that was stopped.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def check_format(runs: Sequence[Run]) -> None:
    """Give a teacher up that can't keep to the format.

    Args:
        runs: some of its, made in the present settings.

    Raises:
        UserError: in none of them could any output be parsed.
    """
    if runs and not any(run.is_readable for run in runs):
        raise UserError(
            f"the teacher {dspy.settings.lm.model} can't keep to the format: in {len(runs)} runs no output could be "
            "parsed; name another lm.teacher, or lm.default.adapter=json"
        )


@dataclass(frozen=True)
class _Outcome:
    """Of a run: whether it scores well enough, and the run where it did not fail."""

    succeeds: bool
    run: Run | None


async def _outcome(taught: Program, example: dspy.Example, job: Job, threshold: float, runs: Runs) -> _Outcome:
    try:
        run = await runs.make(without(taught, example), example.question)
    except DSPyError:
        return _Outcome(False, None)  # The bootstrap meets the same failure, and counts it.
    # A judge that it may ask is waited for without holding up the other runs.
    score = await asyncio.to_thread(job.objective, example, run.prediction, None)
    return _Outcome(score >= threshold, run)


def _labeled(taught: Program, loop: Loop) -> Program:
    """The teacher as a loop begins with it."""
    if not loop.labeled:
        return taught
    return dspy.LabeledFewShot(k=loop.labeled).compile(taught, trainset=list(loop.trainset))


def without(taught: Program, example: dspy.Example) -> Program:
    """The teacher for a question: none is shown its own answer."""
    if not any(demo == example for predictor in taught.predictors() for demo in predictor.demos):
        return taught
    program = taught.deepcopy()
    for predictor in program.predictors():
        predictor.demos = [demo for demo in predictor.demos if demo != example]
    return program
