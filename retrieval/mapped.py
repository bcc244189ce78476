"""Vectors on disk, memory-mapped."""

import mmap
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hoptimizer.retrieval.index_folder import BrokenIndexError

# Files of up to so many bytes may lie in memory as a whole once their rows were read, which reads them fastest.
_STAYS = 2 << 30


def mapped(file: Path, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
    """The vectors of a file as a tensor that is read when it is needed.

    Args:
        file: their bytes, row by row.
        dtype: of their numbers.
        shape: how many vectors there are, and how many numbers each has.

    Raises:
        BrokenIndexError: the file is missing or has another size.
    """
    _check(file, dtype, shape)
    # Mapped copy-on-write, because torch warns of read-only memory; nothing writes to it.
    return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="c")).view(dtype).view(shape)


class ScatteredRows:
    """The vectors of a file of which each reading takes a few, from all over it.

    The system then reads no more than these: what it otherwise reads ahead takes ten times as long, where the file is
    larger than memory. Of a large file, no more stays in the process than the last reading took, and its surroundings.

    Args:
        file: as for :func:`mapped`, like the others.

    Raises:
        BrokenIndexError: the file is missing or has another size.

    Attributes:
        rows: the vectors, of the given shape, read when they are needed.
    """

    def __init__(self, file: Path, dtype: torch.dtype, shape: tuple[int, int]) -> None:
        _check(file, dtype, shape)
        with file.open("rb") as opened:
            self._mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        self._width = shape[1] * dtype.itemsize
        self._advised = hasattr(mmap, "MADV_RANDOM")  # not on Windows
        if self._advised:
            self._mapped.madvise(mmap.MADV_RANDOM)
        self._stays = len(self._mapped) <= _STAYS
        self.rows = torch.frombuffer(self._mapped, dtype=torch.uint8).view(dtype).view(shape)

    def expect(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Have rows read, all at once, that are needed next: so many from each start on.

        Those that were read before leave the process where the file is large, but stay in the system's cache; a thread
        that still reads them gets them anew from there.
        """
        if not self._advised:
            return
        if not self._stays:
            self._mapped.madvise(mmap.MADV_DONTNEED)
        firsts = starts * self._width // mmap.PAGESIZE * mmap.PAGESIZE
        sizes = (starts + lengths) * self._width - firsts
        for first, size in zip(firsts.tolist(), sizes.tolist(), strict=True):
            self._mapped.madvise(mmap.MADV_WILLNEED, first, size)


def _check(file: Path, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    wanted = shape[0] * shape[1] * dtype.itemsize
    if not file.is_file() or file.stat().st_size != wanted:
        raise BrokenIndexError(f"{file.name} has another size than {shape[0]} vectors of {shape[1]} numbers")
