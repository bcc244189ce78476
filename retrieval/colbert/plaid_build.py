"""How the index of PLAID is built (Santhanam et al., 2022, section 3): centroids of a sample of the token vectors, then
each vector as its centroid and a compressed residual, a batch of passages at a time.

With 8 bits for each number the whole vector is rounded instead of the residual: that takes the same room, and is
compared as it is, where residuals have to be decompressed for every search.

What is held in memory does not grow with the corpus, but for up to 4 bytes a token, which a search holds as well: the
passages of each cell. colbert-ai's own indexer holds the vectors of all passages of its sample, and then of 25,000
passages at a time.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder
from hoptimizer.retrieval.colbert.rounded import round_vectors
from hoptimizer.retrieval.colbert.token_store import ORDER, order
from hoptimizer.retrieval.encoders.growing import GrowingFiles
from hoptimizer.retrieval.encoders.windows import WINDOW, EncodedWindow

CODES, PLACES, LENGTHS = "codes.i32", "places.npy", "lengths.npy"
CENTROIDS, CELLS = "centroids.pt", "ivf.pid.pt"
RESIDUALS, ROUNDED, SCALES = "residuals.u8", "vectors.i8", "scales.f32"
WHOLE = 8
"""The bits with which vectors are rounded as a whole."""
PADDING = 512
"""Empty rows behind the last token, so that colbert-ai reads a passage's rows with a fixed stride."""

Batch = tuple[list[int], list[torch.Tensor]]
"""The places in the corpus of some passages, and the vectors ``(tokens, dim)`` of each, fp16."""
# Of each batch the pairs of a cell and a passage in it, as numbers of 64 bits; put in order in the end, and removed.
_MEMBERS = "members.i64"
# What was found in a sample, for a build that goes on after this one was ended.
_FOUND = "sample.pt"
# So many of these pairs are put in order at a time.
_PAIRS = 1 << 22
_SEED = 123
# The most numbers of a sample: 512 MB in fp16, and then 1 GB in fp32, in which centroids are sought.
_SAMPLE = 1 << 28
# torch.quantile takes no more numbers.
_HELD_OUT = 1 << 24
# colbert-ai sets a twentieth of the sample aside to choose the residuals' quantiles by, up to so many vectors.
_SHARE_HELD_OUT, _MOST_HELD_OUT = 0.05, 50_000
# Vectors that are compared with all centroids at a time.
_TOKENS = 2048


