"""The text of a document by its headings, and that of plain text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

LEVELS = {f"h{level}": level for level in range(1, 7)}
"""The levels of headings by their elements in HTML."""


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under a heading.

    Attributes:
        headings: the heading after those that it lies under; none before the first one.
        text: its paragraphs, a line each.
    """

    headings: tuple[str, ...]
    text: str


@dataclass
class Outline:
    """A document that is being read.

    Attributes:
        title: of the document, where it gives one.
        sections: those with a text, in order.
    """

    title: str = ""
    sections: list[Section] = field(default_factory=list)
    _headings: list[tuple[int, str]] = field(default_factory=list, repr=False)
    _lines: list[str] = field(default_factory=list, repr=False)
    _bare: bool = field(default=False, repr=False)  # nothing stands under the last heading yet

    def heading(self, level: int, text: str) -> None:
        """Begin a section; the first heading of all is the title, where there is none yet."""
        self.end(level)
        text = _spaced(text)
        if not self.title and not self.sections and not self._headings:
            self.title = text
        if text == self.title:
            self._headings = []
        elif text:
            self._headings = [(above, name) for above, name in self._headings if above < level] + [(level, text)]
            self._bare = True

    def line(self, text: str) -> None:
        """Add a paragraph, an item of a list or a row of a table."""
        if text := _spaced(text):
            self._lines.append(text)

    def end(self, level: int = 0) -> None:
        """End the section that is open; a heading under which nothing stands is a line of the section above.

        Args:
            level: of the heading that follows; 0 at the document's end.
        """
        names = tuple(name for _, name in self._headings)
        if self._lines:
            self.sections.append(Section(names, "\n".join(self._lines)))
        elif self._bare and level <= self._headings[-1][0]:
            self.sections.append(Section(names[:-1], names[-1]))
        self._lines, self._bare = [], False


def _spaced(text: str) -> str:
    """A text with single spaces, and without the hyphens that show at the end of a line alone."""
    return " ".join(text.replace("\u00ad", "").split())


def row_of(columns: Iterable[str], cells: Iterable[str]) -> str:
    """A row of a table as a line: its cells, each after the name of its column; empty ones are left out."""
    pairs = zip_longest(columns, cells, fillvalue="")
    return "; ".join(f"{column}: {cell}" if column else cell for column, cell in pairs if cell)


def of_text(text: str) -> Outline:
    """The outline of plain text: one section, whose paragraphs are separated by empty lines."""
    outline = Outline()
    for paragraph in re.split(r"\n\s*\n", text):
        outline.line(paragraph)
    outline.end()
    return outline
