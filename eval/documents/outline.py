"""The text of a document by its headings, from Markdown, HTML and plain text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import zip_longest
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from yaml import YAMLError

from hoptimizer.common.strict import read_yaml

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_PAIR = re.compile(r"[\w-]+:")
# What a text that was no Markdown may be taken for: tables are what a converter writes as such.
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_CONVERTED = MarkdownIt("commonmark", {"html": False}).enable("table").disable("reference")
_TABLES_ALONE = MarkdownIt("zero").enable("table")
_LEVELS = {f"h{level}": level for level in range(1, 7)}
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
# What a page has around its text: menus; and the rest, where the page says what its text is.
_CONTENT = frozenset({"article", "main"})
_MENUS = frozenset({"nav"})
_AROUND = frozenset({"aside", "footer", "header", "nav"})


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


def of_markdown(text: str) -> Outline:
    """The outline of Markdown: without its marks, the cells of a table's rows each after their column's name.

    YAML before it, between two lines of ``---``, is no text; its ``title`` is the document's.

    Example:
        >>> from hoptimizer.eval.documents.outline import of_markdown
        >>> of_markdown("# Ships\\n\\n## Alma\\n\\nBuilt in *1998*, see [ports](ports.md).").sections
        [Section(headings=('Alma',), text='Built in 1998, see ports.')]
    """
    front = _FRONT_MATTER.match(text)
    fields = _fields(front[1]) if front else None
    if front is None or fields is None:
        return _outline(_MARKDOWN, text, "")
    title = fields.get("title")
    return _outline(_MARKDOWN, text[front.end() :], " ".join(title.split()) if isinstance(title, str) else "")


def of_converted(text: str, marked: bool) -> Outline:
    """The outline of what a converter made of another kind of document.

    Args:
        text: what it made. Angle brackets are the document's own.
        marked: whether it marks headings, lists and emphasis as Markdown does; tables it does in any case.
    """
    return _outline(_CONVERTED if marked else _TABLES_ALONE, text, "")


def _fields(front: str) -> dict[Any, Any] | None:
    """What YAML between two rules says; ``None`` where it is none, but the first part of a text."""
    try:
        fields = read_yaml(front)
    except (YAMLError, ValueError):  # such as "title: The Alma: a ship", which many tools read
        lines = [line for line in front.splitlines() if not re.match(r"\s|-|#|\Z", line)]
        if not all(map(_PAIR.match, lines)):
            return None
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return fields if isinstance(fields, dict) else None if front.strip() else {}


def _outline(parser: MarkdownIt, text: str, title: str) -> Outline:
    outline = Outline(title)
    columns: list[str] = []
    cells: list[str] = []
    level, in_head, in_cell = 0, False, False
    for token in parser.parse(text):
        if token.type == "heading_open":
            level = _LEVELS[token.tag]
        elif token.type == "inline" and level:
            outline.heading(level, _plain(token.children or ()))
            level = 0
        elif token.type == "inline" and in_cell:
            cells[-1] = _plain(token.children or ())
        elif token.type == "inline":
            outline.line(_plain(token.children or ()))
        elif token.type in ("th_open", "td_open"):
            in_cell = True
            cells.append("")
        elif token.type in ("th_close", "td_close"):
            in_cell = False
        elif token.type in ("thead_open", "thead_close"):
            in_head = token.type == "thead_open"
        elif token.type == "tr_close":
            if in_head:
                columns = cells
            else:
                outline.line(_row(columns, cells))
            cells = []
        elif token.type in ("fence", "code_block"):
            outline.line(token.content)
        elif token.type == "html_block":
            block = _Html(outline, nested=True)
            block.feed(token.content)
            block.close()
            block.end_line()
    outline.end()
    return outline


def _plain(tokens: Iterable[Token]) -> str:
    """The words of inline tokens; of an image, its description."""
    kept = {"text", "code_inline", "image", "text_special"}
    return "".join(" " if _breaks(token) else token.content * (token.type in kept) for token in tokens)


def _breaks(token: Token) -> bool:
    return token.type.endswith("break") or (token.type == "html_inline" and token.content.lower().startswith("<br"))


def _row(columns: Iterable[str], cells: Iterable[str]) -> str:
    pairs = zip_longest(columns, cells, fillvalue="")
    return "; ".join(f"{column}: {cell}" if column else cell for column, cell in pairs if cell)


def of_html(text: str) -> Outline:
    """The outline of HTML: what a browser shows of it, without menus; and, of a page with ``main`` or ``article``,
    without the headers, footers and asides that stand outside of them.

    Example:
        >>> from hoptimizer.eval.documents.outline import of_html
        >>> of_html("<title>Ships</title><p>Alma was built<br>in 1998.</p>")
        Outline(title='Ships', sections=[Section(headings=(), text='Alma was built\\nin 1998.')])
    """
    says_content = re.search(r"<(?:main|article)\b", text, re.IGNORECASE)
    outline = _html_without(_AROUND if says_content else _MENUS, text)
    return outline if outline.sections else _html_without(frozenset(), text)  # a page of links


def _html_without(left_out: frozenset[str], text: str) -> Outline:
    outline = Outline()
    reader = _Html(outline, left_out=left_out)
    reader.feed(text)
    reader.close()
    reader.end_line()
    outline.end()
    return outline


def of_text(text: str) -> Outline:
    """The outline of plain text: one section, whose paragraphs are separated by empty lines."""
    outline = Outline()
    for paragraph in re.split(r"\n\s*\n", text):
        outline.line(paragraph)
    outline.end()
    return outline


class _Html(HTMLParser):
    """Hands an outline what HTML shows.

    Args:
        outline: takes headings and lines.
        nested: whether it is a block within Markdown, whose title is no document's.
        left_out: elements that are not shown outside of ``main`` and ``article``.
    """

    def __init__(self, outline: Outline, nested: bool = False, left_out: frozenset[str] = frozenset()) -> None:
        super().__init__(convert_charrefs=True)
        self._outline, self._nested, self._left_out = outline, nested, left_out
        self._content = 0  # how many elements are open that are the page's text
        self._text: list[str] = []
        self._hidden: list[str] = []
        self._in_heading = False

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
            self._break()
        elif tag in _LEVELS or tag == "title":
            self.end_line()
            self._in_heading = tag in _LEVELS
        elif tag in _CELLS and "".join(self._text).strip():
            self._text.append("; ")

    def handle_endtag(self, tag: str) -> None:
        """As of the standard library."""
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif self._hidden:
            return
        elif tag in _LEVELS:
            self._outline.heading(_LEVELS[tag], self._taken())
            self._in_heading = False
        elif tag == "title":
            title = " ".join(self._taken().split())
            if not self._nested:
                self._outline.title = self._outline.title or title
        elif tag in _BLOCKS:
            self._content = max(0, self._content - (tag in _CONTENT))
            self._break()

    def handle_data(self, data: str) -> None:
        """As of the standard library."""
        if not self._hidden:
            self._text.append(data)

    def end_line(self) -> None:
        """Hand over the line that is open."""
        self._outline.line(self._taken())

    def _break(self) -> None:
        """Where a block begins or ends: a heading goes on."""
        if self._in_heading:
            self._text.append(" ")
        else:
            self.end_line()

    def _taken(self) -> str:
        text, self._text = "".join(self._text), []
        return text
