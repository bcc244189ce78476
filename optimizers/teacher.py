"""The teacher of a compile, and the score that its runs must reach."""

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.programs import Program


def teacher_settings(context: CompileContext) -> dict[str, dspy.LM]:
    """The DSPy settings that differ while the teacher runs.

    Args:
        context: the compile.
    """
    return {"lm": context.teacher_lm} if context.teacher_lm else {}


def teacher(context: CompileContext) -> Program:
    """The program that teaches; where there is a teacher's language model, all its steps use that one.

    Args:
        context: the compile.
    """
    taught = context.program.deepcopy()
    if context.teacher_lm:
        taught.lms = {}
    return taught


def check_threshold(context: CompileContext, threshold: float) -> None:
    """Make sure that a run can reach the score that it needs.

    Args:
        context: the compile.
        threshold: the least score of a run that is shown or learned from.

    Raises:
        UserError: no run can reach it.
    """
    if threshold > context.objective.best:
        raise UserError(
            f"optimizer.metric_threshold: {threshold:g}, but {context.objective.label} is at most "
            f"{context.objective.best:g}; lower it, or no run is ever good enough"
        )
