"""Work on a request within a server's limits, and its counts."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from dspy.utils.exceptions import DSPyError

from hoptimizer.common.errors import PartError, ServiceError, UserError
from hoptimizer.common.strict import checked
from hoptimizer.common.urls import line_without_secrets
from hoptimizer.models.failures import explained
from hoptimizer.programs.steps.pages import UnknownPageError
from hoptimizer.serving.admission import Admission, Limits
from hoptimizer.serving.metrics import Metrics
from hoptimizer.serving.refusals import Refusal, invalid

_log = logging.getLogger(__name__)
_RETRY_AFTER = 5  # seconds, where a service behind this one fails


class Work:
    """The requests of one server.

    Args:
        what: is asked: ``question`` or ``search``.
        limits: how much is taken on.
    """

    def __init__(self, what: str, limits: Limits) -> None:
        self.limits = limits
        self.admission = Admission(limits)
        self.metrics = Metrics(what, self.admission)

    def checked(self, name: str, text: str) -> str:
        """A question or query without the spaces around it.

        Raises:
            Refusal: it is empty, too long or no valid text.
        """
        text = text.strip()
        if not text:
            raise invalid(f"{name}: expected some words, got none")
        if len(text) > self.limits.longest:
            raise invalid(f"{name}: expected at most {self.limits.longest} characters, got {len(text)}", 413)
        try:
            return str(checked(text))
        except ValueError as error:
            raise invalid(f"{name}: {error}") from None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Within it, a request is worked on: it waits for its turn first, and all of it ends at the timeout.

        Raises:
            Refusal: there is no place, time is up, or a service behind this one fails.
        """
        reason, limit = "error", asyncio.timeout(self.limits.timeout)
        try:
            async with limit, self.admission:
                yield
            reason = ""
        except Refusal as refusal:
            reason = refusal.kind
            raise
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        except UnknownPageError as error:  # of all that goes wrong in a program, this is what was asked wrongly
            wrong = invalid(line_without_secrets(error))
            reason = wrong.kind
            raise wrong from error
        except PartError as error:
            raise _unexpected(error.__cause__ or error) from error
        except (DSPyError, UserError) as error:
            told = error if isinstance(error, UserError) else explained(error)
            reason = "service" if isinstance(told, ServiceError) else "configuration"
            line = line_without_secrets(told)
            if reason == "service":
                raise Refusal(503, reason, line, _RETRY_AFTER) from error
            raise Refusal(500, reason, line) from error
        except Exception as error:  # a program or retriever of the user's raises anything; the client is told the same
            if isinstance(error, TimeoutError) and limit.expired():
                reason = "timeout"
                raise Refusal(504, reason, f"no answer within {self.limits.timeout:g} seconds") from None
            raise _unexpected(error) from error
        finally:
            if reason:
                self.metrics.failed(reason)


def _unexpected(error: BaseException) -> Refusal:
    """What a client is told of an error that the log has."""
    _log.exception("a request failed")
    return Refusal(500, "error", f"{type(error).__name__} in this server, whose log says more")
