"""What a language model's error on one question means for the other questions."""

from dspy.utils.exceptions import DSPyError, LMAuthError, LMConfigurationError, LMTransportError

from hoptimizer.common.errors import UserError

# Where one of these is raised, no other question can succeed.
SYSTEMIC = (LMTransportError, LMAuthError, LMConfigurationError)


def failure_of(error: DSPyError, who: str, section: str) -> str:
    """Why a question failed, in one line.

    Args:
        error: what was raised.
        who: how the message names the language model that failed.
        section: the section of the config that names it.

    Raises:
        UserError: every other question would fail too.
    """
    if isinstance(error, SYSTEMIC):
        raise UserError(f"{who} can't be used: {one_line(error)}; check {section}") from error
    if isinstance(error.__cause__, UserError):  # the model could not be loaded
        raise error.__cause__ from None
    return one_line(error)


def one_line(error: BaseException) -> str:
    """An exception's message on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
