"""The head of a Ray cluster: work ends in one line when it is gone, before Ray ends the process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

from hoptimizer.common.errors import ServiceError

# Seconds. Ray itself ends a process that has been without a head for sixty, with a page of its C++ code's trace.
_PAUSE, _TIMEOUT, _LIMIT = 2.0, 5.0, 20.0


class LostHeadError(ServiceError):
    """The head of a cluster is gone, and with it whatever was to be asked there."""


class Head:
    """The head of a cluster, which is watched while somebody needs it; one watch serves all of them.

    Args:
        ray: connected to the cluster.
    """

    def __init__(self, ray: ModuleType) -> None:
        self._address: str = ray.get_runtime_context().gcs_address
        self._needing: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._is_lost = False

    @contextlib.asynccontextmanager
    async def needed(self) -> AsyncIterator[None]:
        """What is awaited within it is cancelled where the head gives no answer for twenty seconds, and is not begun
        once that was so: Ray itself would wait for the head, and the event loop with it.

        A head that is back before that has kept nothing up: calls go from the driver to the workers themselves.

        Raises:
            LostHeadError: the head is gone.
        """
        if self._is_lost:
            raise self._lost()
        task = asyncio.current_task()
        assert task is not None  # this is awaited
        self._needing.add(task)
        self._watch = self._watch or asyncio.create_task(self._watching())
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise self._lost() from None
        finally:
            self._needing.discard(task)
            self._ended.discard(task)
            if not self._needing:
                self._watch.cancel()
                self._watch = None

    def _lost(self) -> LostHeadError:
        return LostHeadError(
            f"executor=ray: the cluster's head at {self._address} has given no answer for {_LIMIT:g} s; what was "
            "answered is kept, and the same command goes on once there is a cluster again, or with "
            "executor.address=local"
        )

    async def _watching(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(_PAUSE)
            if await _answers(self._address):
                last = time.monotonic()
            elif time.monotonic() - last >= _LIMIT:
                self._is_lost = True
                for task in self._needing - self._ended:
                    self._ended.add(task)
                    task.cancel()


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
