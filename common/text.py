"""The words of a text and where they stand: what token classifiers label."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import sentencex

Span = tuple[int, int]
"""Where words stand in a text: the place of the first character, and that after the last."""

_WORD = re.compile(r"\w+(?:['’]\w+)*")
# What may stand between two words of one phrase: "October 5, 1987".
_WITHIN_PHRASE = re.compile(r"[\s.,\-–'’\"]*")
_WITHIN_NAME = re.compile(r"[ \-–'’]+")
# Lower-case words within names, in the languages whose names English texts are full of.
_PARTICLE = re.compile("af|al|bin|d[aeiou]|del|della|der|dos|e|el|ibn|la|le|of|the|van|von|y|zu")
_INITIAL = 2
# What looks like the end of a sentence to the splitter and is none: the number of a list's item, and a person's title.
_NO_END = re.compile(r"\s*\d{1,3}[.)]|.*\b(Dr|Mr|Mrs|Ms|Prof|St|Mt|Gen|Lt|Col|Capt)\.", re.DOTALL)


def words(text: str) -> list[Span]:
    """Where the words of a text stand."""
    return [found.span() for found in _WORD.finditer(text)]


def folded(text: str) -> str:
    """A text in the form in which it is compared: its words alone, without case and accents."""
    plain = text.casefold()
    if not plain.isascii():  # ASCII has no accents, and most texts are of it alone
        plain = unicodedata.normalize("NFKD", plain)
        plain = "".join(character for character in plain if not unicodedata.combining(character))
    return " ".join(plain[start:end] for start, end in words(plain))


def find(text: str, phrase: str) -> list[Span]:
    """Where a text has a phrase, word by word; case and accents do not count."""
    wanted = folded(phrase).split()
    places = words(text)
    have = [folded(text[start:end]) for start, end in places]
    spans: list[Span] = []
    for first in range(len(have) - len(wanted) + 1) if wanted else ():
        last = first + len(wanted) - 1
        if have[first : last + 1] == wanted and (not spans or places[first][0] >= spans[-1][1]):
            spans.append((places[first][0], places[last][1]))
    return spans


def joined(text: str, chosen: Iterable[Span]) -> list[Span]:
    """Chosen words as phrases: neighbours with only space or punctuation between them become one span."""
    spans: list[Span] = []
    for start, end in chosen:
        if spans and _WITHIN_PHRASE.fullmatch(text, spans[-1][1], start):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def whole_names(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans grown to the whole names that they are a part of; those without a capital letter stay as they are.

    A name is a run of capitalized words, with particles (de, of) and initials between them.
    """
    places = words(text)
    grown = (_grow(text, places, span) for span in spans)
    return list(dict.fromkeys(grown))


def _grow(text: str, places: list[Span], span: Span) -> Span:
    inside = [i for i, (start, end) in enumerate(places) if start < span[1] and end > span[0]]
    if not any(_capital(text, places[i]) for i in inside):
        return span
    first, last = inside[0], inside[-1]
    while step := _reach(text, places, first, -1):
        first -= step
    while step := _reach(text, places, last, 1):
        last += step
    return min(span[0], places[first][0]), max(span[1], places[last][1])


def _reach(text: str, places: list[Span], at: int, way: int) -> int:
    """How many words further a name goes from the word ``at``: 0, 1, or 2 over a particle."""
    for step in (1, 2):
        to = at + way * step
        if not 0 <= to < len(places) or not _one_name(text, places, min(to, to - way)):
            return 0
        if _capital(text, places[to]):
            return step
        if not _PARTICLE.fullmatch(text, *places[to]):
            return 0
    return 0


def _one_name(text: str, places: list[Span], left: int) -> bool:
    """Whether a word and the next one can belong to one name."""
    (start, end), (following, _) = places[left], places[left + 1]
    gap = text[end:following]
    return bool(_WITHIN_NAME.fullmatch(gap)) or (gap in (".", ". ") and end - start <= _INITIAL)


def _capital(text: str, place: Span) -> bool:
    return text[place[0]].isupper()


def sentences(text: str) -> list[str]:
    """The sentences of an English text.

    Example:
        >>> from hoptimizer.common.text import sentences
        >>> sentences("1. Dr. No is a film of the U.K. It was made in 1962.")
        ['1. Dr. No is a film of the U.K.', 'It was made in 1962.']
        >>> sentences("Perdonami! was directed by Mario Costa.")
        ['Perdonami! was directed by Mario Costa.']
    """
    found: list[str] = []
    open_ended = ""
    for part in sentencex.segment("en", text):
        if found and not open_ended and part[:1].islower():  # of "Perdonami! was directed by" it is a name that ends
            found[-1] += f" {part.strip()}"
            continue
        whole = (open_ended + part).strip()
        if _NO_END.fullmatch(whole):
            open_ended = whole + " "
            continue
        open_ended = ""
        if whole:
            found.append(whole)
    return found + [open_ended.strip()] * bool(open_ended)
