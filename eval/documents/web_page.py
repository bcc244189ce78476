"""The outline of HTML: what a browser shows of it."""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import pairwise

from hoptimizer.eval.documents.outline import LEVELS, Outline, row_of

# Elements of HTML that end a line, and those whose text nobody reads.
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body br button caption dd details dialog div dl dt fieldset figcaption "
        "figure footer form header hr legend li main nav ol option p pre section summary table tbody tfoot thead tr ul",
    )
)
_HIDDEN = frozenset({"script", "style", "template", "noscript", "svg"})
_CELLS = frozenset({"td", "th"})
_BETWEEN = "; "
_ROWS = frozenset({"table", "tbody", "tfoot", "thead", "tr"})
# What a page has around its text: menus; and the rest, where the page says what its text is.
_CONTENT = frozenset({"article", "main"})
_MENUS = frozenset({"nav"})
_AROUND = frozenset({"aside", "footer", "header", "nav"})


def of_html(text: str) -> Outline:
    """The outline of HTML: what a browser shows of it, without menus; and, of a page with ``main`` or ``article``,
    without the headers, footers and asides that stand outside of them.

    Example:
        >>> from hoptimizer.eval.documents.web_page import of_html
        >>> of_html("<title>Ships</title><p>Alma was built<br>in 1998.</p>")
        Outline(title='Ships', sections=[Section(headings=(), text='Alma was built\\nin 1998.')])
    """
    says_content = re.search(r"<(?:main|article)\b", text, re.IGNORECASE)
    outline = _html_without(_AROUND if says_content else _MENUS, text)
    return outline if outline.sections else _html_without(frozenset(), text)  # a page of links


def _html_without(left_out: frozenset[str], text: str) -> Outline:
    outline = Outline()
    read_html(outline, text, left_out=left_out)
    outline.end()
    return outline


def read_html(outline: Outline, text: str, *, nested: bool = False, left_out: frozenset[str] = frozenset()) -> None:
    """Hand an outline what HTML shows.

    Args:
        outline: takes headings and lines.
        text: the HTML.
        nested: whether it is a block within Markdown, whose title is no document's.
        left_out: elements that are not shown outside of ``main`` and ``article``.
    """
    reader = _Html(outline, nested, left_out)
    # Python's parser would look for the end of a comment that has none again and again, and show it. An empty comment
    # ends it, and says nothing where what looked like one was a part of a script.
    reader.feed(f"{text}<!---->")
    reader.close()
    reader.end_row()
    reader.end_line()


class _Html(HTMLParser):
    """Reads HTML, with the arguments of :func:`read_html`."""

    def __init__(self, outline: Outline, nested: bool, left_out: frozenset[str]) -> None:
        super().__init__(convert_charrefs=True)
        self._outline, self._nested, self._left_out = outline, nested, left_out
        self._content = 0  # how many elements are open that are the page's text
        self._text: list[str] = []
        self._hidden: list[str] = []
        self._in_heading = False
        self._columns: list[str] = []  # of the table that is open, as its first row names them
        self._cells: list[int] = []  # where the cells of the row begin in the text, and how many of them are names
        self._names = 0
        self._spanned = False  # cells of several rows or columns say nothing of which one theirs is

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """As of the standard library."""
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag in self._left_out and not self._content:
            self._break()
            self._hidden.append(tag)
        elif self._hidden:
            return
        elif tag in _BLOCKS:
            self._content += tag in _CONTENT
            if tag in _ROWS:
                self.end_row()
            if tag == "table":
                self._columns, self._spanned = [], False
            self._break()
        elif tag in LEVELS or tag == "title":
            self.end_line()
            self._in_heading = tag in LEVELS
        elif tag in _CELLS:
            self._begin_cell(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        """As of the standard library."""
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif self._hidden:
            return
        elif tag in LEVELS:
            self._outline.heading(LEVELS[tag], self._taken())
            self._in_heading = False
        elif tag == "title":
            title = " ".join(self._taken().split())
            if not self._nested:
                self._outline.title = self._outline.title or title
        elif tag in _BLOCKS:
            self._content = max(0, self._content - (tag in _CONTENT))
            if tag in _ROWS:
                self.end_row()
            self._break()

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Take ``<![`` for a comment, as a browser does: Python's parser raises an error at most of what can follow."""
        return self.parse_bogus_comment(i)

    def handle_data(self, data: str) -> None:
        """As of the standard library."""
        if not self._hidden:
            self._text.append(data)

    def end_line(self) -> None:
        """Hand over the line that is open."""
        self._outline.line(self._taken())

    def _begin_cell(self, tag: str, attrs: Mapping[str, str | None]) -> None:
        if "".join(self._text).strip():
            self._text.append(_BETWEEN)
        self._cells.append(len(self._text))
        self._names += tag == "th"
        if any(attrs.get(span) not in (None, "1") for span in ("colspan", "rowspan")):
            self._columns, self._spanned = [], True

    def end_row(self) -> None:
        """Put the names of the columns before the cells of a row; or keep them, where the row is that of the names."""
        parts = ["".join(self._text[start:end]) for start, end in pairwise([*self._cells, len(self._text)])]
        cells = [" ".join(part.removesuffix(_BETWEEN).split()) for part in parts]
        if 1 < len(cells) == self._names:
            self._columns = [] if self._spanned else cells
        elif self._columns and cells:
            self._text = [row_of(self._columns, cells)]
        self._cells, self._names = [], 0

    def _break(self) -> None:
        """Where a block begins or ends: a heading goes on, and so does a cell of a named column."""
        if self._in_heading or (self._columns and self._cells):
            self._text.append(" ")
        else:
            self.end_line()

    def _taken(self) -> str:
        text, self._text, self._cells = "".join(self._text), [], []
        return text
