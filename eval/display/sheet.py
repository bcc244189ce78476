"""A table of texts, in every way in which results are shown."""

import hashlib
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from hoptimizer.common.terminal import printable

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

MARK = "†"
"""Stands behind what differs by more than chance."""

# What means something to LaTeX.
_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {character: f"${character}$" for character in "<>|"}
    | {
        "[": "{[}",
        "±": r"$\pm$",
        MARK: r"$^\dagger$",
        "–": "--",
    }  # a bracket at a row's start would be the space above it
)
_BOLD = "font-weight: bold"


@dataclass(frozen=True)
class Sheet:
    """A table of texts, to be shown in any way.

    Attributes:
        title: what it shows.
        header: names of the columns.
        labels: how many columns, from the left, say what a row is.
        rows: the texts.
        bold: which of them are the best ones: row and column.
        note: what stands below the table, or nothing.
    """

    title: str
    header: list[str]
    labels: int
    rows: list[list[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    note: str = ""

    def markdown(self) -> str:
        """The table in Markdown."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.header) - self.labels)
        body = [
            [f"**{text}**" if (number, column) in self.bold else text for column, text in enumerate(map(_cell, row))]
            for number, row in enumerate(self.rows)
        ]
        lines = [[_cell(text) for text in self.header], rule, *body]
        table = "\n".join([f"{self.title}\n", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"
        return f"{table}\n{self.note}\n" if self.note else table

    def latex(self) -> str:
        """The table in LaTeX, with the rules of the package booktabs; its texts mean nothing to LaTeX."""
        columns = "l" * self.labels + "r" * (len(self.header) - self.labels)
        caption = _tex(" ".join([f"{self.title}.", self.note]).strip())
        return str(self._styled(_tex).to_latex(hrules=True, convert_css=True, column_format=columns, caption=caption))

    def html(self) -> str:
        """The table in HTML; its texts mean nothing to a browser."""
        styled = self._styled(html.escape).set_caption(html.escape(printable(self.title)))
        # The rule of a bold cell names it by this, and a page may have several tables.
        own = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        table = str(styled.to_html(exclude_styles=False, table_uuid=own))
        return f"{table}<p>{html.escape(printable(self.note))}</p>\n" if self.note else table

    def _styled(self, escape: Callable[[str], str]) -> "Styler":
        """Pandas' form of it. Columns are numbered, since a name may be there twice."""
        header = [escape(_line(text)) for text in self.header]
        frame = pd.DataFrame([[escape(_line(text)) for text in row] for row in self.rows], columns=range(len(header)))

        def styles(shown: Any) -> Any:  # noqa: ANN401 - a frame
            css = shown.map(lambda _: "")
            for row, column in self.bold:
                css.iloc[row, column] = _BOLD
            return css

        styled = frame.style.hide(axis="index").format_index(lambda number: header[int(str(number))], axis="columns")
        return styled.apply(styles, axis=None)


def notebook(*sheets: Sheet) -> str:
    """What a notebook shows of results: their tables, one below the other.

    Args:
        sheets: the tables.

    Example:
        >>> from hoptimizer.eval.display.sheet import Sheet, notebook
        >>> "a &lt; b" in notebook(Sheet("scores", ["question", "f1"], 1, [["a < b", "50.0"]]))
        True
    """
    return "\n".join(sheet.html() for sheet in sheets)


def _line(text: str) -> str:
    return " ".join(printable(text).splitlines())


def _cell(text: str) -> str:
    """A text as one cell of a Markdown table, which a bar or a line break would end."""
    return _line(text).replace("|", "\\|")


def _tex(text: str) -> str:
    return text.translate(_TEX)
