"""Who teaches in a compile."""

import dspy

from hoptimizer.optimizers.job import Job
from hoptimizer.programs import Program


def teacher_settings(job: Job) -> dict[str, dspy.LM]:
    """What of DSPy's settings is different while the teacher runs."""
    return {"lm": job.teacher_lm} if job.teacher_lm else {}


def teacher(job: Job) -> Program:
    """The program that teaches: on the teacher's language model alone, where there is one."""
    taught = job.program.deepcopy()
    if job.teacher_lm:
        taught.lms = {}
    return taught
