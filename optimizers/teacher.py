"""Who teaches in a compile, and which of its runs are good enough."""

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.programs import Program


def teacher_settings(context: CompileContext) -> dict[str, dspy.LM]:
    """What of DSPy's settings is different while the teacher runs."""
    return {"lm": context.teacher_lm} if context.teacher_lm else {}


def teacher(context: CompileContext) -> Program:
    """The program that teaches: on the teacher's language model alone, where there is one."""
    taught = context.program.deepcopy()
    if context.teacher_lm:
        taught.lms = {}
    return taught


def check_threshold(context: CompileContext, threshold: float) -> None:
    """Look whether a run can score as well as it must.

    Args:
        context: the compile.
        threshold: the least score of a run that is shown or learned from.

    Raises:
        UserError: none can.
    """
    if threshold > context.objective.best:
        raise UserError(
            f"optimizer.metric_threshold: {threshold:g}, but {context.objective.label} is at most "
            f"{context.objective.best:g}; lower it, or no run is ever good enough"
        )
