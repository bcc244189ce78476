"""Passages that are linked by a name, which a question of two hops can go over."""

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from hoptimizer.common.text import folded
from hoptimizer.retrieval import Passage

# Two or more capitalized words, with particles between them.
_NAME = re.compile(r"\b[A-Z][\w'’-]+(?:\s+(?:(?:de|del|der|di|of|the|van|von|la|le)\s+)*[A-Z][\w'’-]+)+")
# A name that stands in more passages says little about any of them.
_MOST_PASSAGES = 8
# Questions over one name, so that they differ.
_MOST_LINKS = 3
_SHORT = 3  # letters


@dataclass(frozen=True, slots=True)
class Link:
    """Two passages with a name in common.

    Attributes:
        first: has the name, which a question about it can be answered with.
        name: as the first passage writes it.
        second: is titled after the name, or says something about it.
    """

    first: Passage
    name: str
    second: Passage


def find_links(passages: Sequence[Passage], seed: int = 0) -> list[Link]:
    """Links between passages in an order drawn at random: those to a passage that is titled after the name come first.

    Args:
        passages: of the corpus.
        seed: of the order.

    Example:
        >>> from hoptimizer.eval.synthesis.links import find_links
        >>> from hoptimizer.retrieval import Passage
        >>> alma = Passage("1", "Alma", "The Alma is commanded by Ines Moreau.")
        >>> ines = Passage("2", "Ines Moreau", "She was born in Lyon.")
        >>> [(link.first.id, link.name, link.second.id) for link in find_links([alma, ines])]
        [('1', 'Ines Moreau', '2')]
    """
    rng = random.Random(seed)
    titled: dict[str, list[Passage]] = defaultdict(list)
    holding: dict[str, list[tuple[Passage, str]]] = defaultdict(list)
    for passage in passages:
        key = folded(passage.bare_title)
        if len(key) > _SHORT:
            titled[key].append(passage)
    longest = max((key.count(" ") + 1 for key in titled), default=0)
    for passage in passages:
        seen = {folded(found[0]): found[0] for found in _NAME.finditer(passage.text)}
        seen |= dict(_titles_in(passage.text, titled, longest))
        for key, name in seen.items():
            holding[key].append((passage, " ".join(name.split())))
    strong, weak = [], []
    for key in sorted(holding):
        about = [passage for passage in titled.get(key, []) if len(titled[key]) <= _MOST_PASSAGES]
        named = [(p, name) for p, name in holding[key] if folded(p.bare_title) != key]
        if about:
            links = [Link(p, name, second) for p, name in named for second in about]
            strong += rng.sample(links, min(len(links), _MOST_LINKS))
        elif 1 < len(named) <= _MOST_PASSAGES:
            links = [Link(p, name, q) for (p, name), (q, _) in permutations(named, 2) if p.title != q.title]
            weak += rng.sample(links, min(len(links), _MOST_LINKS))
    return rng.sample(strong, len(strong)) + rng.sample(weak, len(weak))


def _titles_in(text: str, titled: dict[str, list[Passage]], longest: int) -> Iterator[tuple[str, str]]:
    """The titles, of so many words at most, that a text has with a capital letter, folded and as it writes them."""
    spans = [found.span() for found in re.finditer(r"\w+(?:['’]\w+)*", text)]
    plain = [folded(text[start:end]) for start, end in spans]
    for first, (start, _) in enumerate(spans):
        for last in range(first, min(first + longest, len(spans))):
            key = " ".join(plain[first : last + 1])
            if key in titled and text[start].isupper():
                yield key, text[start : spans[last][1]]
