"""Calls that are the same wait for each other, so that the cache answers all but the first."""

import asyncio
import hashlib
import inspect
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import LMError

from hoptimizer.models.disk_cache import kept_elsewhere

_CLASS = "_dspy_lm_class"
# Seconds for which another process' claim of a call holds, for models without a time in which they have to answer.
_CLAIMED = 180.0
# Seconds for which an event loop may do nothing while others wait for a call that is made in it.
_STANDSTILL = 30.0


@dataclass(frozen=True, eq=False)
class _Call:
    """A call that is being made: the event loop that makes it, and what ends with it.

    DSPy's optimizers call from threads with loops of their own.
    """

    loop: asyncio.AbstractEventLoop
    ended: "Future[None]" = field(default_factory=Future)

    async def ends(self) -> bool:
        """Wait for its end; false where it has none, because its loop stands still.

        However long it waits for its turn or is made again, it ends by itself for as long as its loop goes on.

        Raises:
            LMError: it had no answer.
        """
        while not await _within(_STANDSTILL, self.ended):
            if not await self._goes_on():
                return False
        return True

    async def _goes_on(self) -> bool:
        asked: Future[None] = Future()
        try:
            self.loop.call_soon_threadsafe(asked.set_result, None)
        except RuntimeError:  # the loop was closed
            return False
        return await _within(_STANDSTILL, asked)


async def _within(seconds: float, future: "Future[None]") -> bool:
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), seconds)
    except TimeoutError:
        return False
    return True


_under_way: dict[str, _Call] = {}
_lock = threading.Lock()


def _who_makes(call: str, mine: _Call, stuck: _Call | None) -> _Call:
    """The one that makes a call: who does already, or else the one that asks, as in the place of one that is stuck."""
    with _lock:
        if _under_way.get(call) in (None, stuck):
            _under_way[call] = mine
        return _under_way[call]


@asynccontextmanager
async def after_the_same(call: str) -> AsyncIterator[None]:
    """Wait until nobody else in this process makes the same call.

    All that wait for a call fail with it: each would make it again, with all its tries, one after another. Where its
    event loop stands still, as that of a notebook may for the very work that waits here, one of them makes it instead.

    Args:
        call: tells it from others.

    Raises:
        LMError: the one that made it had no answer.
    """
    mine, stuck = _Call(asyncio.get_running_loop()), None
    while (other := _who_makes(call, mine, stuck)) is not mine:
        stuck = None if await other.ends() else other
    failure = None
    try:
        yield
    except LMError as error:
        failure = error
        raise
    finally:
        with _lock:
            if _under_way.get(call) is mine:
                del _under_way[call]
        if failure:
            mine.ended.set_exception(failure)
        else:
            mine.ended.set_result(None)


@asynccontextmanager
async def _after_the_same_elsewhere(call: str, patience: float) -> AsyncIterator[None]:
    """Wait until no other process makes the same call that keeps its answers where this one does, if any does."""
    if not (store := kept_elsewhere()):
        yield
        return
    digest = hashlib.sha256(call.encode()).hexdigest()
    try:
        await store.claim(digest, patience)
        yield
    finally:
        store.release(digest)


class OnceLM(dspy.LM):
    """A ``dspy.LM`` that makes a call once that is asked for several times at once; DSPy would make each of them."""

    @with_callbacks
    async def acall(
        self,
        prompt: Any = None,  # noqa: ANN401 - DSPy's
        *,
        messages: list[dict[str, Any]] | None = None,
        **kwargs: Any,  # noqa: ANN401 - DSPy's
    ) -> Any:  # noqa: ANN401 - DSPy's
        """One asynchronous call, as of ``dspy.LM``; one that is under way already is not made a second time."""
        if not kwargs.get("cache", self.cache):
            return await self._make(prompt, messages, kwargs)
        asked = [self.model, getattr(self, "prompt_format", None), prompt, messages, kwargs, self.kwargs]
        call, patience = json.dumps(asked, default=str), self.kwargs.get("timeout", _CLAIMED)
        async with after_the_same(call), _after_the_same_elsewhere(call, patience):
            return await self._make(prompt, messages, kwargs)

    async def _make(self, prompt: Any, messages: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - DSPy's
        # Without DSPy's wrapper: callbacks hear of the call, not of each time that it is made.
        return await inspect.unwrap(dspy.LM.acall)(self, prompt, messages=messages, **kwargs)

    def dump_state(self) -> dict[str, Any]:
        """The state of a ``dspy.LM``, as which it is loaded."""
        return super().dump_state() | {_CLASS: "dspy.clients.lm.LM"}
