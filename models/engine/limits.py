"""What the processor can do: how fast it is at most, and how many rows of a product it sums in one order."""

import math
import time
import timeit
from collections.abc import Callable
from functools import cache

import torch

AMX_ROWS = 32
"""Up to so many rows of a bf16 product, AMX gives each the same bits."""

# Seconds; a processor without bf16 takes as long for one large product.
_LONGEST = 2.0


@cache
def has_amx() -> bool:
    """Whether the processor multiplies bf16 by AMX, as Intel's servers do since 2023."""
    return bool(torch.cpu._is_amx_tile_supported())


def bf16_flops() -> float:
    """Floating-point operations a second in a large product of bf16 matrices."""
    size = 2048
    left, right = (torch.ones(size, size, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / best_of(lambda: left @ right, 10, _LONGEST)


def read_bytes() -> float:
    """Bytes of memory that are read a second."""
    large = torch.ones(256 << 20, dtype=torch.uint8).view(torch.int64)
    return large.nbytes / best_of(lambda: large.sum(), 10, _LONGEST)


def best_of(call: Callable[[], object], times: int, longest: float = math.inf) -> float:
    """Seconds of the fastest of several calls.

    Args:
        call: what is timed.
        times: how often, at most.
        longest: seconds after which it is timed no more.

    >>> 0 < best_of(lambda: sum(range(1000)), times=3) < 1
    True
    """
    begin, best = time.monotonic(), math.inf
    for _ in range(times):
        best = min(best, timeit.timeit(call, number=1))
        if time.monotonic() - begin > longest:
            break
    return best
