"""Files that are read piece by piece, whatever their size: compressed ones, and JSON."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hoptimizer.common.strict import once

DAMAGED = (EOFError, zlib.error, lzma.LZMAError)
"""What reading a damaged compressed file raises, beside ``OSError``."""

# Bytes that are read at once, at least.
_PIECE = 1 << 18
_SPACE = re.compile(r"[ \t\n\r]*")
_SEPARATOR = re.compile(r"sep=([^\r\n])", re.IGNORECASE)
_DECODER = json.JSONDecoder(object_pairs_hook=once)
_COMPRESSED = (".gz", ".bz2", ".xz")

TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
"""The kinds of files that have rows."""

TABLE_SUFFIXES = tuple(f"{table}{packed}" for table in TABLES for packed in ("", *_COMPRESSED))
"""How the names of such files end, compressed or not."""

EXCEL = (".xlsx", ".xls")
"""How the names of Excel's files end, which are tables and no texts."""


class MalformedText(ValueError):
    """A text that is no UTF-8 or no JSON.

    Args:
        line: where, from 1 on.
        reason: what is wrong, and what to do about it.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def kind(path: Path) -> str:
    """The suffix of a file in small letters, without that of its compression.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.common.stream import kind
        >>> kind(Path("psgs_w100.TSV.gz"))
        '.tsv'
    """
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _COMPRESSED else suffix


def opened(path: Path) -> BinaryIO:
    """A file to read, decompressed if its suffix is ``.gz``, ``.bz2`` or ``.xz``.

    Reading raises an ``OSError`` or one of :data:`DAMAGED` where the file is damaged.

    Raises:
        OSError: it can't be opened.
        MalformedText: it is Excel's.
    """
    suffix = path.suffix.lower()
    if suffix in EXCEL:
        raise MalformedText(1, "an Excel file, which is not read; save it as CSV")
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path))
    if suffix == ".bz2":
        return io.BufferedReader(bz2.open(path))
    return io.BufferedReader(lzma.open(path)) if suffix == ".xz" else path.open("rb")


def separator(path: Path) -> str:
    """What separates the cells of a CSV or TSV file.

    Of a CSV file it is what the line says that Excel may write before the header (``sep=;``), else what the header has
    most of outside of quotes: commas, or semicolons, as Excel writes them in many languages, or tabs.

    Raises:
        OSError: it can't be read; or one of :data:`DAMAGED`.
        MalformedText: the header is not UTF-8.
    """
    if kind(path) == ".tsv":
        return "\t"
    with opened(path) as file:
        head = next(filter(str.strip, utf8_lines(file)), "")
    if said := _SEPARATOR.match(head):
        return said[1]
    return max(",;\t", key=re.sub(r'"[^"]*"', "", head).count)


def utf8_lines(file: BinaryIO) -> Iterator[str]:
    """The lines of a text, their ends kept.

    Raises:
        MalformedText: a line is not UTF-8.
    """
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise MalformedText(number, "not UTF-8; save the file as UTF-8") from None


class JsonStream:
    """The parts of one JSON text, each read when it is asked for.

    Args:
        file: the text, in UTF-8.

    Every method raises :class:`MalformedText` where the text is malformed.

    Example:
        >>> import io
        >>> from hoptimizer.common.stream import JsonStream
        >>> list(JsonStream(io.BytesIO(b'[1, {"a": 2}]')).array())
        [1, {'a': 2}]
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""  # what was read and is not done with
        self._at = 0
        self._line = 1  # of the first character of the text, and where in its line it stands
        self._column = 0

    def peek(self) -> str:
        """The next character that is no space; nothing at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def array(self) -> Iterator[Any]:
        """The entries of the array that comes next."""
        self._take("[")
        if self.peek() == "]":
            self._take("]")
            return
        while True:
            yield self.value()
            if self.peek() != ",":
                self._take("]")
                return
            self._take(",")

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next. Whoever is given one reads its value, before the next one."""
        self._take("{")
        if self.peek() == "}":
            self._take("}")
            return
        while True:
            if self.peek() != '"':
                raise self._malformed("expecting a key in double quotes", self._at)
            key = str(self.value())
            self._take(":")
            yield key
            if self.peek() != ",":
                self._take("}")
                return
            self._take(",")

    def value(self) -> Any:  # noqa: ANN401 - any JSON
        """The value that comes next, whole."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self._malformed(error.msg, error.pos) from None
            except RecursionError:
                raise self._error("nested too deeply", self._at) from None
            except ValueError as error:
                raise self._error(str(error), self._at) from None
            else:
                if end < len(self._text) or not self._more():  # else a number may go on
                    self._at = end
                    return value

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self.peek():
            raise self._malformed("Extra data", self._at)

    def _take(self, expected: str) -> None:
        if self.peek() != expected:
            raise self._malformed(f"expecting {expected!r}", self._at)
        self._at += 1

    def _more(self) -> bool:
        done, rest = self._text[: self._at], self._text[self._at :]
        self._line += done.count("\n")
        self._column = len(done) - done.rfind("\n") - 1 if "\n" in done else self._column + len(done)
        self._text, self._at = rest, 0
        data = self._file.read(max(_PIECE, len(rest)))  # twice as much each time, for a value that is long
        try:
            self._text += self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line = self._line + rest.count("\n") + error.object[: error.start].count(b"\n")
            raise MalformedText(line, "not UTF-8; save the file as UTF-8") from None
        return bool(data)

    def _malformed(self, reason: str, at: int) -> MalformedText:
        before = self._text[:at]
        column = len(before) - before.rfind("\n") if "\n" in before else self._column + len(before) + 1
        return self._error(f"malformed JSON, {reason} at column {column}", at)

    def _error(self, reason: str, at: int) -> MalformedText:
        return MalformedText(self._line + self._text.count("\n", 0, at), f"{reason}; correct the file")
