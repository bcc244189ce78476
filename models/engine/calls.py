"""Calls of ``local/`` models: which of the samples of a request is meant, and what answers it."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dspy import lm15
from dspy.utils.callback import BaseCallback

from hoptimizer.models.engine.request import Completion


@dataclass
class Rollout:
    """Tells repeated samples of one request apart: DSPy's rollout id, and the place among ``n`` candidates."""

    id: int = 0
    candidate: int = 0


_rollout: ContextVar[Rollout | None] = ContextVar("hoptimizer_rollout", default=None)


class RolloutCallback(BaseCallback):
    """Lets the engine see DSPy's ``rollout_id``, which DSPy itself hands to no engine.

    With it, what is sampled is a function of the request and its rollout alone, whatever order calls finish in.
    """

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        options = {**instance.kwargs, **(inputs.get("kwargs") or {})}
        _rollout.set(Rollout(options.get("rollout_id") or 0))


def next_rollout() -> Rollout:
    """The sample that is asked for now; the next one is another candidate."""
    now = _rollout.get() or Rollout()
    taken = Rollout(now.id, now.candidate)
    now.candidate += 1
    return taken


@dataclass(frozen=True)
class Call:
    """A request, and what else decides on its answer.

    Attributes:
        request: DSPy's; its ``model`` is a ``local/NAME`` string.
        templated: whether messages go through the model's chat template.
        rollout: which of its samples is meant.
    """

    request: lm15.Request
    templated: bool
    rollout: Rollout


Asks = Callable[[Call], "Future[Completion]"]
_asked: list[Asks] = []  # the last one is


@contextlib.contextmanager
def answered_by(asks: Asks) -> Iterator[None]:
    """Within it, no model of this process is loaded for a call: something else answers, such as a cluster's workers.

    Args:
        asks: what answers.

    Example:
        >>> from concurrent.futures import Future
        >>> from hoptimizer.models import LMSettings, build_lm
        >>> from hoptimizer.models.engine.calls import answered_by
        >>> from hoptimizer.models.engine.request import Completion
        >>> def asks(call):
        ...     answer = Future()
        ...     answer.set_result(Completion("Oslo", True, False, prompt_tokens=8, cached_tokens=0, tokens=1))
        ...     return answer
        >>> with answered_by(asks):
        ...     build_lm(LMSettings(model="local/smollm2-135m-instruct", cache=False))("The capital of Norway?")
        ['Oslo']
    """
    _asked.append(asks)
    try:
        yield
    finally:
        _asked.remove(asks)


def elsewhere() -> Asks | None:
    """What answers in the place of this process' models; ``None`` where they do themselves."""
    return _asked[-1] if _asked else None
