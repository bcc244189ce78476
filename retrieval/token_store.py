"""The token vectors of a corpus on disk, memory-mapped."""

from pathlib import Path

import numpy as np
import torch

from hoptimizer.retrieval.encoder import ColBERTEncoder
from hoptimizer.retrieval.retriever import Progress

_VECTORS = "vectors.f16"
_PLACES = "places.npy"
_LENGTHS = "lengths.npy"


class TokenStore:
    """Token vectors of passages, in the order they were encoded in: by length, or nearly.

    Args:
        folder: where :meth:`write` put them.

    Attributes:
        places: each stored passage's place in the corpus, int64 [passages].
        lengths: each stored passage's number of tokens, int64 [passages].
        vectors: all tokens of all passages, fp16 [tokens, dim], memory-mapped.
    """

    def __init__(self, folder: Path) -> None:
        self.places = torch.from_numpy(np.load(folder / _PLACES))
        self.lengths = torch.from_numpy(np.load(folder / _LENGTHS))
        # Mapped copy-on-write, because torch takes no read-only memory without a warning; nothing writes to it.
        flat = np.memmap(folder / _VECTORS, dtype=np.float16, mode="c")
        self.vectors = torch.from_numpy(flat).view(int(self.lengths.sum()), -1)

    @staticmethod
    def write(folder: Path, encoder: ColBERTEncoder, texts: list[str], progress: Progress) -> None:
        """Encode passages into three files of ``folder``."""
        places: list[int] = []
        lengths: list[int] = []
        with (folder / _VECTORS).open("wb") as out:
            for batch, vectors in encoder.passages(texts):
                places.extend(batch)
                lengths.extend(len(v) for v in vectors)
                out.write(torch.cat(vectors).numpy().tobytes())
                progress(len(places), len(texts))
        np.save(folder / _PLACES, np.array(places, dtype=np.int64))
        np.save(folder / _LENGTHS, np.array(lengths, dtype=np.int64))
