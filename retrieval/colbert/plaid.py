"""PLAID (Santhanam et al., 2022): an index for corpora too large to score every passage of them for every query."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.models.engine.loading import quiet_loading
from hoptimizer.retrieval.colbert import plaid_build
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder, TokenEncoder
from hoptimizer.retrieval.colbert.plaid_candidates import Candidates, scored
from hoptimizer.retrieval.colbert.rounded import max_similarities
from hoptimizer.retrieval.colbert.shim import adapt_colbert_ai, load_extensions
from hoptimizer.retrieval.colbert.token_store import stored_order
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import ScatteredRows

# Passages that are scored by their own vectors, where all are.
_AT_ONCE = 4096
_DECIMALS = 4


class PlaidIndex:
    """Finds candidates by centroids, then scores their token vectors, which are read from the mapped files.

    The search is a processor's, whatever encodes the queries.

    Args:
        folder: written by :meth:`write`.
        encoder: the encoder of the checkpoint that the index was written with.
        texts: the corpus' passages as they were encoded.

    Raises:
        UserError: the vectors are residuals, whose C++ extensions can't be compiled.
        BrokenIndexError: the files there are not those of such passages.
    """

    #: Besides ``nbits``, which the config says. ``layout`` is that of the files.
    SETTINGS: ClassVar[dict[str, int]] = {"kmeans_niters": 4, "layout": 3}

    def __init__(self, folder: Path, encoder: TokenEncoder, texts: Sequence[str]) -> None:
        self._places, lengths = stored_order(folder, plaid_build.PLACES, plaid_build.LENGTHS, len(texts))
        try:
            self._candidates = Candidates(folder, encoder.dim)
            self._vectors: _Vectors
            if (folder / plaid_build.ROUNDED).exists():
                self._vectors = _Rounded(folder, lengths, encoder.dim)
            else:
                with _compiling(), quiet_loading():
                    self._vectors = _Residuals(folder, lengths)
        except pickle.UnpicklingError as error:  # torch reads tensors alone
            raise BrokenIndexError("it holds more than tensors") from error

    def pool(self, k: int) -> int:
        return scored(k)

    @torch.inference_mode()
    def search(self, queries: list[torch.Tensor], k: int) -> list[list[tuple[int, float]]]:
        """The ``k`` best passages of each query; arguments and result are those of the exact index."""
        return [self._rank(query.cpu(), k) for query in queries]

    def _rank(self, query: torch.Tensor, k: int) -> list[tuple[int, float]]:
        found = self._candidates.find(query, k)
        if len(found) < k:
            # The probed cells hold too few passages, as with a k near the corpus' size: score them all.
            found = torch.arange(len(self._places))
        scores = torch.cat([self._vectors.scores(some, query) for some in found.split(_AT_ONCE)])
        # Rounded, as those of the exact index are, so that equal passages tie; ties in corpus order.
        scores = scores.round(decimals=_DECIMALS)
        best = np.lexsort((self._places[found].numpy(), -scores.numpy()))[:k]
        return list(zip(self._places[found[best]].tolist(), scores[best].tolist(), strict=True))

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
            UserError: the corpus is too small, or the C++ extensions of residuals can't be compiled.
        """
        adapt_colbert_ai()
        residuals = built_with["nbits"] != plaid_build.WHOLE
        with _compiling() if residuals else nullcontext(), quiet_loading(), torch.inference_mode():
            if residuals:
                load_extensions()
            plaid_build.build(folder, encoder, texts, built_with, progress)


class _Vectors(Protocol):
    def scores(self, passages: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """The scores ``(passages,)`` of some stored passages for a query's vectors ``(tokens, dim)``, fp32."""


class _Tokens:
    """Where the tokens of passages are in files that have a row for each token.

    Args:
        lengths: each stored passage's number of tokens, int64.
        files: that are read together.
    """

    def __init__(self, lengths: torch.Tensor, *files: ScatteredRows) -> None:
        self._starts, self._lengths = (lengths.cumsum(0) - lengths).numpy(), lengths.numpy()
        self._files = files

    def expect(self, passages: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Have the rows of some passages read; each passage's first row, and how many it has."""
        starts, lengths = self._starts[passages.numpy()], self._lengths[passages.numpy()]
        for file in self._files:
            file.expect(starts, lengths)
        return starts, lengths


class _Rounded:
    """Vectors that were rounded as a whole."""

    def __init__(self, folder: Path, lengths: torch.Tensor, dim: int) -> None:
        rows = int(lengths.sum()) + plaid_build.PADDING
        numbers = ScatteredRows(folder / plaid_build.ROUNDED, torch.int8, (rows, dim))
        scales = ScatteredRows(folder / plaid_build.SCALES, torch.float32, (rows, 1))
        self._tokens = _Tokens(lengths, numbers, scales)
        self._numbers, self._scales = numbers.rows, scales.rows.view(-1)

    def scores(self, passages: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        starts, lengths = self._tokens.expect(passages)
        return max_similarities(self._numbers, self._scales, lengths, query, starts).sum(dim=1)


class _Residuals:
    """colbert-ai's scorer of residuals, which stay on disk."""

    def __init__(self, folder: Path, lengths: torch.Tensor) -> None:
        adapt_colbert_ai()
        load_extensions()
        from colbert.indexing.codecs.residual import ResidualCodec
        from colbert.infra import ColBERTConfig
        from colbert.search.index_storage import IndexScorer

        self._config: Any = ColBERTConfig.load_from_index(str(folder))
        rows = int(lengths.sum()) + plaid_build.PADDING
        codes = ScatteredRows(folder / plaid_build.CODES, torch.int32, (rows, 1))
        width = self._config.dim // 8 * self._config.nbits
        residuals = ScatteredRows(folder / plaid_build.RESIDUALS, torch.uint8, (rows, width))
        self._tokens = _Tokens(lengths, codes, residuals)

        class Scorer(IndexScorer):
            def _load_doclens(self) -> None:
                self.doclens = lengths

            def _load_embeddings(self) -> None:
                self.embeddings = ResidualCodec.Embeddings(codes.rows.view(-1), residuals.rows)

        with torch.random.fork_rng(devices=[]):  # which it draws from
            # On a CPU colbert-ai reads the vectors where they are, as it does of an index that it maps itself.
            self._scorer = Scorer(str(folder), use_gpu=False, load_index_with_mmap=True)

    def scores(self, passages: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        self._tokens.expect(passages)
        scores: torch.Tensor = self._scorer.score_pids(self._config, query.unsqueeze(0), passages.int(), None)[0]
        return scores


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
            f"retriever.bits: fewer than 8 need a C++ compiler for colbert-ai's extensions ({reason}): "
            "install g++, or leave bits at 8"
        ) from error
