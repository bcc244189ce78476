"""The token vectors of a corpus on disk, memory-mapped."""

from pathlib import Path

import numpy as np
import torch

from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.encoder import ColBERTEncoder

_VECTORS = "vectors.f16"
_COARSE = "vectors.bf16"
_PLACES = "places.npy"
_LENGTHS = "lengths.npy"


class TokenStore:
    """Token vectors of passages, in the order in which they were encoded: roughly by length.

    Args:
        folder: where :meth:`write` put them.

    Attributes:
        places: each stored passage's place in the corpus, int64 of shape ``(passages,)``.
        lengths: each stored passage's number of tokens, int64 of shape ``(passages,)``.
        vectors: the vectors of all tokens of all passages, fp16 of shape ``(tokens, dim)``, memory-mapped.
        coarse: the same vectors in bf16.
    """

    def __init__(self, folder: Path) -> None:
        self.places = torch.from_numpy(np.load(folder / _PLACES))
        self.lengths = torch.from_numpy(np.load(folder / _LENGTHS))
        tokens = int(self.lengths.sum())
        self.vectors = _mapped(folder / _VECTORS, torch.float16).view(tokens, -1)
        self.coarse = _mapped(folder / _COARSE, torch.bfloat16).view(tokens, -1)

    @staticmethod
    def write(folder: Path, encoder: ColBERTEncoder, texts: list[str], progress: Progress) -> None:
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


def _mapped(file: Path, dtype: torch.dtype) -> torch.Tensor:
    # Mapped copy-on-write, because torch warns of read-only memory; nothing writes to it.
    return torch.from_numpy(np.memmap(file, dtype=np.int16, mode="c")).view(dtype)
