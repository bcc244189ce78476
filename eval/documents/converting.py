"""From a file to the outline of a document."""

import logging
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hoptimizer.common.errors import UserError, as_line
from hoptimizer.eval.documents.markdown import of_converted, of_markdown
from hoptimizer.eval.documents.outline import Outline, Section, of_text
from hoptimizer.eval.documents.web_page import of_html

_TEXTS: dict[str, Callable[[str], Outline]] = {
    ".md": of_markdown,
    ".markdown": of_markdown,
    ".txt": of_text,
    ".text": of_text,
    ".html": of_html,
    ".htm": of_html,
}
_CONVERTED = (".pdf", ".docx")
"""What the extra ``docs`` is for."""

SUFFIXES = (*_TEXTS, *_CONVERTED)
"""The kinds of documents that are read."""

MOST_BYTES = 20_000_000
"""A larger document is a book shelf: it would take gigabytes to convert."""

# What the parts of a DOCX file may hold together, so that a small file does not fill the memory.
_MOST_UNPACKED = 10 * MOST_BYTES

# A word, perhaps of several with hyphens, that goes on after the end of a line; and one with hyphens.
_DIVIDED = re.compile(r"(?<![\w-])(\w++(?:-\w++)*)-\n\s*(\w++(?:-\w++)*)")
_HYPHENATED = re.compile(r"(?<![\w-])\w++(?:-\w++)+")


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read.

    Attributes:
        path: its file.
        title: as it gives it, else made of the file's name.
        sections: its text; at least one.
    """

    path: Path
    title: str
    sections: list[Section]


def read_document(path: Path) -> Document:
    """The text of a document.

    Args:
        path: a file of one of the :data:`SUFFIXES`.

    Raises:
        UserError: it is too large, damaged or encrypted, has no text, or the extra that reads it is not installed.
    """
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            most = f"a document may have {MOST_BYTES / 1e6:.0f} MB"
            raise UserError(f"{path}: {size / 1e6:.0f} MB, but {most}; divide it into several")
        kind = path.suffix.lower()
        outline = _TEXTS[kind](path.read_text(encoding="utf-8-sig")) if kind in _TEXTS else _converted(path)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
    if not outline.sections:
        why = "a scan? run a text recognition on it first" if path.suffix.lower() in _CONVERTED else "remove it"
        raise UserError(f"{path}: no text in it ({why})")
    name = os.fsencode(path.stem).decode(errors="replace")  # of an old archive it may be no UTF-8
    return Document(path, outline.title or name.replace("_", " ").replace("-", " "), outline.sections)


def _converted(path: Path) -> Outline:
    try:
        import markitdown  # an extra, which takes a second to import
        from markitdown.converters import DocxConverter, PdfConverter
    except ImportError:
        raise UserError(
            f"{path}: PDF and DOCX are read by markitdown, which is not installed; install hoptimizer[pdf]"
        ) from None
    if path.suffix.lower() == ".docx":
        _check_archive(path)
    logging.getLogger("pdfminer").setLevel(logging.ERROR)  # it warns of every odd font
    try:
        # With its other converters, what is no PDF would be read as plain text.
        converter = markitdown.MarkItDown(enable_builtins=False, enable_plugins=False)
        converter.register_converter(PdfConverter() if path.suffix.lower() == ".pdf" else DocxConverter())
        converted = converter.convert_local(path)
    except markitdown.MarkItDownException as error:
        said = str(error)
        if "PDFPasswordIncorrect" in said or "PDFEncryption" in said:
            raise UserError(f"{path}: encrypted; save a copy without a password") from None
        reason = as_line(said.strip().splitlines()[-1])[:120] if said.strip() else type(error).__name__
        raise UserError(f"{path}: cannot be converted ({reason}); is it damaged? save it again") from None
    is_docx = path.suffix.lower() == ".docx"
    outline = of_converted(converted.markdown if is_docx else _rejoined(converted.markdown), marked=is_docx)
    outline.title = outline.title or converted.title or ""
    return outline


def _rejoined(text: str) -> str:
    """The text of a PDF with words whole that the ends of its lines divide, where both parts have small letters.

    A hyphen stays where the document has the word with it elsewhere, and in words of several hyphens.
    """
    hyphenated = set(_HYPHENATED.findall(text))

    def whole(found: re.Match[str]) -> str:
        begun, rest = found.groups()
        if not (begun[-1].islower() and rest[0].islower()):
            return found[0]
        word = f"{begun}-{rest}"
        return word if word in hyphenated or word.count("-") > 1 else begun + rest

    return _DIVIDED.sub(whole, text)


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    except zipfile.BadZipFile:
        # Word keeps an encrypted document in the container of its older format.
        raise UserError(f"{path}: no DOCX file, or an encrypted one; save it again without a password") from None
    if unpacked > _MOST_UNPACKED:
        raise UserError(f"{path}: {unpacked / 1e6:.0f} MB when it is unpacked; divide it into several documents")
