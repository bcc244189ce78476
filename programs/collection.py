"""The passages that a program has collected so far."""

from collections.abc import Iterable, Sequence
from itertools import chain, islice, zip_longest

from rapidfuzz import fuzz

from hoptimizer.retrieval import Passage


def each_once(passages: Iterable[Passage]) -> list[Passage]:
    """Passages without repetitions, in the order in which they were found."""
    kept: dict[str, Passage] = {}
    for passage in passages:
        kept.setdefault(passage.id, passage)
    return list(kept.values())


def in_turn(rankings: Sequence[Sequence[Passage]], most: int) -> list[Passage]:
    """Passages that several searches found, without repetitions: the best of each, then the second best, and so on.

    Args:
        rankings: what each search found, best first.
        most: the most passages; all searches have their share of them.
    """
    ranks = zip_longest(*rankings)
    found = (passage for passage in chain.from_iterable(ranks) if passage is not None)
    return list(islice(each_once(found), most))


class Collection:
    """Passages in the order in which they were found; the first ones are kept.

    Args:
        cap: the most passages it holds.
        skip_words: passages of more words are left out.
        cut_words: passages are cut to so many words.
        duplicate_ratio: a passage whose title and text are each this similar (0 to 100, fuzzy ratio) to those of a
            collected one is left out; the same text under another title is another passage.
    """

    def __init__(self, cap: int, skip_words: int, cut_words: int, duplicate_ratio: float) -> None:
        self.cap = cap
        self.skip_words = skip_words
        self.cut_words = cut_words
        self.duplicate_ratio = duplicate_ratio
        self.passages: list[Passage] = []

    @property
    def full(self) -> bool:
        """Whether the cap is reached."""
        return len(self.passages) >= self.cap

    def add(self, found: list[Passage], most: int | None = None) -> None:
        """Take in what a retrieval found, best first, until the cap is reached.

        Args:
            found: passages; those that are there are passed over.
            most: of the others, so many are taken.
        """
        cap = self.cap if most is None else min(self.cap, len(self.passages) + most)
        for passage in found:
            words = passage.text.split()
            if len(words) > self.skip_words:
                continue
            if len(words) > self.cut_words:
                text = " ".join(words[: self.cut_words])
                passage = Passage(passage.id, passage.title, text, passage.score)
            if len(self.passages) < cap and not self._holds(passage):
                self.passages.append(passage)

    def _holds(self, passage: Passage) -> bool:
        return any(kept.id == passage.id or self._nearly_same(kept, passage) for kept in self.passages)

    def _nearly_same(self, kept: Passage, passage: Passage) -> bool:
        pairs = ((kept.title, passage.title), (kept.text, passage.text))
        return all(fuzz.ratio(*pair) >= self.duplicate_ratio for pair in pairs)
