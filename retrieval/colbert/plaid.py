"""PLAID, colbert-ai's pruned index (Santhanam et al., 2022): for corpora too large to score every passage."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.models.engine.loading import quiet_loading
from hoptimizer.retrieval.colbert import plaid_build
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder, TokenEncoder
from hoptimizer.retrieval.colbert.shim import adapt_colbert_ai, load_extensions
from hoptimizer.retrieval.colbert.token_store import stored_order
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import mapped

# Chosen on 6,119 passages so that PLAID finds at least 95 of 100 passages of exact search's top 10, which
# benchmarks/retrieval.py measures. colbert-ai's defaults compress to 1 bit and look into one cell per query token.
_NCELLS = 8
_THRESHOLD = 0.3
_NDOCS = 4096


class PlaidIndex:
    """Finds candidates by centroids, then scores their compressed token vectors, which are read from the mapped files.

    Args:
        folder: written by :meth:`write`.
        encoder: the encoder of the checkpoint that the index was written with.
        texts: the corpus' passages as they were encoded.

    Raises:
        UserError: its C++ extensions can't be compiled.
        BrokenIndexError: the files there are not those of such passages.
    """

    #: Besides ``nbits``, which the config says. ``layout`` is that of the files.
    SETTINGS: ClassVar[dict[str, int]] = {"kmeans_niters": 4, "layout": 2}

    def __init__(self, folder: Path, encoder: TokenEncoder, texts: Sequence[str]) -> None:
        adapt_colbert_ai()
        places, lengths = stored_order(folder, plaid_build.PLACES, plaid_build.LENGTHS, len(texts))
        with _compiling(), quiet_loading():
            load_extensions()
            try:
                self._ranker = _ranker(folder, lengths)
            except pickle.UnpicklingError as error:  # torch reads tensors alone
                raise BrokenIndexError("it holds more than tensors") from error
        self._settings = encoder.config
        self._places = places.tolist()

    def search(self, queries: list[torch.Tensor], k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query; arguments and result are those of the exact index."""
        from colbert.infra import ColBERTConfig

        pruning = ColBERTConfig(ncells=_NCELLS, centroid_score_threshold=_THRESHOLD, ndocs=max(_NDOCS, 16 * k))
        config = ColBERTConfig.from_existing(self._settings, pruning)
        return [self._rank(config, query.unsqueeze(0).cpu(), k) for query in queries]

    def _rank(self, config: Any, query: torch.Tensor, k: int) -> list[tuple[int, float]]:  # noqa: ANN401 - their class
        found = list(zip(*self._ranker.rank(config, query), strict=True))
        if len(found) < k:
            # The probed cells hold too few passages, as with a k near the corpus' size: score them all.
            found = []
            for start in range(0, len(self._places), _NDOCS):
                some = list(range(start, min(start + _NDOCS, len(self._places))))
                found += zip(*self._ranker.rank(config, query, pids=some), strict=True)
            found.sort(key=lambda one: -one[1])
        return [(self._places[number], score) for number, score in found[:k]]

    @staticmethod
    def write(
        folder: Path,
        encoder: PassageTokenEncoder,
        texts: Sequence[str],
        built_with: Mapping[str, int],
        progress: Progress,
    ) -> None:
        """Encode passages with our encoder, and cluster and compress their vectors into ``folder``.

        Raises:
            UserError: the corpus is too small, or the C++ extensions can't be compiled.
        """
        adapt_colbert_ai()
        with _compiling(), quiet_loading(), torch.inference_mode():
            load_extensions()
            plaid_build.build(folder, encoder, texts, built_with, progress)


def _ranker(folder: Path, lengths: torch.Tensor) -> Any:  # noqa: ANN401 - their class
    """colbert-ai's ranker over an index whose vectors stay on disk.

    Args:
        folder: of the index.
        lengths: each passage's number of tokens, in the order in which they are stored.

    Raises:
        BrokenIndexError: the files there hold more or fewer vectors.
    """
    from colbert.indexing.codecs.residual import ResidualCodec
    from colbert.search.index_storage import IndexScorer

    class Ranker(IndexScorer):
        def _load_doclens(self) -> None:
            self.doclens = lengths

        def _load_embeddings(self) -> None:
            rows = int(lengths.sum()) + plaid_build.PADDING
            codes = mapped(folder / plaid_build.CODES, torch.int32, (rows, 1)).view(-1)
            width = self.codec.dim // 8 * self.codec.nbits
            residuals = mapped(folder / plaid_build.RESIDUALS, torch.uint8, (rows, width))
            self.embeddings = ResidualCodec.Embeddings(codes, residuals)

    on_gpu = torch.cuda.is_available()
    # On a CPU colbert-ai reads the vectors where they are, as it does of an index that it maps itself.
    with torch.random.fork_rng(devices=[]):  # which it draws from
        return Ranker(str(folder), use_gpu=on_gpu, load_index_with_mmap=not on_gpu)


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
