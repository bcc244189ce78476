"""Token vectors rounded to whole numbers of 8 bits, and their similarities by products of whole numbers.

A vector is a row of numbers between -127 and 127 and one scale. It takes half the memory of fp16, and a processor
multiplies such numbers several times as fast as fp32. Products and their sums are exact, so that a similarity does not
depend on what is multiplied together with it.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hoptimizer.retrieval.colbert.token_rows import token_rows

_LARGEST = 127
# Rows at a time: their products stay in a processor's cache until the largest of each passage has been taken.
_ROWS = 2048
# From so many columns on, torch takes the largest of a block faster than numpy, which goes row by row.
_WIDE = 64
# Columns are filled up to a multiple: oneDNN compiles kernels for every shape of a product, and keeps them.
_COLUMNS = 16


def round_vectors(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest whole numbers of vectors, and their scales.

    Args:
        vectors: of shape ``(vectors, dim)``.

    Returns:
        Numbers ``(vectors, dim)``, int8, and scales ``(vectors,)``, fp32: number times scale is nearly the vector's.

    Example:
        >>> import torch
        >>> from hoptimizer.retrieval.colbert.rounded import round_vectors
        >>> numbers, scales = round_vectors(torch.tensor([[0.6, -0.8]]))
        >>> numbers.tolist(), (numbers * scales[:, None]).tolist()
        ([[95, -127]], [[0.5984252095222473, -0.800000011920929]])
    """
    vectors = vectors.float()
    scales = vectors.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
    return (vectors / scales[:, None]).round().to(torch.int8), scales


def max_similarities(
    numbers: torch.Tensor,
    scales: torch.Tensor,
    lengths: NDArray[np.int64],
    queries: torch.Tensor,
    starts: NDArray[np.int64] | None = None,
) -> torch.Tensor:
    """For each passage and each vector of a query, the similarity of the passage's most similar token.

    Args:
        numbers: those of tokens ``(tokens, dim)``, passage by passage.
        scales: theirs, ``(tokens,)``.
        lengths: each passage's number of tokens, ``(passages,)``, none of them 0.
        queries: vectors of one or more queries ``(vectors, dim)``, which are rounded here.
        starts: the row of each passage's first token, ``(passages,)``; else one passage follows the other.

    Returns:
        fp32 ``(passages, vectors)``.
    """
    asked, asked_scales = round_vectors(queries)
    wide = -(-len(asked) // _COLUMNS) * _COLUMNS
    columns = functional.pad(asked, (0, 0, 0, wide - len(asked))).T.contiguous()  # (dim, columns)
    ends = lengths.cumsum()
    best = np.empty((len(lengths), wide), dtype=np.float32)
    for passages in _parts(ends):
        own = lengths[passages]
        count = int(own.sum())
        # Always so many rows, where there are: the products of those behind the passages' are left out again.
        if starts is None:
            first = int(ends[passages.start]) - int(own[0])
            rows = numbers[first : first + max(count, _ROWS)]
            own_scales = scales[first : first + count]
        else:
            tokens = token_rows(torch.from_numpy(starts[passages]), torch.from_numpy(own))
            rows = numbers.index_select(0, functional.pad(tokens, (0, max(0, _ROWS - count))))
            own_scales = scales.index_select(0, tokens)
        _take_largest(_products(rows, columns)[:count] * own_scales[:, None], own, best[passages])
    return torch.from_numpy(best)[:, : len(asked)] * asked_scales


def _take_largest(similar: torch.Tensor, lengths: NDArray[np.int64], best: NDArray[np.float32]) -> None:
    """Write the largest of each passage's rows, column by column."""
    if similar.shape[1] < _WIDE:
        np.maximum.reduceat(similar.numpy(), lengths.cumsum() - lengths, axis=0, out=best)
        return
    # Neighbours of one length make a dense block, since passages are stored roughly by length.
    changes = np.flatnonzero(np.diff(lengths, prepend=0))
    row = 0
    for first, last in zip(changes, [*changes[1:], len(lengths)], strict=True):
        length, count = int(lengths[first]), int(last - first)
        block = similar[row : row + length * count].view(count, length, -1)
        torch.amax(block, dim=1, out=torch.from_numpy(best[first:last]))
        row += length * count


def _products(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The products of whole numbers, in int32, or in fp32, as exactly: up to 1,040 dimensions none reaches 2^24."""
    if torch.cpu._is_vnni_supported():
        return torch._int_mm(rows, columns)
    return rows.float() @ columns.float()


def _parts(ends: NDArray[np.int64]) -> Iterator[slice]:
    """Neighbouring passages with at most ``_ROWS`` tokens together, or one with more."""
    start, before = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, before + _ROWS, side="right")))
        yield slice(start, stop)
        start, before = stop, int(ends[stop - 1])
