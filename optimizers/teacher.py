"""Who teaches in a compile, and which of its runs are good enough."""

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.optimizer import Job
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


def check_threshold(job: Job, threshold: float) -> None:
    """Look whether a run can score as well as it must.

    Args:
        job: the compile.
        threshold: the least score of a run that is shown or learned from.

    Raises:
        UserError: none can.
    """
    if threshold > job.objective.best:
        raise UserError(
            f"optimizer.metric_threshold: {threshold:g}, but {job.objective.label} is at most {job.objective.best:g}; "
            "lower it, or no run is ever good enough"
        )
