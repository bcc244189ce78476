"""Passages as encoders take them: roughly by length, a window at a time, in this process or in others."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, tee
from typing import Any, Generic, TypeVar

from hoptimizer.retrieval.encoders.cut import cut_query_warning, cut_warning
from hoptimizer.retrieval.options import RetrieverOptions

_log = logging.getLogger(__name__)

WINDOW = 2048
"""Passages that are tokenized and put in order at a time: the unit that other processes can encode."""

Vectors = TypeVar("Vectors")


@dataclass(frozen=True)
class EncodedWindow(Generic[Vectors]):
    """What an encoder makes of a window.

    Attributes:
        batches: places of passages, and their vectors; may be encoded as they are read.
        cut: the places of those that are longer than the encoder reads.
    """

    batches: Iterable[tuple[list[int], Vectors]]
    cut: Sequence[int] = ()


Each = Callable[[Iterable[list[str]]], Iterator[EncodedWindow[Any]]]
"""From windows of texts to what is made of each, in the order of the windows; it may read some windows ahead."""
Elsewhere = Callable[[RetrieverOptions, str, int], AbstractContextManager[Each]]
"""From a retriever's settings, the digest of its model and a number of passages to what encodes them in other
processes, within a context."""


class PassageEncoder(ABC, Generic[Vectors]):
    """Gives passages their vectors.

    Attributes:
        dim: length of a vector.
        max_tokens: the tokens that are read of a passage, those included that mark it.
    """

    dim: int
    max_tokens: int
    _has_told: bool = False

    def tell_cut_passages(self, passages: str) -> None:
        """Say that passages are longer than the encoder reads.

        Args:
            passages: how many of which.
        """
        _log.warning("retriever: %s", cut_warning(passages, self.max_tokens))

    def tell_cut_queries(self, queries: Sequence[str], most: int) -> None:
        """Say of the first query that is longer than the encoder reads that it was cut.

        Args:
            queries: those that were cut.
            most: the tokens that are read of one.
        """
        if queries and not self._has_told:
            self._has_told = True
            _log.warning("retriever: %s", cut_query_warning(queries[0], most))

    def passages(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Vectors]]:
        """Encode passages, roughly by length, so that a batch holds hardly any padding.

        Args:
            texts: the passages.

        Yields:
            The places in ``texts`` of a batch's passages, and their vectors.
        """
        return chain.from_iterable(window.batches for window in self.in_order(texts))

    def in_order(self, texts: Sequence[str], done: int = 0) -> Iterator[EncodedWindow[Vectors]]:
        """Encode passages roughly by length, a window after the other.

        Args:
            texts: the passages.
            done: how many of them are left out, as they were encoded before; they end with a window.

        Yields:
            What is made of each window, by places in ``texts``.
        """
        lengths = [len(text) for text in texts]
        order = sorted(range(len(texts)), key=lengths.__getitem__)
        return self.windows(texts, (order[start : start + WINDOW] for start in range(done, len(order), WINDOW)))

    def windows(self, texts: Sequence[str], windows: Iterable[Sequence[int]]) -> Iterator[EncodedWindow[Vectors]]:
        """Encode some of the passages, a window after the other, each by length.

        Args:
            texts: all passages.
            windows: places in ``texts``, at most ``WINDOW`` at a time.

        Yields:
            What is made of each window, by places in ``texts``.
        """
        ones, others = tee(_by_length(texts, window) for window in windows)  # what encodes elsewhere reads ahead
        for (places, _), encoded in zip(ones, self.each(texts for _, texts in others), strict=True):
            batches = (([places[row] for row in rows], vectors) for rows, vectors in encoded.batches)
            yield EncodedWindow(batches, [places[row] for row in encoded.cut])

    def each(self, windows: Iterable[list[str]]) -> Iterator[EncodedWindow[Vectors]]:
        """Encode windows of texts that are in order of length.

        Args:
            windows: are read as they are encoded.

        Yields:
            What is made of each, by rows of the window.
        """
        return map(self.window, windows)

    @abstractmethod
    def window(self, texts: list[str]) -> EncodedWindow[Vectors]:
        """Encode one window, a batch at a time.

        Args:
            texts: in order of length.
        """


def _by_length(texts: Sequence[str], places: Sequence[int]) -> tuple[list[int], list[str]]:
    """Places and their texts in order of length; equally long ones stay as they are."""
    pairs = sorted(((place, texts[place]) for place in places), key=lambda pair: len(pair[1]))
    return [place for place, _ in pairs], [text for _, text in pairs]


class _Indexing(PassageEncoder[Vectors]):
    """Encodes as another one does, and keeps the places of passages that were cut: some are encoded twice."""

    def __init__(self, encoder: PassageEncoder[Vectors], each: Each) -> None:
        self.dim, self.max_tokens, self._each = encoder.dim, encoder.max_tokens, each
        self.cut: set[int] = set()

    def windows(self, texts: Sequence[str], windows: Iterable[Sequence[int]]) -> Iterator[EncodedWindow[Vectors]]:
        for window in super().windows(texts, windows):
            self.cut.update(window.cut)
            yield window

    def each(self, windows: Iterable[list[str]]) -> Iterator[EncodedWindow[Vectors]]:
        return self._each(windows)

    def window(self, texts: list[str]) -> EncodedWindow[Vectors]:
        return next(self._each([texts]))


@contextlib.contextmanager
def indexing(
    encoder: PassageEncoder[Vectors],
    settings: RetrieverOptions,
    digest: str,
    passages: int,
    elsewhere: Elsewhere | None,
) -> Iterator[PassageEncoder[Vectors]]:
    """The encoder that a corpus is indexed with: this process's own, or one that has others do it.

    In the end it is said how many passages were cut; also where a build is ended, because the one that goes on encodes
    only the others.

    Args:
        encoder: this process's own.
        settings: of the retriever.
        digest: of its model.
        passages: of the corpus. One window can't be shared out, and is encoded here.
        elsewhere: gives the other one; ``None`` for none.
    """
    encoding: AbstractContextManager[Each] = contextlib.nullcontext(encoder.each)
    if elsewhere is not None and passages > WINDOW:
        encoding = elsewhere(settings, digest, passages)
    with encoding as each:
        found = _Indexing(encoder, each)
        try:
            yield found
        finally:
            if found.cut:
                encoder.tell_cut_passages(f"{len(found.cut)} of the encoded passages")
