"""Vectors on disk, memory-mapped."""

from pathlib import Path

import numpy as np
import torch

from hoptimizer.retrieval.index_folder import BrokenIndexError


def mapped(file: Path, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
    """The vectors of a file as a tensor that is read when it is needed.

    Args:
        file: their bytes, row by row.
        dtype: of their numbers.
        shape: how many vectors there are, and how many numbers each has.

    Raises:
        BrokenIndexError: the file is missing or has another size.
    """
    wanted = shape[0] * shape[1] * dtype.itemsize
    if not file.is_file() or file.stat().st_size != wanted:
        raise BrokenIndexError(f"{file.name} has another size than {shape[0]} vectors of {shape[1]} numbers")
    # Mapped copy-on-write, because torch warns of read-only memory; nothing writes to it.
    return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="c")).view(dtype).view(shape)
