"""Answers of language models that a cluster's workers keep where the command runs, whichever node asked for them."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dspy.clients import DISK_CACHE_LIMIT

from hoptimizer.executors.pool import MOST_CALLS, Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.models.disk_cache import answers_folder, open_disk

# Seconds after which nobody waits any more for a worker that claims nothing.
_SILENCE = 30.0


@dataclass(frozen=True)
class _Claim:
    """A call that a worker makes.

    Attributes:
        worker: makes it.
        until: the time after which it counts no more, whatever became of the worker.
        ended: whether it has an answer, or failed.
    """

    worker: str
    until: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class AnswerStore:
    """The driver's disk of answers, as a process beside the driver that the workers of all nodes ask, and which of
    them makes which call.

    It is an actor of Ray's, and knows nothing of Ray itself.

    Args:
        folder: holds the answers.
    """

    def __init__(self, folder: Path) -> None:
        self._disk = open_disk(folder, DISK_CACHE_LIMIT)
        self._claims: dict[str, _Claim] = {}
        self._heard: dict[str, float] = {}  # when workers claimed something last

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever was kept
        """What is kept under a key; ``None`` for nothing."""
        return self._disk.get(key)

    def set(self, key: str, value: Any) -> bool:  # noqa: ANN401 - whatever is kept
        """Keep a value; false where that failed."""
        return self._disk.set(key, value)

    async def claim(self, call: str, worker: str, patience: float) -> None:
        """Wait until no other worker makes a call, and claim it if none has made it meanwhile.

        Args:
            call: tells it from others.
            worker: is going to make it.
            patience: seconds for which the claim holds.
        """
        self._heard[worker] = now = time.monotonic()
        while claim := self._claims.get(call):
            # A worker that makes calls claims some all the time: one that does not has died, or is slow with this one.
            left = min(claim.until, self._heard[claim.worker] + _SILENCE) - now
            if left <= 0:
                break
            if claim.worker == worker:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(claim.ended.wait(), left)
                return  # there is an answer; or the call failed, and all that waited make it now
            now = time.monotonic()
        # One of all that waited takes it over, and is heard of with that.
        self._claims[call], self._heard[worker] = _Claim(worker, now + patience), now

    async def release(self, call: str, worker: str) -> None:
        """Let those go on who wait for a call that a worker has made."""
        if (claim := self._claims.get(call)) and claim.worker == worker:
            del self._claims[call]
            claim.ended.set()


class AskedStore:
    """An :class:`AnswerStore` as a worker has it, in the place of a disk of its own.

    An answer is at the driver's before anything is made of it: it outlives the worker.

    Args:
        store: the actor's handle.
    """

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - a handle of Ray's, which has no type
        self._store, self._worker = store, uuid.uuid4().hex

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever was kept
        """What is kept under a key; ``None`` for nothing."""
        return self._store.get.remote(key).future().result()

    def set(self, key: str, value: Any) -> bool:  # noqa: ANN401 - whatever is kept
        """Keep a value; false where that failed."""
        return bool(self._store.set.remote(key, value).future().result())

    async def claim(self, call: str, patience: float) -> None:
        """Wait until no other worker makes a call, and claim it for so many seconds."""
        await asyncio.wrap_future(self._store.claim.remote(call, self._worker, patience).future())

    def release(self, call: str) -> None:
        """Let those go on who wait for a call that was made here."""
        self._store.release.remote(call, self._worker)


@contextlib.contextmanager
def answering_workers(ray: ModuleType, settings: RayExecutor, kind: type[Any]) -> Iterator[Workers]:
    """Workers whose language models' answers are kept in this process' home, and found there.

    Args:
        ray: connected to the cluster.
        settings: the config's ``executor`` section.
        kind: what runs in the workers' processes; it is made from the store's handle.
    """
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    # What it has is on the disk: one that dies is started again, and asked again.
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
    options["max_concurrency"] = MOST_CALLS  # who waits for another's call must not keep its answer out
    store = ray.remote(AnswerStore).options(**options).remote(answers_folder().absolute())
    with Workers(ray, settings, kind, store) as workers:
        try:
            yield workers
        finally:
            workers.end(store)
