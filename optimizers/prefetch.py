"""Runs of a teacher, made concurrently ahead of DSPy's sequential bootstrap loops."""

import asyncio
from collections.abc import Sequence

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.models.errors import UserError
from hoptimizer.optimizers.job import Job
from hoptimizer.optimizers.loops import Loop
from hoptimizer.optimizers.recall import Runs, recalling
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
        threshold: the optimizer's ``metric_threshold``, the least score of a run that counts; 0 for none, with which
            DSPy takes every score but 0.

    Returns:
        the optimizer's ``teacher``, which remembers its runs; others it makes when it is asked.

    Raises:
        UserError: none of its runs had outputs that could all be parsed.
    """
    taught = teacher(job)
    with dspy.context(**teacher_settings(job)):
        runs = Runs(dspy.settings.lm, job.workers)
        asyncio.run(_all_waves(taught, job, loops, threshold, runs))
        _check(runs, 1)
    return recalling(taught, runs)


async def _all_waves(taught: Program, job: Job, loops: Sequence[Loop], threshold: float, runs: Runs) -> None:
    await asyncio.gather(*(_waves(_labeled(taught, loop), job, loop, threshold, runs) for loop in loops))


async def _waves(taught: Program, job: Job, loop: Loop, threshold: float, runs: Runs) -> None:
    asked = failed = 0
    running: set[asyncio.Task[bool]] = set()
    try:
        while True:
            # A wave need not wait for the end of the one before, only until that can't be enough any more.
            while asked - failed < loop.bootstrapped and asked < len(loop.trainset):
                wave = loop.trainset[asked : asked + WAVE]
                running |= {asyncio.create_task(_succeeds(taught, example, job, threshold, runs)) for example in wave}
                asked += len(wave)
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            _check(runs, WAVE)
            failed += (await asyncio.gather(*done)).count(False)
    finally:
        # Nobody wants the answers of a compile that was stopped.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _check(runs: Runs, least: int) -> None:
    """Give a teacher up that has never kept to the format, if it was asked so often."""
    made = runs.made
    if len(made) >= least and not any(made):
        raise UserError(
            f"the teacher {dspy.settings.lm.model} can't keep to the format: in each of {len(made)} runs "
            "an output could not be parsed; name another lm.teacher, or lm.default.adapter=json"
        )


async def _succeeds(taught: Program, example: dspy.Example, job: Job, threshold: float, runs: Runs) -> bool:
    try:
        run = await runs.make(without(taught, example), example.question)
    except DSPyError:
        return False  # The bootstrap meets the same failure, and counts it.
    # A judge that it may ask is waited for without holding up the other runs.
    score = await asyncio.to_thread(job.objective, example, run.prediction, None)
    return score >= threshold if threshold else bool(score)


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
