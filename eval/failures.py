"""Why a question has no score."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspy.utils.exceptions import DSPyError

    from hoptimizer.common.errors import RefusedQueryError

MAX_UNANSWERED = 0.05
"""The greatest share of the questions that may get no answer from a language model, unless it is given."""


def failure_of(error: "DSPyError | RefusedQueryError", who: str, section: str) -> str:
    """Why a question failed, in one line.

    Args:
        error: what a language model or a search raised.
        who: how the message names the language model that failed.
        section: the section of the config that names it.

    Raises:
        UserError: every other question would fail too.
    """
    from hoptimizer.models.failures import one_line, unusable  # brings DSPy

    if reason := unusable(error, who, section):
        raise reason from error
    return one_line(error)
