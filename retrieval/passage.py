"""Passages and the corpus that holds them."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload


@dataclass(frozen=True, slots=True)
class Passage:
    """A unit of retrieval.

    Attributes:
        id: unique in its corpus.
        title: name of the page or entity it is about; may be empty.
        text: its words, without the title.
        score: the retriever's score for the query that found it; higher is better, ``None`` outside a ranking.

    Example:
        >>> from hoptimizer.retrieval import Passage
        >>> passage = Passage(id="mercury-planet", title="Mercury (planet)", text="It is closest to the Sun.")
        >>> str(passage), passage.bare_title
        ('Mercury (planet): It is closest to the Sun.', 'Mercury')
    """

    id: str
    title: str
    text: str
    score: float | None = None

    def scored(self, score: float) -> "Passage":
        """This passage as a result of a search."""
        return replace(self, score=score)

    @property
    def bare_title(self) -> str:
        """The title without the brackets at its end that tell namesakes apart: ``Mercury`` for ``Mercury (planet)``."""
        return re.sub(r" \([^()]*\)$", "", self.title)

    def __str__(self) -> str:
        return f"{self.title}: {self.text}" if self.title else self.text


class Corpus:
    """An ordered collection of passages with unique ids.

    Args:
        passages: the passages; their order is the index's order.
        name: what messages call the corpus (a data set's name or a file).

    Attributes:
        passages, name: as given.

    Example:
        >>> from hoptimizer.retrieval import Corpus, Passage
        >>> corpus = Corpus([Passage("rhine", "Rhine", "The Rhine flows through Basel.")], name="rivers")
        >>> len(corpus), "rhine" in corpus, corpus["rhine"].title
        (1, True, 'Rhine')
    """

    def __init__(self, passages: Sequence[Passage], name: str = "corpus") -> None:
        self.passages = passages
        self.name = name

    def __len__(self) -> int:
        return len(self.passages)

    def __iter__(self) -> Iterator[Passage]:
        return iter(self.passages)

    def __getitem__(self, id: str) -> Passage:
        return self._by_id[id]

    def __deepcopy__(self, memo: dict[int, object]) -> "Corpus":
        # Copies of a program share their corpus: optimizers copy programs by the dozen.
        return self

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    @property
    def texts(self) -> Sequence[str]:
        """Each passage as retrievers read it, title and text, made when it is asked for."""
        return _Texts(self.passages)

    @cached_property
    def pages(self) -> Mapping[str, Sequence[int]]:
        """The titles of its pages, each with the places of its passages, in the order of the passages."""
        places: dict[str, list[int]] = {}
        for place, passage in enumerate(self.passages):
            if passage.title:
                places.setdefault(passage.title, []).append(place)
        return places

    @cached_property
    def _by_id(self) -> dict[str, Passage]:
        return {passage.id: passage for passage in self.passages}

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every id, title and text in order; an index is tied to it."""
        sha = hashlib.sha256()
        for passage in self.passages:
            sha.update(digested(passage))
        return sha.hexdigest()


def digested(passage: Passage) -> bytes:
    """What the digest of a corpus reads of a passage."""
    return json.dumps([passage.id, passage.title, passage.text], ensure_ascii=False).encode()


class _Texts(Sequence[str]):
    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def __len__(self) -> int:
        return len(self._passages)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._passages)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        found = self._passages[place]
        return str(found) if isinstance(found, Passage) else [str(passage) for passage in found]
