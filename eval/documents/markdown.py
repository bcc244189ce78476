"""The outline of Markdown, and of what converters write as such."""

import re
from collections.abc import Iterable
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from yaml import YAMLError

from hoptimizer.common.strict import read_yaml
from hoptimizer.eval.documents.outline import LEVELS, Outline, row_of
from hoptimizer.eval.documents.web_page import read_html

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_PAIR = re.compile(r"[\w-]+:")
# What a text that was no Markdown may be taken for: tables are what a converter writes as such.
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_CONVERTED = MarkdownIt("commonmark", {"html": False}).enable("table").disable("reference")
_TABLES_ALONE = MarkdownIt("zero").enable("table")


def of_markdown(text: str) -> Outline:
    """The outline of Markdown: without its marks, the cells of a table's rows each after their column's name.

    YAML before it, between two lines of ``---``, is no text; its ``title`` is the document's.

    Example:
        >>> from hoptimizer.eval.documents.markdown import of_markdown
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
            level = LEVELS[token.tag]
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
                outline.line(row_of(columns, cells))
            cells = []
        elif token.type in ("fence", "code_block"):
            outline.line(token.content)
        elif token.type == "html_block":
            read_html(outline, token.content, nested=True)
    outline.end()
    return outline


def _plain(tokens: Iterable[Token]) -> str:
    """The words of inline tokens; of an image, its description."""
    kept = {"text", "code_inline", "image", "text_special"}
    return "".join(" " if _breaks(token) else token.content * (token.type in kept) for token in tokens)


def _breaks(token: Token) -> bool:
    return token.type.endswith("break") or (token.type == "html_inline" and token.content.lower().startswith("<br"))
