"""Calls that are the same wait for each other, so that the cache answers all but the first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# By the event loop and the call: its lock, and how many have it or wait for it.
_locks: dict[tuple[int, str], tuple[asyncio.Lock, int]] = {}


@asynccontextmanager
async def after_the_same(call: str) -> AsyncIterator[None]:
    """Wait until no other task of this event loop makes the same call. Of several, DSPy would make each.

    Args:
        call: tells it from others.
    """
    # No lock of threads: a loop's entries are touched in its thread alone, and each operation on a dict is atomic.
    key = id(asyncio.get_running_loop()), call
    lock, users = _locks.get(key, (asyncio.Lock(), 0))
    _locks[key] = lock, users + 1
    try:
        async with lock:
            yield
    finally:
        lock, users = _locks.pop(key)
        if users > 1:
            _locks[key] = lock, users - 1