def build(
    folder: Path, encoder: PassageTokenEncoder, texts: Sequence[str], settings: Mapping[str, int], progress: Progress
) -> None:
    """Encode passages and write their index, in the order in which they are encoded: roughly by length.

    Args:
        folder: an empty folder.
        encoder: gives tokens their vectors.
        texts: the passages.
        settings: ``nbits``, the most bits of a residual's number, and ``kmeans_niters``.
        progress: called with the passages compressed so far and all there are.

    Raises:
        UserError: there are too few tokens, or their vectors can't be packed.
    """
    whole = settings["nbits"] == WHOLE
    bits = WHOLE if whole else _bits(encoder.dim, settings["nbits"])
    found = folder / _FOUND
    sample: list[Batch] = []
    if found.exists():  # by a build that was ended
        centroids, apart = torch.load(found)
    else:
        centroids, apart, sample = _centroids(encoder, texts, settings["kmeans_niters"], whole=whole)
        if not sample:
            torch.save((centroids, apart), found.with_suffix(".part"))
            found.with_suffix(".part").replace(found)
    torch.save(centroids.half(), folder / CENTROIDS)
    compressor: _Compressor = _Whole(centroids) if whole else _Residuals(folder, centroids, apart, bits)
    lengths = _compress(folder, compressor, len(centroids), encoder, texts, sample, progress)
    for name in compressor.FILES:
        with (folder / name).open("ab") as file:
            file.write(bytes(file.tell() // int(lengths.sum()) * PADDING))
    compressor.describe(lengths)
    found.unlink(missing_ok=True)


class _Compressor(Protocol):
    FILES: ClassVar[tuple[str, ...]]

    def compress(self, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The nearest centroid of each vector ``(vectors, dim)``, and what each of the files holds of it."""

    def describe(self, lengths: NDArray[np.int64]) -> None:
        """Write what a reader has to know besides."""


class _Whole:
    """Vectors are rounded as they are."""

    FILES: ClassVar[tuple[str, ...]] = (ROUNDED, SCALES)

    def __init__(self, centroids: torch.Tensor) -> None:
        from hoptimizer.retrieval.encoders.centroids import NearestCentroids

        self._nearest = NearestCentroids(centroids)

    def compress(self, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._nearest.codes(vectors), *round_vectors(vectors)

    def describe(self, lengths: NDArray[np.int64]) -> None:
        """There is nothing else."""


class _Residuals:
    """colbert-ai compresses what is left of a vector beside its centroid.

    Args:
        folder: of the index.
        centroids: its centroids, which are there already.
        kept: vectors that quantiles are taken of, fp16.
        bits: of a number.
    """

    FILES: ClassVar[tuple[str, ...]] = (CODES, RESIDUALS)

    def __init__(self, folder: Path, centroids: torch.Tensor, kept: torch.Tensor, bits: int) -> None:
        from colbert.indexing.codecs.residual import ResidualCodec
        from colbert.infra import ColBERTConfig

        from hoptimizer.retrieval.encoders.centroids import NearestCentroids

        self._folder = folder
        self._config: Any = ColBERTConfig(dim=centroids.shape[1], nbits=bits)
        self._nearest = NearestCentroids(centroids)
        residuals = torch.cat([part - centroids[self._nearest.codes(part)] for part in kept.split(_TOKENS)])
        cutoffs, weights = buckets(residuals, bits)
        self._codec: Any = ResidualCodec(
            self._config,
            centroids,
            avg_residual=residuals.abs().mean(),
            bucket_cutoffs=cutoffs,
            bucket_weights=weights,
        )
        self._codec.save(str(folder))

    def compress(self, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        codes = self._nearest.codes(vectors)
        left = vectors.float() - self._codec.lookup_centroids(codes, out_device="cpu").float()
        return codes, codes.int(), self._codec.binarize(left.to(self._codec.centroids)).cpu()

    def describe(self, lengths: NDArray[np.int64]) -> None:
        """Write what colbert-ai reads of an index."""
        # Whatever builds it, a processor searches it: their codec then keeps its centroids there.
        config = self._config.export() | {"total_visible_gpus": 0}
        about = {"config": config, "num_chunks": 1, "num_partitions": len(self._codec.centroids)}
        about |= {"num_embeddings": int(lengths.sum()), "avg_doclen": float(lengths.mean())}
        (self._folder / "metadata.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _bits(dim: int, most: int) -> int:
    """The most bits for each number of a residual, which colbert-ai packs by the byte and reads by the vector.

    Raises:
        UserError: there is none.
    """
    fitting = [bits for bits in (4, 2, 1) if bits <= most and dim % (8 * bits) == 0]
    if not fitting:
        raise UserError(f"retriever.bits: {dim} numbers of a token vector fit no residuals: leave it at 8")
    return fitting[0]


def _centroids(
    encoder: PassageTokenEncoder, texts: Sequence[str], iterations: int, *, whole: bool
) -> tuple[torch.Tensor, torch.Tensor, list[Batch]]:
    """Centroids of a sample of the passages' vectors; vectors of it that are set apart, unless they are kept whole; and
    the sample itself where it is of all passages, so that nothing is encoded twice."""
    from hoptimizer.retrieval.encoders.centroids import find_centroids  # brings faiss

    drawn, sample = _sample(encoder, texts)
    sampled = sum(len(places) for places, _ in sample)
    tokens = len(drawn) / sampled * len(texts)
    if sampled < len(texts):
        sample.clear()
    apart = 0 if whole else held_out(*drawn.shape)
    if not (whole or apart):
        raise UserError(f"retriever.bits: {len(texts)} short passages are too few for residuals: leave it at 8")
    kept, training = _divided(drawn, apart)
    del drawn
    partitions = int(2 ** math.floor(math.log2(16 * math.sqrt(tokens))))
    return find_centroids(training, partitions, iterations), kept, sample


def _sample(encoder: PassageTokenEncoder, texts: Sequence[str]) -> tuple[torch.Tensor, list[Batch]]:
    """Passages drawn at random, as many as colbert-ai draws, but with no more than ``_SAMPLE`` numbers.

    Returns:
        Their token vectors ``(tokens, dim)`` in fp16, and which of these rows are whose, by the batch.
    """
    wanted = min(len(texts), 1 + int(16 * math.sqrt(120 * len(texts))))
    drawn = random.Random(_SEED).sample(range(len(texts)), wanted)
    rows = torch.empty(_SAMPLE // encoder.dim, encoder.dim, dtype=torch.float16)  # takes memory as it is written
    found: list[Batch] = []
    filled = 0
    windows = (drawn[start : start + WINDOW] for start in range(0, wanted, WINDOW))
    for number, window in enumerate(encoder.windows(texts, windows)):
        batches = list(window.batches)
        # In any order, because the last window may be cut off, and passages are encoded by length.
        for places, vectors in random.Random(number * WINDOW).sample(batches, len(batches)):
            counts = [len(one) for one in vectors]
            if filled + sum(counts) > len(rows):
                return rows[:filled], found
            own = rows[filled : filled + sum(counts)]
            torch.cat(vectors, out=own)
            found.append((places, list(own.split(counts))))
            filled += sum(counts)
    return rows[:filled], found


def _divided(sample: torch.Tensor, apart: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many vectors to set apart, and those that centroids are sought among, in fp32; at random."""
    order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(_SEED))
    training = torch.empty(len(sample) - apart, sample.shape[1], dtype=torch.float32)
    for rows, places in zip(training.split(_TOKENS), order[apart:].split(_TOKENS), strict=True):
        rows.copy_(sample[places])
    return sample[order[:apart]], training


def held_out(vectors: int, dim: int) -> int:
    """How many vectors of a sample the quantiles of residuals are taken of."""
    return min(int(_SHARE_HELD_OUT * vectors), _MOST_HELD_OUT, _HELD_OUT // dim)


def buckets(residuals: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a residual's numbers are cut, ``(2^bits - 1,)``, and what each bucket stands for, ``(2^bits,)``.

    Args:
        residuals: of shape ``(vectors, dim)``, fp32, not more than :func:`held_out` says.
        bits: of a number.
    """
    options = 2**bits
    starts = torch.arange(options, dtype=torch.float32, device=residuals.device) / options
    found = residuals.quantile(torch.cat([starts[1:], starts + 0.5 / options]))
    return found[: options - 1], found[options - 1 :]


def _compress(
    folder: Path,
    compressor: _Compressor,
    cells: int,
    encoder: PassageTokenEncoder,
    texts: Sequence[str],
    sample: list[Batch],
    progress: Progress,
) -> NDArray[np.int64]:
    """Write the vectors of passages as they come, of the sample if it is of all; and which have tokens in which cells.

    Returns:
        The number of tokens of each passage, in the order in which they are written.
    """
    with GrowingFiles(folder, compressor.FILES, (*ORDER, _MEMBERS)) as written:
        done = written.passages
        for window in [EncodedWindow(sample)] if sample else encoder.in_order(texts, done):
            for places, vectors in window.batches:
                parts = [compressor.compress(part) for part in torch.cat(vectors).split(_TOKENS)]
                codes, *rows = [torch.cat(part).numpy() for part in zip(*parts, strict=True)]
                at, counts = order(places, vectors)
                passages = np.repeat(np.arange(done, done + len(places)), counts)
                written.append(*rows, at, counts, np.unique(codes << 32 | passages))
                done += len(places)
                progress(done, len(texts))
            if not sample:
                written.keep(done)
        _write_cells(folder, written.numbers(_MEMBERS), cells)
        for name, file in zip(ORDER, (PLACES, LENGTHS), strict=True):
            np.save(folder / file, written.numbers(name))
    lengths: NDArray[np.int64] = np.load(folder / LENGTHS)
    return lengths


def _write_cells(folder: Path, pairs: NDArray[np.int64], cells: int) -> None:
    """Write the passages of each cell, as colbert-ai reads them."""
    parts = [pairs[start : start + _PAIRS] for start in range(0, len(pairs), _PAIRS)]
    counts = np.sum([np.bincount(part >> 32, minlength=cells) for part in parts], axis=0)
    passages = np.zeros(len(pairs) + counts.max(), dtype=np.int32)  # as much padding as a cell is large
    free = np.cumsum(counts) - counts  # where the next passage of each cell goes
    for part in parts:
        ordered = np.sort(part)
        found, firsts, here = np.unique(ordered >> 32, return_index=True, return_counts=True)
        passages[np.arange(len(ordered)) + np.repeat(free[found] - firsts, here)] = ordered & 0xFFFFFFFF
        free[found] += here
    torch.save((torch.from_numpy(passages), torch.from_numpy(counts)), folder / CELLS)
