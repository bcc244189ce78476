"""Running async work from code that is not async."""

import asyncio
import contextlib
import contextvars
import signal
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

Result = TypeVar("Result")

# Seconds after which a running event loop is asked whether it was interrupted.
_LOOK = 0.2


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also where an event loop is running already, as in a notebook.

    An interruption, such as Ctrl-C or that of a notebook's kernel, cancels the work before it rises.

    >>> async def double(number):
    ...     return 2 * number
    >>> run_async(double(4))
    8
    """
    try:
        around = asyncio.current_task()
    except RuntimeError:
        return asyncio.run(work)
    # The work gets a loop of its own in another thread, where context variables, DSPy's settings among them, hold as
    # they do here.
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def telling() -> Result:
        started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(contextvars.copy_context().run, asyncio.run, telling())
        try:
            while not wait([ended], timeout=_LOOK).done:
                # asyncio.run takes Ctrl-C for a cancellation of its task, which is waiting here.
                if around and around.cancelling():
                    raise asyncio.CancelledError
            return ended.result()
        except (KeyboardInterrupt, asyncio.CancelledError):
            loop, task = started.result()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the work has just ended
                loop.call_soon_threadsafe(task.cancel)  # type: ignore[union-attr] # in a coroutine there is one
            raise


async def all_of(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of works that run together. If one fails, the others are cancelled, and its error rises as it is.

    >>> async def double(number):
    ...     return 2 * number
    >>> run_async(all_of(double(number) for number in (1, 2)))
    [2, 4]
    """
    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as all_failed:  # what ends the work, such as BudgetExhausted, is no Exception
        failed = all_failed.exceptions[0]
    if failed:  # raised out here, it keeps its cause, which "from None" would take from it
        raise failed
    return [task.result() for task in tasks]


@contextlib.contextmanager
def beside() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own. What is left in it is cancelled, and ended, with it.

    >>> async def double(number):
    ...     return 2 * number
    >>> with beside() as loop:
    ...     asyncio.run_coroutine_threadsafe(double(4), loop).result()
    8
    """
    loop = asyncio.new_event_loop()

    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(loop.run_forever)
        try:
            yield loop
        finally:
            try:
                asyncio.run_coroutine_threadsafe(end(), loop).result()
            finally:  # a second Ctrl-C does not wait for what is left
                loop.call_soon_threadsafe(loop.stop)
    loop.close()


@contextlib.contextmanager
def entered(context: AbstractAsyncContextManager[Any], loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """An asynchronous context in an event loop that runs in another thread.

    Args:
        context: is entered now, and left in the end.
        loop: that one.
    """
    asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    kind: type[BaseException] | None = KeyboardInterrupt
    try:
        yield
        kind = None
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(kind, None, None), loop).result()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Work that Ctrl-C, or the interruption of a notebook's kernel, does not break off: it comes at the end of the
    work. A second one comes at once.

    >>> import signal
    >>> try:
    ...     with whole():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("to its end")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    to its end
    interrupted
    """
    handler = signal.getsignal(signal.SIGINT)
    # Handlers run in the main thread alone, and one that is not Python's can't be put back.
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    came = False

    def note(number: int, _: object) -> None:
        nonlocal came
        came = True
        signal.signal(number, handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
