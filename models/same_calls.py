"""Calls that are the same wait for each other, so that the cache answers all but the first."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress

# By the call: ends when who makes it has its answer. DSPy's optimizers call from threads with loops of their own.
_under_way: dict[str, "Future[None]"] = {}
_lock = threading.Lock()


@asynccontextmanager
async def after_the_same(call: str, patience: float) -> AsyncIterator[None]:
    """Wait until nobody else in this process makes the same call. Of several, DSPy would make each.

    Args:
        call: tells it from others.
        patience: seconds after which it is made all the same: the one that makes it may wait for what waits here.
    """
    while (mine := _take(call)) is None:
        with suppress(KeyError):  # it ended meanwhile
            other = asyncio.shield(asyncio.wrap_future(_under_way[call]))
            try:
                await asyncio.wait_for(other, patience)
            except TimeoutError:
                break
    try:
        yield
    finally:
        if mine is not None:
            del _under_way[call]
            mine.set_result(None)


def _take(call: str) -> "Future[None] | None":
    """A call that nobody makes, as one's own to make; ``None`` where somebody makes it."""
    with _lock:
        if call in _under_way:
            return None
        mine = _under_way[call] = Future()
        return mine
