"""The token vectors of a corpus on disk, memory-mapped."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder
from hoptimizer.retrieval.colbert.rounded import round_vectors
from hoptimizer.retrieval.encoders.growing import GrowingFiles
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import mapped

_VECTORS = "vectors.f16"
_ROUNDED = "vectors.i8"
_SCALES = "scales.f32"
_CHANGED = "changed.f32"
_PLACES = "places.npy"
_LENGTHS = "lengths.npy"
ORDER = ("places.i64", "lengths.i64")
"""Of an index that is being built, the files of each stored passage's place in the corpus and number of tokens."""


class TokenStore:
    """Token vectors of passages, in the order in which they were encoded: roughly by length.

    Args:
        folder: where :meth:`write` put them.
        passages: how many they are.
        dim: length of a vector.

    Raises:
        BrokenIndexError: the files there are not those of so many passages.

    Attributes:
        places: each stored passage's place in the corpus, int64 of shape ``(passages,)``.
        lengths: each stored passage's number of tokens, int64 of shape ``(passages,)``.
        vectors: the vectors of all tokens of all passages, fp16 of shape ``(tokens, dim)``, memory-mapped.
        rounded: the same vectors as whole numbers, int8 of shape ``(tokens, dim)``.
        scales: theirs, fp32 of shape ``(tokens,)``.
        changed: the lengths of what rounding changed, fp32 of shape ``(tokens,)``.
    """

    def __init__(self, folder: Path, passages: int, dim: int) -> None:
        self.places, self.lengths = stored_order(folder, _PLACES, _LENGTHS, passages)
        shape = int(self.lengths.sum()), dim
        self.vectors = mapped(folder / _VECTORS, torch.float16, shape)
        self.rounded = mapped(folder / _ROUNDED, torch.int8, shape)
        self.scales, self.changed = (
            mapped(folder / name, torch.float32, (shape[0], 1)).view(-1) for name in (_SCALES, _CHANGED)
        )

    @staticmethod
    def write(folder: Path, encoder: PassageTokenEncoder, texts: Sequence[str], progress: Progress) -> None:
        """Encode passages into six files of ``folder``; what a build that was ended has left there stays."""
        with GrowingFiles(folder, (_VECTORS, _ROUNDED, _SCALES, _CHANGED), ORDER) as written:
            done = written.passages
            for window in encoder.in_order(texts, done):
                for places, vectors in window.batches:
                    whole = torch.cat(vectors)
                    rounded, scales = round_vectors(whole)
                    changed = (whole - rounded * scales[:, None]).norm(dim=1)
                    rows = [one.numpy() for one in (whole, rounded, scales, changed)]
                    written.append(*rows, *order(places, vectors))
                    done += len(places)
                    progress(done, len(texts))
                written.keep(done)
            for name, file in zip(ORDER, (_PLACES, _LENGTHS), strict=True):
                np.save(folder / file, written.numbers(name))


def order(places: list[int], vectors: Sequence[torch.Tensor]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What the files ``ORDER`` get of a batch: the places of its passages, and how many vectors each has."""
    return np.array(places, dtype=np.int64), np.array([len(one) for one in vectors], dtype=np.int64)


def stored_order(folder: Path, places: str, lengths: str, passages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each stored passage's place in the corpus, and its number of tokens.

    Args:
        folder: of an index.
        places: the file of the places.
        lengths: that of the numbers of tokens.
        passages: how many there are.

    Raises:
        BrokenIndexError: the files there are not those of so many passages.
    """
    order, tokens = (_numbers(folder / name, passages) for name in (places, lengths))
    if not np.array_equal(np.sort(order), np.arange(passages)):
        raise BrokenIndexError(f"{places} names other passages")
    if tokens.min() < 1:
        raise BrokenIndexError(f"{lengths} has passages without tokens")
    return torch.from_numpy(order), torch.from_numpy(tokens)


def _numbers(file: Path, count: int) -> NDArray[np.int64]:
    try:
        numbers = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:  # missing, cut off, or objects, which would be pickles
        raise BrokenIndexError(f"{file.name} holds no numbers") from error
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int64 or numbers.shape != (count,):
        raise BrokenIndexError(f"{file.name} holds other numbers than {count} passages have")
    return numbers
