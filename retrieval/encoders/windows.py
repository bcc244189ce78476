"""Passages as encoders take them: roughly by length, a window at a time, in this process or in others."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain, tee
from typing import Any, Generic, TypeVar

from hoptimizer.retrieval.options import RetrieverOptions

WINDOW = 2048
"""Passages that are tokenized and put in order at a time: the unit that other processes can encode."""

Vectors = TypeVar("Vectors")
Each = Callable[[Iterable[list[str]]], Iterator[Iterable[tuple[list[int], Any]]]]
"""From windows of texts to the batches of each, in the order of the windows; it may read some windows ahead."""
Elsewhere = Callable[[RetrieverOptions, str, int], AbstractContextManager[Each]]
"""From a retriever's settings, the digest of its model and a number of passages to what encodes them in other
processes, within a context."""


class PassageEncoder(ABC, Generic[Vectors]):
    """Gives passages their vectors.

    Attributes:
        dim: length of a vector.
    """

    dim: int

    def passages(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Vectors]]:
        """Encode passages, roughly by length, so that a batch holds hardly any padding.

        Args:
            texts: the passages.

        Yields:
            The places in ``texts`` of a batch's passages, and their vectors.
        """
        return chain.from_iterable(self.in_order(texts))

    def in_order(self, texts: Sequence[str], done: int = 0) -> Iterator[Iterator[tuple[list[int], Vectors]]]:
        """Encode passages roughly by length, a window after the other.

        Args:
            texts: the passages.
            done: how many of them are left out, as they were encoded before; they end with a window.

        Yields:
            For each window its batches, as of :meth:`passages`.
        """
        lengths = [len(text) for text in texts]
        order = sorted(range(len(texts)), key=lengths.__getitem__)
        return self.windows(texts, (order[start : start + WINDOW] for start in range(done, len(order), WINDOW)))

    def windows(
        self, texts: Sequence[str], windows: Iterable[Sequence[int]]
    ) -> Iterator[Iterator[tuple[list[int], Vectors]]]:
        """Encode some of the passages, a window after the other, each by length.

        Args:
            texts: all passages.
            windows: places in ``texts``, at most ``WINDOW`` at a time.

        Yields:
            For each window its batches, as of :meth:`passages`.
        """
        ones, others = tee(_by_length(texts, window) for window in windows)  # what encodes elsewhere reads ahead
        for (places, _), batches in zip(ones, self.each(found for _, found in others), strict=True):
            yield (([places[row] for row in rows], vectors) for rows, vectors in batches)

    def each(self, windows: Iterable[list[str]]) -> Iterator[Iterable[tuple[list[int], Vectors]]]:
        """Encode windows of texts that are in order of length.

        Args:
            windows: are read as they are encoded.

        Yields:
            For each window its batches: rows of the window, and their vectors.
        """
        return map(self.window, windows)

    @abstractmethod
    def window(self, texts: list[str]) -> Iterable[tuple[list[int], Vectors]]:
        """Encode one window, a batch at a time.

        Args:
            texts: in order of length.
        """


def _by_length(texts: Sequence[str], places: Sequence[int]) -> tuple[list[int], list[str]]:
    """Places and their texts in order of length; equally long ones stay as they are."""
    pairs = sorted(((place, texts[place]) for place in places), key=lambda pair: len(pair[1]))
    return [place for place, _ in pairs], [text for _, text in pairs]


class _EncoderElsewhere(PassageEncoder[Any]):
    def __init__(self, dim: int, each: Each) -> None:
        self.dim, self._each = dim, each

    def each(self, windows: Iterable[list[str]]) -> Iterator[Iterable[tuple[list[int], Any]]]:
        return self._each(windows)

    def window(self, texts: list[str]) -> Iterable[tuple[list[int], Any]]:
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

    Args:
        encoder: this process's own.
        settings: of the retriever.
        digest: of its model.
        passages: of the corpus. One window can't be shared out, and is encoded here.
        elsewhere: gives the other one; ``None`` for none.
    """
    if elsewhere is None or passages <= WINDOW:
        yield encoder
        return
    with elsewhere(settings, digest, passages) as each:
        yield _EncoderElsewhere(encoder.dim, each)
