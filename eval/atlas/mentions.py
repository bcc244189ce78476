"""Which pages mention what: a question whose start and end stand on one page needs no second one."""

import re
from functools import cache

from hoptimizer.eval.atlas.chains import Chain
from hoptimizer.eval.atlas.facts import Facts, bare_name
from hoptimizer.eval.atlas.passages import passages


class Mentions:
    """The words of every page, to look names and values up in.

    Args:
        facts: the facts that the pages are made from.
    """

    def __init__(self, facts: Facts) -> None:
        self._pages = [_words(page["text"]) for page in passages(facts)]
        self._holding = cache(self._find)

    def together(self, *texts: str) -> bool:
        """Whether one page mentions all of the texts, each as whole words and without a leading article."""
        return bool(frozenset.intersection(*map(self._holding, texts)))

    def short_cut(self, chain: Chain) -> bool:
        """Whether one page mentions both the start of a chain of several hops and its end."""
        return len(chain) > 1 and self.together(chain[0].entity.name, chain[-1].value)

    def _find(self, text: str) -> frozenset[int]:
        words = _words(bare_name(text))
        return frozenset(number for number, page in enumerate(self._pages) if words in page)


def _words(text: str) -> str:
    # Spaces on both sides, so that "Io" is not found in "Iowa".
    return " ".join(["", *re.findall(r"[^\W_]+", text.lower()), ""])
