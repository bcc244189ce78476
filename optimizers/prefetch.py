"""Runs of a teacher, made concurrently ahead of DSPy's sequential bootstrap loop."""

import asyncio
from collections.abc import Sequence

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.optimizers.job import Job
from hoptimizer.programs import Program


def prefetch(job: Job, trainset: Sequence[dspy.Example], max_labeled_demos: int, threshold: float, wanted: int) -> None:
    """Answer the first questions of ``trainset`` with the teacher, so that DSPy's bootstrap finds them in the cache.

    ``dspy.BootstrapFewShot`` asks one question after the other until ``wanted`` of them scored well. Here waves of
    questions are asked at once until that many did: the same calls (a part of the last wave is spare), in the time
    of the longest ones.

    Args:
        job: the compile; its language models answer, through DSPy's cache.
        trainset: in the order in which the bootstrap goes through it.
        max_labeled_demos: demonstrations of the teacher.
        threshold: the least score of a run that counts.
        wanted: how many such runs the bootstrap looks for.
    """
    teacher = job.program.deepcopy()
    if max_labeled_demos:
        teacher = dspy.LabeledFewShot(k=max_labeled_demos).compile(teacher.reset_copy(), trainset=list(trainset))
    settings = {}
    if job.teacher_lm:
        teacher.lms = {}
        settings["lm"] = job.teacher_lm
    with dspy.context(trace=None, **settings):
        asyncio.run(_waves(teacher, trainset, job, threshold, wanted))


async def _waves(teacher: Program, trainset: Sequence[dspy.Example], job: Job, threshold: float, wanted: int) -> None:
    successes = 0
    # A wave is as wide as what is still wanted, doubled for those that fail.
    position = 0
    while successes < wanted and position < len(trainset):
        width = min(job.workers, 2 * (wanted - successes) + 2)
        wave = trainset[position : position + width]
        position += len(wave)
        scores = await asyncio.gather(*(_score(teacher, example, job) for example in wave))
        successes += sum(score >= threshold for score in scores)


async def _score(teacher: Program, example: dspy.Example, job: Job) -> float:
    # As the bootstrap does: no question is shown its own answer.
    program = teacher.deepcopy()
    for predictor in program.predictors():
        predictor.demos = [demo for demo in predictor.demos if demo != example]
    try:
        prediction = await program.acall(**example.inputs())
    except DSPyError:
        return 0.0  # The bootstrap meets the same failure, and counts it.
    # A judge that it may ask is waited for without holding up the other runs.
    return await asyncio.to_thread(job.objective, example, prediction)
