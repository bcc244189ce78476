"""Runs of a teacher, made concurrently ahead of DSPy's sequential bootstrap loops."""

import asyncio
from collections.abc import Sequence

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.optimizers.job import Job
from hoptimizer.optimizers.loops import Loop
from hoptimizer.optimizers.recall import Runs, recalling
from hoptimizer.programs import Program

# Questions that a loop asks at once. Its calls, which cost something, must not depend on how many workers there are.
WAVE = 16


def prefetch(job: Job, loops: Sequence[Loop], threshold: float | None) -> Program:
    """Make the runs of a teacher that DSPy's bootstrap loops are going to ask for, many at once.

    A loop of DSPy's asks one question after the other until enough of them scored well. Here they are asked in waves
    of 16, the waves of all loops at the same time: the same runs, and of each loop those that the last wave has more.
    Which runs are made depends on their outcomes alone, not on their speed or ``job.workers``, which says how many
    are under way at once. So with an optimizer of DSPy's::

        teacher = prefetch(job, [Loop(trainset, bootstrapped, labeled)], threshold)
        optimizer = dspy.BootstrapFewShot(metric=job.objective, metric_threshold=threshold, ...)
        optimizer.compile(job.program, teacher=teacher, trainset=trainset)

    the optimizer finds every run made, failed ones too, and gives the demonstrations that it would give without. Where
    there is a ``job.teacher_lm``, DSPy's optimizer needs it in its ``teacher_settings``.

    Args:
        job: the compile; its program, on the teacher's language model where there is one, is the teacher.
        loops: those of the optimizer, see :mod:`hoptimizer.optimizers.loops`.
        threshold: the optimizer's ``metric_threshold``, the least score of a run that counts; ``None`` where it has
            none: then all above 0 count.

    Returns:
        the optimizer's ``teacher``, which remembers its runs; others it makes when it is asked.
    """
    teacher = job.program.deepcopy()
    settings = {}
    if job.teacher_lm:
        teacher.lms = {}
        settings["lm"] = job.teacher_lm
    with dspy.context(trace=None, **settings):
        runs = Runs(dspy.settings.lm, job.workers)
        asyncio.run(_all_waves(teacher, job, loops, threshold, runs))
    return recalling(teacher, runs)


async def _all_waves(teacher: Program, job: Job, loops: Sequence[Loop], threshold: float | None, runs: Runs) -> None:
    await asyncio.gather(*(_waves(_labeled(teacher, loop), job, loop, threshold, runs) for loop in loops))


async def _waves(teacher: Program, job: Job, loop: Loop, threshold: float | None, runs: Runs) -> None:
    asked = failed = 0
    running: set[asyncio.Task[bool]] = set()
    while True:
        # A wave need not wait for the end of the one before, only until that can't be enough any more.
        while asked - failed < loop.bootstrapped and asked < len(loop.trainset):
            wave = loop.trainset[asked : asked + WAVE]
            running |= {asyncio.create_task(_succeeds(teacher, example, job, threshold, runs)) for example in wave}
            asked += len(wave)
        if not running:
            return
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        failed += sum(not task.result() for task in done)


async def _succeeds(teacher: Program, example: dspy.Example, job: Job, threshold: float | None, runs: Runs) -> bool:
    try:
        run = await runs.make(_without(teacher, example), example.question)
    except DSPyError:
        return False  # The bootstrap meets the same failure, and counts it.
    score = job.objective(example, run.prediction, None)
    # As the bootstrap does, for which a threshold of 0 is none.
    return score >= threshold if threshold else score > 0


def _labeled(teacher: Program, loop: Loop) -> Program:
    """The teacher as a loop begins with it."""
    if not loop.labeled:
        return teacher
    return dspy.LabeledFewShot(k=loop.labeled).compile(teacher, trainset=list(loop.trainset))


def _without(teacher: Program, example: dspy.Example) -> Program:
    """The teacher for a question: none is shown its own answer."""
    if not any(demo == example for predictor in teacher.predictors() for demo in predictor.demos):
        return teacher
    program = teacher.deepcopy()
    for predictor in program.predictors():
        predictor.demos = [demo for demo in predictor.demos if demo != example]
    return program
