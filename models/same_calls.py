"""Calls that are the same wait for each other, so that the cache answers all but the first."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import LMError

from hoptimizer.models.disk_cache import kept_elsewhere

_CLASS = "_dspy_lm_class"
# Seconds, for models without a time in which they have to answer.
_PATIENCE = 180.0

# By the call: ends when who makes it has its answer. DSPy's optimizers call from threads with loops of their own.
_under_way: dict[str, "Future[None]"] = {}


@asynccontextmanager
async def after_the_same(call: str, patience: float) -> AsyncIterator[None]:
    """Wait until nobody else in this process makes the same call.

    All that wait for a call fail with it: each would make it again, with all its tries, one after another.

    Args:
        call: tells it from others.
        patience: seconds after which it is made all the same: the one that makes it may wait for what waits here.

    Raises:
        LMError: the one that made it had no answer.
    """
    mine: Future[None] = Future()
    # One operation on a dict is atomic: of several that ask at once, one finds its own.
    while (other := _under_way.setdefault(call, mine)) is not mine:
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(other)), patience)
        except TimeoutError:
            break
    failure = None
    try:
        yield
    except LMError as error:
        failure = error
        raise
    finally:
        if _under_way.get(call) is mine:
            del _under_way[call]
            if failure:
                mine.set_exception(failure)
            else:
                mine.set_result(None)


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
        call, patience = json.dumps(asked, default=str), self.kwargs.get("timeout", _PATIENCE)
        async with after_the_same(call, patience), _after_the_same_elsewhere(call, patience):
            return await self._make(prompt, messages, kwargs)

    async def _make(self, prompt: Any, messages: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - DSPy's
        # Without DSPy's wrapper: callbacks hear of the call, not of each time that it is made.
        return await inspect.unwrap(dspy.LM.acall)(self, prompt, messages=messages, **kwargs)

    def dump_state(self) -> dict[str, Any]:
        """The state of a ``dspy.LM``, as which it is loaded."""
        return super().dump_state() | {_CLASS: "dspy.clients.lm.LM"}
