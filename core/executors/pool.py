"""The workers of a cluster, and work handed out to them."""

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, TypeVar

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.executors.head import Head
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.task import Refusal

Answer = TypeVar("Answer")
Follow = Callable[[Any], Coroutine[Any, Any, None]]

MOST_CALLS = 10_000
"""Calls of a worker that Ray lets be under way; how many there are, the driver decides."""

# How often something is asked whose workers die.
_MOST_DEATHS = 3
# What Ray says where a worker's code is not on its node.
_IMPORT = "failed to import on the worker"
_log = logging.getLogger(__name__)


class WorkersDiedError(ServiceError):
    """Every worker that was asked one thing died."""


class Workers:
    """Makes workers and lends them; one that is given back is lent again, since a new one takes seconds to start.

    Args:
        ray: connected to the cluster.
        settings: what a worker takes.
        kind: the class of what runs in a worker's process, with the methods ``host``, ``start`` and ``answer``, as
            :class:`~hoptimizer.executors.worker.Worker` has them.
        made_from: arguments of that class.

    Attributes:
        ray, settings: as given.
        head: the cluster's, without which there is no work.
    """

    def __init__(self, ray: ModuleType, settings: RayExecutor, kind: type[Any], *made_from: object) -> None:
        self.ray, self.settings, self.head = ray, settings, Head(ray)
        self._class = ray.remote(kind).options(
            num_cpus=settings.cpus, num_gpus=settings.gpus, max_concurrency=MOST_CALLS, max_restarts=0
        )
        self._made_from, self._idle = made_from, list[Any]()
        self._lock = threading.Lock()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self.end(self._idle.pop())

    def take(self) -> Any:  # noqa: ANN401 - a handle of Ray's, which has no type
        """A worker that nobody else has; it may have to be started first."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._class.remote(*self._made_from)

    def give(self, worker: Any) -> None:  # noqa: ANN401 - as above
        """Give back a worker that has nothing to do."""
        with self._lock:
            self._idle.append(worker)

    def end(self, worker: Any) -> None:  # noqa: ANN401 - as above
        """End a worker, whatever it does."""
        with contextlib.suppress(self.ray.exceptions.RayError):  # the cluster may be gone
            self.ray.kill(worker)


@dataclass(eq=False)
class _Seat:
    """A worker at work: a handle of Ray's, where it runs, and whether it died."""

    worker: Any
    host: str = "a node"
    is_dead: bool = False


@dataclass(order=True, frozen=True)
class _Place:
    """One of the places of a worker. The first places of all workers are taken before the second ones.

    Attributes:
        number: of the place at its worker.
        worker: the worker's number.
        held_by: the worker, or why there is none.
    """

    number: int
    worker: int
    held_by: _Seat | Exception = field(compare=False)


