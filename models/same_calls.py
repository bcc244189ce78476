"""Calls that are the same wait for each other, so that the cache answers all but the first."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from dspy.utils.exceptions import LMError

# By the call: ends when who makes it has its answer. DSPy's optimizers call from threads with loops of their own.
_under_way: dict[str, "Future[None]"] = {}


@asynccontextmanager
async def after_the_same(call: str, patience: float) -> AsyncIterator[None]:
    """Wait until nobody else in this process makes the same call. Of several, DSPy would make each.

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
