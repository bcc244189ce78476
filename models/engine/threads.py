"""How many threads make a forward pass, and which parts of it.

The engine has a thread of its own, and OpenMP a team for each thread that calls it. As soon as there are more of them
than cores, as beside the main thread's team, OpenMP's workers no longer wait awake for the next piece of work: they
sleep and are woken twice for each. A decoding pass has hundreds of pieces, most of which take less than that.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from threadpoolctl import ThreadpoolController

# A pass of so few tokens reads weights as fast as memory gives them to one thread.
FEW_TOKENS = 16
# Up to so many, products with weights alone are worth waking other threads for.
SEVERAL_TOKENS = 64

P = ParamSpec("P")
T = TypeVar("T")


class _Products(threading.local):
    """By how many threads the calling thread's products with weights are made, where it else works alone."""

    threads = 1
    pools: ThreadpoolController | None = None


_products = _Products()


class Threads:
    """Lets the calling thread work alone where company costs more than it brings; the bits are the same.

    Unlike torch's own setting, which threads that start meanwhile would take over, it is of the calling thread.

    Example:
        >>> import torch
        >>> from hoptimizer.models.engine.threads import Threads, by_all
        >>> threads, before = Threads(), torch.get_num_threads()
        >>> with threads.of(tokens=1):
        ...     alone = torch.get_num_threads(), by_all(torch.get_num_threads)
        >>> with threads.of(tokens=32):
        ...     several = torch.get_num_threads(), by_all(torch.get_num_threads)
        >>> alone, several == (1, before), torch.get_num_threads() == before
        ((1, 1), True, True)
    """

    def __init__(self) -> None:
        self._pools = ThreadpoolController().select(
            user_api="openmp"
        )  # those that are loaded by now, torch's among them

    @contextmanager
    def of(self, tokens: int) -> Iterator[None]:
        """Within it, a pass of so many tokens is made."""
        if tokens > SEVERAL_TOKENS:
            yield
            return
        threads = 1 if tokens <= FEW_TOKENS else torch.get_num_threads()
        with self._pools.limit(limits=1):
            _products.threads, _products.pools = threads, self._pools
            try:
                yield
            finally:
                _products.threads = 1


def by_all(product: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a product with weights: by other threads too, where they otherwise wait."""
    if _products.threads == 1 or _products.pools is None:
        return product(*args, **kwargs)
    _limit(_products.pools, _products.threads)
    try:
        return product(*args, **kwargs)
    finally:
        _limit(_products.pools, 1)


def _limit(pools: ThreadpoolController, threads: int) -> None:
    for pool in pools.lib_controllers:
        pool.set_num_threads(threads)
