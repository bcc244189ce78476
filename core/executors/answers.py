"""Answers of language models that a cluster's workers keep where the command runs, whichever node asked for them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dspy.clients import DISK_CACHE_LIMIT

from hoptimizer.executors.pool import Workers
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.models.disk_cache import answers_folder, open_disk


class AnswerStore:
    """The driver's disk of answers, as a process beside the driver that the workers of all nodes ask.

    It is an actor of Ray's, and knows nothing of Ray itself.

    Args:
        folder: holds the answers.
    """

    def __init__(self, folder: Path) -> None:
        self._disk = open_disk(folder, DISK_CACHE_LIMIT)

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever was kept
        """What is kept under a key; ``None`` for nothing."""
        return self._disk.get(key)

    def set(self, key: str, value: Any) -> bool:  # noqa: ANN401 - whatever is kept
        """Keep a value; false where that failed."""
        return self._disk.set(key, value)


class AskedStore:
    """An :class:`AnswerStore` as a worker has it, in the place of a disk of its own.

    An answer is at the driver's before anything is made of it: it outlives the worker.

    Args:
        store: the actor's handle.
    """

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - a handle of Ray's, which has no type
        self._store = store

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever was kept
        """What is kept under a key; ``None`` for nothing."""
        return self._store.get.remote(key).future().result()

    def set(self, key: str, value: Any) -> bool:  # noqa: ANN401 - whatever is kept
        """Keep a value; false where that failed."""
        return bool(self._store.set.remote(key, value).future().result())


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
    store = ray.remote(AnswerStore).options(**options).remote(answers_folder().absolute())
    with Workers(ray, settings, kind, store) as workers:
        try:
            yield workers
        finally:
            workers.end(store)
