"""The keys and values of every sequence in a batch, in blocks at fixed positions."""

import math
import mmap
from collections.abc import Iterator

import torch
from torch import Tensor

# Positions per block: large enough that few products are needed, small enough that little is computed past the end.
# On a GPU the number of products costs more than what they compute.
BLOCK = 256
GPU_BLOCK = 2048
# Ranges of slots in a block whose views are kept from pass to pass: mostly they stay the same.
_VIEWS = 128


class KeyValues:
    """Keys and values of every sequence in the batch.

    A list of blocks, one for every ``block`` positions, each a tensor of shape
    ``(layers, 2, slots, heads, block, dim)``. It grows by a block when a sequence does, without a copy, and the blocks
    of neighbouring slots are contiguous, which the matrix products need. On a CPU a block takes memory only for the
    slots whose sequences reach it: a sequence of 8,000 tokens among 31 short ones costs what it needs by itself.
    """

    def __init__(self, layers: int, heads: int, dim: int, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.block = GPU_BLOCK if device.type == "cuda" else BLOCK
        self._shape = (layers, 2, slots, heads, self.block, dim)
        self.slots, self.heads, self.dim = slots, heads, dim
        self.dtype, self.device = dtype, device
        self.blocks: list[Tensor] = []
        # The same tensors by block, layer and 0 for keys or 1 for values, each of shape (slots, heads, block, dim):
        # taking a tensor apart costs microseconds, and a pass would do it thousands of times.
        self.parts: list[list[tuple[Tensor, ...]]] = []
        self._views: dict[tuple[int, int, int], list[tuple[Tensor, Tensor]]] = {}

    def reserve(self, length: int) -> None:
        """Make room for sequences of up to ``length`` tokens."""
        while len(self.blocks) * self.block < length:
            self.blocks.append(zeros(self._shape, self.dtype, self.device))
            self.parts.append([layer.unbind(0) for layer in self.blocks[-1].unbind(0)])

    def layers(self, block: int, first: int, end: int) -> list[tuple[Tensor, Tensor]]:
        """By layer, the keys and the values of a block in some slots: of shape ``(slots * heads, block, dim)``."""
        key = (block, first, end)
        if key not in self._views:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            self._views[key] = [
                (keys[first:end].flatten(0, 1), values[first:end].flatten(0, 1)) for keys, values in self.parts[block]
            ]
        return self._views[key]

    def release(self, length: int = 0) -> None:
        """Give back the memory of positions that no slot needs.

        Args:
            length: the length of the longest sequence in any slot; 0 where no slot is in use.
        """
        kept = -(-length // self.block)
        if kept < len(self.blocks):
            del self.blocks[kept:], self.parts[kept:]
            self._views.clear()

    def load(self, slot: int, start: int, states: Tensor) -> None:
        """Write states of shape ``(layers, 2, heads, n, dim)`` at positions ``start`` and following of a slot."""
        offset = 0
        for block, low, high in spans(start, start + states.shape[3], self.block):
            self.blocks[block][:, :, slot, :, low:high] = states[:, :, :, offset : offset + high - low]
            offset += high - low

    def read(self, slot: int, start: int, stop: int) -> Tensor:
        """A copy of the states of some positions of a slot, in the shape that :meth:`load` takes."""
        parts = [self.blocks[b][:, :, slot, :, low:high] for b, low, high in spans(start, stop, self.block)]
        return torch.cat(parts, dim=3)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one slot to another."""
        for block, low, high in spans(0, length, self.block):
            states = self.blocks[block]
            states[:, :, target, :, low:high] = states[:, :, source, :, low:high]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros and not whatever memory holds: a masked position weighs 0, and 0 times NaN is NaN.

    On a CPU they take memory only where something is written to them.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # The system's own zeros: a page of them takes memory only when something is written to it.
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def spans(start: int, stop: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The blocks of ``size`` that hold positions ``start`` to ``stop``, each with its first and last offset."""
    for block in range(start // size, -(-stop // size)):
        yield block, max(start - block * size, 0), min(stop - block * size, size)
