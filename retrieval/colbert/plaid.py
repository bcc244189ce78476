"""PLAID, colbert-ai's pruned index (Santhanam et al., 2022): for corpora too large to score every passage."""

import os
import pickle
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import faiss
import numpy as np
import torch

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.models.engine.loading import quiet_loading
from hoptimizer.retrieval.colbert.encoder import TokenEncoder
from hoptimizer.retrieval.colbert.shim import adapt_colbert_ai, load_extensions
from hoptimizer.retrieval.colbert.token_store import TokenStore
from hoptimizer.retrieval.index_folder import BrokenIndexError

# Chosen on 6,119 passages so that PLAID finds at least 95 of 100 passages of exact search's top 10, which
# benchmarks/retrieval.py measures. colbert-ai's defaults compress to 1 bit and look into one cell per query token.
_NCELLS = 8
_THRESHOLD = 0.3
_NDOCS = 4096

# colbert-ai sets a twentieth of the tokens aside to choose its quantiles by, and fails if that is none.
_LEAST_TOKENS = 20


class PlaidIndex:
    """Finds candidates by centroids, then scores their compressed token vectors.

    Args:
        folder: written by :meth:`write`.
        encoder: the encoder of the checkpoint that the index was written with.
        texts: the corpus' passages as they were encoded.

    Raises:
        UserError: its C++ extensions can't be compiled.
    """

    SETTINGS: ClassVar[dict[str, int]] = {"nbits": 8, "kmeans_niters": 4}

    def __init__(self, folder: Path, encoder: TokenEncoder, texts: Sequence[str]) -> None:
        adapt_colbert_ai()
        from colbert import Searcher
        from colbert import searcher as searching

        with _compiling(), _replaced(searching, Checkpoint=_NoCheckpoint), quiet_loading():
            load_extensions()
            try:
                searcher = Searcher(
                    index=folder.name,
                    index_root=str(folder.parent),
                    checkpoint=str(encoder.folder),
                    collection=list(texts),
                    verbose=0,
                )
            except pickle.UnpicklingError as error:  # torch reads tensors alone
                raise BrokenIndexError("it holds more than tensors") from error
        self._ranker = searcher.ranker
        self._settings = encoder.config
        self._passages = len(texts)

    def search(self, queries: list[torch.Tensor], k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query; arguments and result are those of the exact index."""
        from colbert.infra import ColBERTConfig

        pruning = ColBERTConfig(ncells=_NCELLS, centroid_score_threshold=_THRESHOLD, ndocs=max(_NDOCS, 16 * k))
        config = ColBERTConfig.from_existing(self._settings, pruning)
        return [self._rank(config, query.unsqueeze(0).cpu(), k) for query in queries]

    def _rank(self, config: Any, query: torch.Tensor, k: int) -> list[tuple[int, float]]:  # noqa: ANN401 - their class
        places, scores = self._ranker.rank(config, query)
        if len(places) < k:
            # The probed cells hold too few passages, as with a k near the corpus' size: score them all.
            places, scores = self._ranker.rank(config, query, pids=list(range(self._passages)))
        return list(zip(places[:k], scores[:k], strict=True))

    @staticmethod
    def write(folder: Path, encoder: TokenEncoder, texts: Sequence[str], progress: Progress) -> None:
        """Encode passages with our encoder and have colbert-ai's Indexer cluster and compress them into ``folder``.

        Raises:
            UserError: the corpus is too small, or the C++ extensions can't be compiled.
        """
        adapt_colbert_ai()
        texts = list(texts)
        from colbert import Indexer
        from colbert.indexing import collection_indexer
        from colbert.infra import ColBERTConfig, Run, RunConfig

        vectors = folder.with_name(f"{folder.name}-vectors")
        vectors.mkdir()
        TokenStore.write(vectors, encoder, texts, progress)
        store = TokenStore(vectors, len(texts), encoder.dim)
        if len(store.vectors) < _LEAST_TOKENS:
            raise UserError(f"retriever.index: {len(texts)} short passages are too few for plaid: set it to exact")
        stored = _Stored(store, texts)
        settings = PlaidIndex.SETTINGS | {"nbits": _bits(encoder.dim), "dim": encoder.dim}
        config = ColBERTConfig(**settings, index_path=str(folder))
        # In this process, because indexing on a CPU fails in processes of its own.
        run = Run().context(RunConfig(nranks=1, avoid_fork_if_possible=True))
        ours: dict[str, Any] = {"Checkpoint": _NoCheckpoint, "CollectionEncoder": lambda config, checkpoint: stored}
        ours["compute_faiss_kmeans"] = _centroids
        with _compiling(), _replaced(collection_indexer, **ours), _global_state_kept(), quiet_loading(), run:
            load_extensions()
            indexer = Indexer(str(encoder.folder), config=config, verbose=0)
            indexer.index(name=folder.name, collection=texts, overwrite="force_silent_overwrite")
        shutil.rmtree(vectors)


def _bits(dim: int) -> int:
    """The most bits for each number of a vector, which colbert-ai packs by the byte and reads by the vector.

    Raises:
        UserError: there is none.
    """
    fitting = [bits for bits in (8, 4, 2, 1) if bits <= PlaidIndex.SETTINGS["nbits"] and dim % (8 * bits) == 0]
    if not fitting:
        raise UserError(f"retriever.index: plaid takes no token vectors of {dim} numbers: set it to exact")
    return fitting[0]


class _Stored:
    """Stands in for colbert-ai's CollectionEncoder: hands out vectors that are encoded already.

    It is asked for every passage twice; the first time is to find the centroids.
    """

    def __init__(self, store: TokenStore, texts: Sequence[str]) -> None:
        ends = store.lengths.cumsum(0)
        spans = zip(store.places.tolist(), (ends - store.lengths).tolist(), ends.tolist(), strict=True)
        self._spans = {texts[place]: (start, end) for place, start, end in spans}
        self._vectors = store.vectors

    def encode_passages(self, passages: list[str]) -> tuple[torch.Tensor, list[int]]:
        """All token vectors of the passages ``(tokens, dim)``, and each passage's number of tokens."""
        spans = [self._spans[text] for text in passages]
        vectors = torch.cat([self._vectors[start:end] for start, end in spans])
        # colbert-ai insists on fp16 where there is a GPU, and on fp32 where there is none.
        return vectors if torch.cuda.is_available() else vectors.float(), [end - start for start, end in spans]


def _centroids(dim: int, partitions: int, iterations: int, samples: list[list[torch.Tensor]]) -> torch.Tensor:
    """colbert-ai's k-means, without faiss' report on it, and for small corpora too."""
    sample = samples[0][0].float().numpy()
    # A small corpus may have fewer tokens than colbert-ai wants cells; the other cells repeat and stay empty.
    cells = min(partitions, len(sample))
    kmeans = faiss.Kmeans(dim, cells, niter=iterations, seed=123, min_points_per_centroid=1)
    kmeans.train(sample)
    return torch.from_numpy(kmeans.centroids)[torch.arange(partitions) % cells]


class _NoCheckpoint:
    """Stands in for colbert-ai's Checkpoint, a second copy of the model: passages and queries are encoded already."""

    def __init__(self, *args: object, **options: object) -> None: ...

    def cuda(self) -> "_NoCheckpoint":
        return self


@contextmanager
def _replaced(module: Any, **ours: Any) -> Iterator[None]:  # noqa: ANN401 - a module and what is in it
    """Names of one of colbert-ai's modules, for a while with our values."""
    theirs = {name: getattr(module, name) for name in ours}
    vars(module).update(ours)
    try:
        yield
    finally:
        vars(module).update(theirs)


@contextmanager
def _global_state_kept() -> Iterator[None]:
    """Undo what colbert-ai's launcher does to the process: it seeds every generator and hides GPUs."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
        if gpus is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus


@contextmanager
def _compiling() -> Iterator[None]:
    """Report a missing compiler in one line."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        if not any(word in reason.lower() for word in ("ninja", "compiler", "building extension")):
            raise
        raise UserError(
            f"retriever.index: PLAID needs a C++ compiler for colbert-ai's extensions ({reason}): "
            "install g++, or set retriever.index=exact"
        ) from error
