"""What the machine can do at most: products of matrices, and the reading of memory."""

import timeit
from collections.abc import Callable

import torch


def bf16_flops() -> float:
    """Floating-point operations a second in a large product of bf16 matrices."""
    size = 2048
    left, right = (torch.ones(size, size, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / best_of(lambda: left @ right)


def read_bytes() -> float:
    """Bytes of memory that are read a second."""
    large = torch.ones(256 << 20, dtype=torch.uint8).view(torch.int64)
    return large.nbytes / best_of(lambda: large.sum())


def best_of(call: Callable[[], object], times: int = 10) -> float:
    """Seconds of the fastest of several calls."""
    return min(timeit.repeat(call, number=1, repeat=times))
