"""Runs of a teacher, made concurrently ahead of DSPy's sequential bootstrap loops."""

import asyncio
from collections.abc import Sequence

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.optimizers.format_check import WAVE, FormatCheck, check_format
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.bootstrap_loops import BootstrapLoop
from hoptimizer.optimizers.teacher import teacher, teacher_settings
from hoptimizer.optimizers.teacher_runs import TeacherRuns, replaying
from hoptimizer.programs import Program


def prefetch(context: CompileContext, loops: Sequence[BootstrapLoop], threshold: float) -> Program:
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
        context: the compile; its program, on the teacher's language model where there is one, is the teacher.
        loops: those of the optimizer, see :mod:`hoptimizer.optimizers.prompt.bootstrap_loops`.
        threshold: the optimizer's ``metric_threshold``, the least score of a run that counts; above 0, which DSPy takes
            for none.

    Returns:
        the optimizer's ``teacher``, which remembers its runs; others it makes when it is asked.

    Raises:
        UserError: none of its outputs can be parsed; of the first loop's first wave that is said at once.
    """
    taught = teacher(context)
    with dspy.context(**teacher_settings(context)):
        runs = TeacherRuns(dspy.settings.lm, context.workers)
        asyncio.run(_all_waves(taught, context, loops, threshold, runs))
        check_format(runs.made)
    return replaying(taught, runs)


async def _all_waves(
    taught: Program, context: CompileContext, loops: Sequence[BootstrapLoop], threshold: float, runs: TeacherRuns
) -> None:
    async def all_of(number: int, loop: BootstrapLoop) -> None:
        trial = FormatCheck([] if number else [example.id for example in loop.trainset])
        await _waves(_labeled(taught, loop), context, loop, threshold, runs, trial)

    await asyncio.gather(*(all_of(number, loop) for number, loop in enumerate(loops)))


async def _waves(
    taught: Program,
    context: CompileContext,
    loop: BootstrapLoop,
    threshold: float,
    runs: TeacherRuns,
    trial: FormatCheck,
) -> None:
    asked = failed = 0
    running: set[asyncio.Task[bool]] = set()
    try:
        while True:
            # A wave need not wait for the end of the one before, only until that can't be enough any more.
            while asked - failed < loop.bootstrapped and asked < len(loop.trainset):
                wave = loop.trainset[asked : asked + WAVE]
                running.update(
                    asyncio.create_task(_succeeds(taught, example, context, threshold, runs, trial)) for example in wave
                )
                asked += len(wave)
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed += (await asyncio.gather(*done)).count(False)
    finally:
        # Nobody wants the answers of a compile that was stopped.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _succeeds(
    taught: Program,
    example: dspy.Example,
    context: CompileContext,
    threshold: float,
    runs: TeacherRuns,
    trial: FormatCheck,
) -> bool:
    """Whether a run scores well enough."""
    try:
        run = await trial.run(runs.make(without(taught, example), example.question), example.id)
    except DSPyError:
        return False  # The bootstrap meets the same failure, and counts it.
    # A judge that it may ask is waited for without holding up the other runs.
    return await asyncio.to_thread(context.objective, example, run.prediction, None) >= threshold


def _labeled(taught: Program, loop: BootstrapLoop) -> Program:
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
