"""The token vectors of a corpus on disk, memory-mapped."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import mapped

_VECTORS = "vectors.f16"
_COARSE = "vectors.bf16"
_PLACES = "places.npy"
_LENGTHS = "lengths.npy"


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
        coarse: the same vectors in bf16.
    """

    def __init__(self, folder: Path, passages: int, dim: int) -> None:
        self.places, self.lengths = stored_order(folder, _PLACES, _LENGTHS, passages)
        shape = int(self.lengths.sum()), dim
        self.vectors = mapped(folder / _VECTORS, torch.float16, shape)
        self.coarse = mapped(folder / _COARSE, torch.bfloat16, shape)

    @staticmethod
    def write(folder: Path, encoder: PassageTokenEncoder, texts: Sequence[str], progress: Progress) -> None:
        """Encode passages into four files of ``folder``."""
        places: list[int] = []
        lengths: list[int] = []
        with (folder / _VECTORS).open("wb") as out, (folder / _COARSE).open("wb") as coarse:
            for batch, vectors in encoder.passages(texts):
                places.extend(batch)
                lengths.extend(len(v) for v in vectors)
                whole = torch.cat(vectors)
                out.write(whole.numpy().tobytes())
                coarse.write(whole.bfloat16().view(torch.int16).numpy().tobytes())
                progress(len(places), len(texts))
        np.save(folder / _PLACES, np.array(places, dtype=np.int64))
        np.save(folder / _LENGTHS, np.array(lengths, dtype=np.int64))


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
