"""How many threads make a forward pass, and which parts of it.

The engine has a thread of its own, and OpenMP a team for each thread that calls it. As soon as there are more of them
than cores, as beside the main thread's team, OpenMP's workers no longer wait awake for the next piece of work: they
sleep and are woken twice for each. A decoding pass has hundreds of pieces, most of which take less than that.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from threadpoolctl import ThreadpoolController

# Up to so many tokens, only products with weights are worth waking other threads for,
SEVERAL_TOKENS = 64
# and up to so few only those with so many bytes of weights.
FEW_TOKENS = 16
LARGE = 5 << 20

P = ParamSpec("P")
T = TypeVar("T")


class _Products(threading.local):
    """Which products with weights the calling thread, which else works alone, makes with others.

    Attributes:
        least: the fewest bytes of weights.
        threads: how many threads make them.
        pools: the OpenMP libraries.
    """

    least = math.inf
    threads = 1
    pools: ThreadpoolController


_products = _Products()


class Threads:
    """Lets the calling thread work alone where company costs more than it brings; the bits are the same.

    Unlike torch's own setting, which threads that start meanwhile would take over, it is of the calling thread.

    Example:
        >>> import torch
        >>> from hoptimizer.models.engine.threads import Threads, by_all
        >>> threads, before = Threads(), torch.get_num_threads()
        >>> with threads.of(tokens=1):
        ...     alone = torch.get_num_threads(), by_all(1 << 20, torch.get_num_threads)
        >>> with threads.of(tokens=32):
        ...     several = torch.get_num_threads(), by_all(1 << 20, torch.get_num_threads)
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
        threads = torch.get_num_threads()
        if tokens > SEVERAL_TOKENS or threads == 1:
            yield
            return
        with self._pools.limit(limits=1):
            _products.pools, _products.threads = self._pools, threads
            _products.least = LARGE if tokens <= FEW_TOKENS else 0
            try:
                yield
            finally:
                _products.least = math.inf


def by_all(size: int, product: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a product with weights of ``size`` bytes: by other threads too, where they otherwise wait."""
    if size < _products.least:
        return product(*args, **kwargs)
    _limit(_products.pools, _products.threads)
    try:
        return product(*args, **kwargs)
    finally:
        _limit(_products.pools, 1)


def _limit(pools: ThreadpoolController, threads: int) -> None:
    for pool in pools.lib_controllers:
        pool.set_num_threads(threads)
