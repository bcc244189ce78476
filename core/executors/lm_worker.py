"""What runs in a worker's process while a program is compiled: the ``local/`` language models that it is asked."""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass

from dspy import lm15

from hoptimizer.executors.task import Node, Refusal
from hoptimizer.executors.worker import OnNode, refusal_of
from hoptimizer.models.engine.calls import Call
from hoptimizer.models.engine.engine import answer, release_outdated
from hoptimizer.models.engine.request import Completion


@dataclass(frozen=True)
class Untakable:
    """Why the model can't take a call: DSPy's own errors can't go from process to process.

    Attributes:
        message: in one line.
        feature: what it lacks; ``None`` where the prompt is too long.
    """

    message: str
    feature: str | None = None

    @property
    def error(self) -> lm15.LM15Error:
        """What DSPy takes for it."""
        if self.feature is None:
            return lm15.ContextLengthError(self.message)
        return lm15.UnsupportedFeatureError(self.message, feature=self.feature)


class LMWorker(OnNode):
    """Answers the calls of language models that are loaded here, from this machine's weights."""

    async def start(self, node: Node) -> Refusal | None:
        """See whether this machine answers as the driver would.

        Args:
            node: what its machine must have.

        Returns:
            why it does not, or ``None``.
        """
        told = node.lacking()
        return Refusal(told) if told else None

    async def answer(self, call: Call) -> Completion | Untakable | Refusal:
        """Answer a call; those that come at once share batches.

        Args:
            call: of the driver's program.
        """
        try:
            # Rendering, counting and, the first time, loading take too long for the event loop.
            return await asyncio.wrap_future(await asyncio.to_thread(_answer, call))
        except lm15.UnsupportedFeatureError as error:
            return Untakable(str(error), error.feature)
        except lm15.ContextLengthError as error:
            return Untakable(str(error))
        except Exception as error:
            if refusal := refusal_of(error):
                return refusal
            raise


def _answer(call: Call) -> "Future[Completion]":
    release_outdated(call.request.model)  # a compile may have trained it again in its folder
    return answer(call)
