"""The head of a Ray cluster: work ends in one line when it is gone, before Ray ends the process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import ModuleType

from hoptimizer.common.errors import ServiceError

# Seconds. Ray itself ends a process that has been without a head for sixty, with a page of its C++ code's trace.
_PAUSE, _TIMEOUT, _LIMIT = 2.0, 5.0, 20.0


@contextlib.asynccontextmanager
async def while_head_answers(ray: ModuleType) -> AsyncIterator[None]:
    """What is awaited within it is cancelled where the head gives no answer for twenty seconds.

    A head that is back before that has kept nothing up: calls go from the driver to the workers themselves.

    Args:
        ray: connected to the cluster.

    Raises:
        ServiceError: the head is gone.
    """
    address: str = ray.get_runtime_context().gcs_address
    task, gone = asyncio.current_task(), False

    async def watch() -> None:
        nonlocal gone
        last = time.monotonic()
        while time.monotonic() - last < _LIMIT:
            await asyncio.sleep(_PAUSE)
            if await _answers(address):
                last = time.monotonic()
        gone = True
        if task:
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        if task:
            task.uncancel()
        raise ServiceError(
            f"executor=ray: the cluster's head at {address} has given no answer for {_LIMIT:g} s; what was answered is "
            "kept, and the same command goes on once there is a cluster again, or with executor.address=local"
        ) from None
    finally:
        watching.cancel()


async def _answers(address: str) -> bool:
    """Whether something takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_TIMEOUT):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:  # refused, out of reach, or late
        return False
    writer.close()
    return True
