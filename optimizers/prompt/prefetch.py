"""Runs of a teacher, made concurrently before DSPy's sequential bootstrap loops."""

import asyncio
import logging
from collections.abc import Sequence

import dspy

from hoptimizer.common.concurrency import run_async
from hoptimizer.optimizers.format_check import WAVE, FormatCheck, check_format
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.bootstrap_loops import BootstrapLoop
from hoptimizer.optimizers.teacher import teacher, teacher_settings
from hoptimizer.optimizers.teacher_runs import TeacherRuns, replaying
from hoptimizer.programs import Program
from hoptimizer.programs.program import FAILURES

_log = logging.getLogger(__name__)


def prefetch(context: CompileContext, loops: Sequence[BootstrapLoop], threshold: float) -> Program:
    """Make the runs of a teacher that DSPy's bootstrap loops are going to need, many at once.

    A loop of DSPy asks the teacher one question after the other until enough runs have scored well. Here the questions
    are asked in waves of 16, and the waves of all loops at the same time. The runs are those of the loops, and up to a
    wave more per loop. They depend only on the outcomes of earlier runs, not on how fast these were or on
    ``context.workers``, the number of runs that are made at once. An optimizer of DSPy is then used as follows::

        teacher = prefetch(context, [BootstrapLoop(trainset, bootstrapped, labeled)], threshold)
        optimizer = dspy.BootstrapFewShot(metric=context.objective, metric_threshold=threshold, ...)
        optimizer.compile(context.program, teacher=teacher, trainset=trainset)

    The optimizer finds every run already made, including failed ones, and chooses the same demonstrations as without
    this function. It must be given the ``teacher_settings`` of :mod:`hoptimizer.optimizers.teacher`. Where no run
    reaches the threshold, it goes on without demonstrations, which a warning says.

    Args:
        context: the compile; its program, on the teacher's language model where there is one, is the teacher.
        loops: the loops of the optimizer, from :mod:`hoptimizer.optimizers.prompt.bootstrap_loops`.
        threshold: the optimizer's ``metric_threshold``, the least score of a run that counts; it must be above 0,
            which DSPy takes for no threshold.

    Returns:
        the optimizer's ``teacher``, which replays the runs that were made, and makes any other when it is asked for.

    Raises:
        UserError: no output of the teacher can be parsed; if that is so in the first wave of the first loop, no more
            runs are started.
    """
    taught = teacher(context)
    with dspy.context(**teacher_settings(context)):
        runs = TeacherRuns(dspy.settings.lm, context.workers)
        run_async(_all_waves(taught, context, loops, threshold, runs))
        check_format(runs.made)
    if runs.scores and max(runs.scores) < threshold:
        _log.warning(
            "optimizer.metric_threshold=%g: the best of %d runs of the teacher has %s %.2f, so that none is "
            "demonstrated; lower it, or take a better teacher",
            threshold,
            len(runs.scores),
            context.objective.label,
            max(runs.scores),
        )
    return replaying(taught, runs)


async def _all_waves(
    taught: Program, context: CompileContext, loops: Sequence[BootstrapLoop], threshold: float, runs: TeacherRuns
) -> None:
    async def all_of(number: int, loop: BootstrapLoop) -> None:
        format_check = FormatCheck([] if number else [example.id for example in loop.trainset])
        await _waves(_labeled(taught, loop), context, loop, threshold, runs, format_check)

    await asyncio.gather(*(all_of(number, loop) for number, loop in enumerate(loops)))


async def _waves(
    taught: Program,
    context: CompileContext,
    loop: BootstrapLoop,
    threshold: float,
    runs: TeacherRuns,
    format_check: FormatCheck,
) -> None:
    asked = failed = 0
    running: set[asyncio.Task[bool]] = set()
    try:
        while True:
            # A wave starts as soon as the runs before it can't be enough any more, even if all of them succeed.
            while asked - failed < loop.bootstrapped and asked < len(loop.trainset):
                wave = loop.trainset[asked : asked + WAVE]
                running.update(
                    asyncio.create_task(_succeeds(taught, example, context, threshold, runs, format_check))
                    for example in wave
                )
                asked += len(wave)
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed += (await asyncio.gather(*done)).count(False)
    finally:
        # A compile that was stopped has no use for the answers.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _succeeds(
    taught: Program,
    example: dspy.Example,
    context: CompileContext,
    threshold: float,
    runs: TeacherRuns,
    format_check: FormatCheck,
) -> bool:
    """Whether the teacher's run on a question scores well enough."""
    try:
        run = await format_check.run(runs.make(without(taught, example), **example.inputs()), example.id)
    except FAILURES:
        return False  # The bootstrap meets the same failure, and counts it.
    # Scored in a thread: the objective may wait for a judge, which must not hold up the other runs.
    score = await asyncio.to_thread(context.objective, example, run.prediction, None)
    runs.scores.append(score)
    return score >= threshold


def _labeled(taught: Program, loop: BootstrapLoop) -> Program:
    """The teacher with the labeled demonstrations that it has at the beginning of a loop."""
    if not loop.labeled:
        return taught
    return dspy.LabeledFewShot(k=loop.labeled).compile(taught, trainset=list(loop.trainset))


def without(taught: Program, example: dspy.Example) -> Program:
    """The teacher without a question's own demonstration, which would show it the answer.

    Args:
        taught: the teacher.
        example: the question.
    """
    if not any(demo == example for predictor in taught.predictors() for demo in predictor.demos):
        return taught
    program = taught.deepcopy()
    for predictor in program.predictors():
        predictor.demos = [demo for demo in predictor.demos if demo != example]
    return program