@dataclass
class Pool(Generic[Answer]):
    """Workers that answer the questions of one evaluation, or do other work that comes in parts. A worker that dies is
    replaced, and what it had in hand is asked again.

    Args:
        workers: lends them.
        size: how many there are.
        told: arguments of each worker's start: what it makes its program from.
        share: questions under way at each of them.

    Example:
        the pool is an asynchronous context, in which :meth:`ask` is called for many questions at once.
    """

    workers: Workers
    size: int
    told: tuple[Any, ...]
    share: int
    _seats: list[_Seat] = field(default_factory=list)
    _starts: set["asyncio.Task[None]"] = field(default_factory=set)
    _started_ever: int = 0
    _deaths: int = 0

    async def __aenter__(self) -> "Pool":
        self._free: asyncio.PriorityQueue[_Place] = asyncio.PriorityQueue()
        self._last_tries = asyncio.Lock()
        for _ in range(self.size):
            self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for start in self._starts:
            start.cancel()
        for seat in self._seats:
            # What was stopped has questions in hand that nobody wants.
            (self.workers.end if kind or seat.host == _Seat.host else self.workers.give)(seat.worker)

    async def ask(self, question: Any, follow: Follow | None = None) -> Answer:  # noqa: ANN401 - whatever workers answer
        """A question's outcome.

        Args:
            question: what the workers' ``answer`` takes.
            follow: is given the worker, and goes on for as long as that works on the question.

        Raises:
            UserError: workers can't do what they were told.
            WorkersDiedError: each that was asked died.
            ServiceError: they die whatever they do, or none can be started; or a service that they need has no answer.
        """
        errors = self.workers.ray.exceptions
        for deaths in range(_MOST_DEATHS):
            # Of what was in hand where workers died, the last try is made one by one: so it shows which of them did it.
            async with self._last_tries if deaths == _MOST_DEATHS - 1 else contextlib.nullcontext():
                with contextlib.suppress(errors.RayActorError, errors.ObjectLostError):
                    return await self._asked(question, follow)
        raise WorkersDiedError(f"executor=ray: each of the {_MOST_DEATHS} workers that were asked it died")

    async def _asked(self, question: Any, follow: Follow | None) -> Answer:  # noqa: ANN401 - as above
        place = await self._free.get()
        while not isinstance(seat := place.held_by, Exception) and seat.is_dead:
            place = await self._free.get()
        if isinstance(seat, Exception):
            self._free.put_nowait(place)  # the others have to hear of it
            raise seat
        errors = self.workers.ray.exceptions
        answer = seat.worker.answer.remote(question)
        followed = asyncio.ensure_future(follow(seat.worker)) if follow else None
        try:
            outcome: Answer | Refusal = await answer
        except asyncio.CancelledError:
            self.workers.ray.cancel(answer)
            raise
        except (errors.RayActorError, errors.ObjectLostError) as error:  # an answer can be lost with its node, too
            self._lost(seat, error)
            raise
        except errors.OutOfDiskError as error:
            raise ServiceError(
                f"executor=ray: no space is left on a node's disk, where Ray keeps what is in transit "
                f"({_reason(error)}); free some, and give the same command again"
            ) from error
        finally:
            if followed:
                followed.cancel()
            # Whatever became of the question; at a worker that died the place is passed over.
            self._free.put_nowait(place)
        self._deaths = 0
        if isinstance(outcome, Refusal):
            raise _told(outcome, f"worker on {seat.host}: ")
        return outcome

    def _fail(self, error: Exception) -> None:
        """Let everybody who waits for a place hear why there is none."""
        self._free.put_nowait(_Place(-1, -1, error))

    def _start(self) -> None:
        seat = _Seat(self.workers.take())
        self._seats.append(seat)
        start = asyncio.create_task(self._started(seat))
        self._starts.add(start)
        start.add_done_callback(self._start_ended)

    def _start_ended(self, start: "asyncio.Task[None]") -> None:
        self._starts.discard(start)
        if not start.cancelled() and isinstance(error := start.exception(), Exception):
            self._fail(error)  # nobody else would hear of it

    async def _started(self, seat: _Seat) -> None:
        """Wait for a worker, which gets its places once its program is made."""
        try:
            if not (host := await self._host(seat)):
                return
            seat.host = host
            refusal = await seat.worker.start.remote(*self.told)
        except self.workers.ray.exceptions.RayActorError as error:
            self._lost(seat, error)
            return
        except self.workers.ray.exceptions.RayTaskError as error:
            if _IMPORT not in str(error):
                raise
            self._fail(_cant_start(error))
            return
        if refusal:
            self._fail(_told(refusal, f"worker on {seat.host}: "))
            return
        self._started_ever += 1
        for number in range(self.share):
            self._free.put_nowait(_Place(number, self._started_ever, seat))

    async def _host(self, seat: _Seat) -> str | None:
        """Where a worker runs, once it does; ``None`` where none can be started."""
        asked = asyncio.ensure_future(seat.worker.host.remote())
        limit = self.workers.settings.start_timeout
        while not (await asyncio.wait({asked}, timeout=limit))[0]:
            if not any(other.host != _Seat.host for other in self._seats):
                asked.cancel()
                self._fail(ServiceError(self._none_started(limit)))
                return None
        return asked.result()

    def _none_started(self, limit: float) -> str:
        settings, there = self.workers.settings, self.workers.ray.cluster_resources()
        wanted = f"{settings.cpus:g} CPUs" + (f" and {settings.gpus:g} GPUs" if settings.gpus else "")
        has = f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs"
        return (
            f"executor=ray: no worker could be started in {limit:g} s; each wants {wanted}, and the cluster has {has} "
            "in all: free some, or change executor.cpus and executor.gpus"
        )

    def _lost(self, seat: _Seat, error: Exception) -> None:
        """Take another worker in the place of one that died, unless they all do."""
        if seat.is_dead:
            return
        seat.is_dead = True
        self._seats.remove(seat)
        self.workers.end(seat.worker)
        self._deaths += 1
        reason = _reason(error)
        if getattr(error, "actor_init_failed", False):  # the next one would fail likewise
            self._fail(_cant_start(error))
            return
        if self._deaths > 2 * self.size + 1:
            self._fail(
                ServiceError(
                    f"executor=ray: {self._deaths} workers in a row died before they answered a question ({reason}); "
                    "what was answered is kept, and the same command goes on from there"
                )
            )
            return
        _log.warning("a worker on %s died (%s); another one is asked what it had in hand", seat.host, reason)
        self._start()


def _told(refusal: Refusal, where: str) -> UserError:
    return (ServiceError if refusal.is_outage else UserError)(f"{where}{refusal.message}")


def _cant_start(error: Exception) -> UserError:
    """What a node's own packages keep from starting."""
    found = re.search(r"\bip=([\w.:]+)", str(error))
    return UserError(
        f"executor=ray: a worker can't start on {found[1] if found else 'a node'} ({_reason(error)}); install the same "
        "versions of Python, hoptimizer and DSPy on all nodes"
    )


def _reason(error: Exception) -> str:
    """The line of Ray's message that says why: the last one of an error at the start, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "creation task" in lines[0] or _IMPORT in str(error) else lines[0]
