"""How many threads make a forward pass."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from threadpoolctl import ThreadpoolController

# A pass of so few tokens reads weights as fast as memory gives them to one thread, and has hundreds of small
# operations, between which other threads would have to be woken.
FEW_TOKENS = 16


class Threads:
    """Lets the calling thread work alone where company costs more than it brings; the bits are the same.

    Unlike torch's own setting, which threads that start meanwhile would take over, it is of the calling thread.

    Example:
        >>> import torch
        >>> from hoptimizer.models.engine.threads import Threads
        >>> threads, before = Threads(), torch.get_num_threads()
        >>> with threads.of(tokens=1):
        ...     alone = torch.get_num_threads()
        >>> alone, torch.get_num_threads() == before
        (1, True)
    """

    def __init__(self) -> None:
        self._pools = ThreadpoolController()  # of the libraries that are loaded by now, torch's among them

    def of(self, tokens: int) -> AbstractContextManager[Any]:
        """Within it, a pass of so many tokens is made."""
        return self._pools.limit(limits=1, user_api="openmp") if tokens <= FEW_TOKENS else nullcontext()
