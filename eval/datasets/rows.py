"""Rows of data files, each with its place in the file, and one-line messages about what is wrong with them."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hoptimizer.common.errors import UserError, closest
from hoptimizer.common.paths import is_within
from hoptimizer.common.stream import DAMAGED, JsonStream, MalformedText, kind, opened, separator, utf8_lines
from hoptimizer.common.strict import checked, read_json

Model = TypeVar("Model", bound=BaseModel)

# Called with one line about a problem. Reading stops where it raises, and goes on where it returns.
OnProblem = Callable[[str], None]
# Columns that hold lists: a CSV cell carries them as JSON text.
LIST_COLUMNS = ("answers", "passages", "hops")

# How a file begins that is one object with its rows under a key.
_UNDER = r'\{{[^\[{{]*"{}"\s*:\s*\['
_SHORT = 4  # letters
csv.field_size_limit(1 << 24)  # characters of a cell, which may be a whole page
# Rows of a parquet file that are in memory at once.
_BATCH = 1024

_EXPECTED = {
    "string_type": "a string",
    "string_unicode": "valid Unicode text",
    "string_too_short": "some text",
    "list_type": 'a list such as ["…"]',
    "tuple_type": "a list",
    "too_short": "at least one entry",
    "too_long": "fewer entries",
    "model_type": "an object with named fields",
    "dict_type": "an object with named fields",
    "int_type": "a whole number",
    "bool_type": "true or false",
}


@dataclass(frozen=True, slots=True)
class DataRow:
    """A row of a data file.

    Attributes:
        place: where it stands, such as ``train.jsonl:3``.
        fields: its fields by name, without those that are null or empty.
    """

    place: str
    fields: dict[str, Any]


def fail(message: str) -> None:
    """The :data:`OnProblem` that stops at the first problem.

    Raises:
        UserError: always, with ``message``.
    """
    raise UserError(message)


def own_file(path: Path, report: OnProblem = fail) -> Path | None:
    """A file of a folder that may be anybody's; ``None`` where it is a link that leads out of the folder.

    Args:
        path: the file.
        report: called with the problem; by default it is raised.

    Raises:
        UserError: it leads out, and ``report`` is the default.
    """
    if is_within(path.parent, path.name):
        return path
    report(f"{path}: a link that leads out of {path.parent}; put the file itself there")
    return None


def read_rows(
    path: Path,
    report: OnProblem = fail,
    *,
    under: str | None = None,
    damaged: OnProblem | None = None,
    lists: Sequence[str] = LIST_COLUMNS,
) -> Iterator[DataRow]:
    """The rows of a JSON, CSV, TSV or parquet file, of any size; ``.gz``, ``.bz2`` and ``.xz`` are decompressed.

    JSON may be one array or one object per line; a byte order mark, CRLF, blank lines and empty rows do no harm. Rows
    that can't be read are reported and left out.

    Args:
        path: the file; its suffix says what it is.
        report: called with what is wrong with a row.
        under: the key that has the rows, where a JSON file may be one object.
        damaged: called where no more of the file can be read; ``report`` by default.
        lists: columns of tables that must hold lists, as JSON text where they are texts.
    """
    damaged = damaged or report
    try:
        if kind(path) in (".csv", ".tsv"):
            yield from _read_csv(path, report, damaged, lists)
        elif kind(path) == ".parquet":
            yield from _read_parquet(path, report, damaged, lists)
        elif (start := _start(path)).startswith("[") or (under and re.match(_UNDER.format(re.escape(under)), start)):
            yield from _read_json(path, report, under)
        else:
            yield from _read_lines(path, report)
    except MalformedText as error:
        damaged(f"{path}:{error.line}: {error}")
    except (OSError, *DAMAGED) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        damaged(f"{path}: cannot be read ({reason}); check the path and its permissions, or copy the file again")


def parse(model: type[Model], row: DataRow, report: OnProblem) -> Model | None:
    """The row as a ``model``; ``None`` where it isn't one, after each reason was reported."""
    try:
        return model.model_validate(row.fields)
    except ValidationError as error:
        for line in _lines(error, row):
            report(line)
        return None


def is_new(id: str, row: DataRow, ids: dict[str, str], report: OnProblem) -> bool:
    """Whether no row before this one has its id; where one has, that was reported.

    Args:
        id: the row's.
        row: the row.
        ids: the places of the ids so far, which this one joins.
        report: called with the problem.
    """
    if first := ids.get(id):
        report(f"{row.place}: id {id!r} stands at {first} already; make ids unique")
        return False
    ids[id] = row.place
    return True


def require(model: type[Model], row: DataRow) -> Model:
    """The row as a ``model``.

    Raises:
        UserError: it isn't one; the message gives the first reason.
    """
    try:
        return model.model_validate(row.fields)
    except ValidationError as error:
        raise UserError(next(_lines(error, row))) from None


def _lines(error: ValidationError, row: DataRow) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        yield f"{row.place}: {_describe(detail)}"


def _describe(detail: ErrorDetails) -> str:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    given = f"{detail['input']!r:.60}"
    if detail["type"] == "missing":
        return f"{key!r} is missing; add it"
    if detail["type"] in _EXPECTED:
        return f"{key!r} must be {_EXPECTED[detail['type']]}, but is {given}; correct it"
    return detail["msg"].removeprefix("Value error, ") + (f" ({key!r} is {given})" if key else "")


def misspelt(model: type[BaseModel], row: DataRow) -> str | None:
    """A line about a field that looks like a misspelt one; other unknown fields are the user's own."""
    for name in row.fields:
        # Short names resemble many words: "domain" is no misspelt "main".
        absent = [n for n in model.model_fields if n not in row.fields and (len(n) > _SHORT or len(n) == len(name))]
        if name not in model.model_fields and (near := closest(name, absent, score=80)):
            return f"{row.place}: unknown field {name!r}: rename it to {near!r} or remove it"
    return None


def _row(place: str, fields: object, report: OnProblem) -> DataRow | None:
    if not isinstance(fields, dict):
        report(f"{place}: expected an object with named fields, found {fields!r:.60}; write one object per row")
        return None
    return DataRow(place, {key: value for key, value in fields.items() if value is not None and value != ""})


def _start(path: Path) -> str:
    """The first characters of a text, without spaces before them."""
    with opened(path) as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip()


def _read_json(path: Path, report: OnProblem, under: str | None) -> Iterator[DataRow]:
    with opened(path) as file:
        text = JsonStream(file)
        for number, item in enumerate(_items(text, under), 1):
            place = f"{path}, item {number}"
            try:
                fields = checked(item, texts=False)
            except ValueError as error:
                report(f"{place}: {error}; correct it")
                continue
            if row := _row(place, fields, report):
                yield row


def _items(text: JsonStream, under: str | None) -> Iterator[Any]:
    if text.peek() == "[":
        yield from text.array()
    else:
        for key in text.members():
            if key == under:
                yield from text.array()
            else:
                text.value()
    text.end()


def _read_lines(path: Path, report: OnProblem) -> Iterator[DataRow]:
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            place = f"{path}:{number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                fields = checked(read_json(text), texts=False) if text else None
            except UnicodeDecodeError:
                report(f"{place}: not UTF-8; save the file as UTF-8")
                continue
            except json.JSONDecodeError as error:
                report(f"{place}: malformed JSON, {error.msg} at column {error.colno}; write one object per line")
                continue
            except ValueError as error:
                report(f"{place}: {error}; correct it")
                continue
            if text and (row := _row(place, fields, report)):
                yield row


def _read_csv(path: Path, report: OnProblem, damaged: OnProblem, lists: Sequence[str]) -> Iterator[DataRow]:
    header: list[str] = []
    line = 1  # where the row starts; a quoted cell may span several
    with opened(path) as file:
        reader = csv.reader(utf8_lines(file), strict=True, delimiter=separator(path))
        try:
            for cells in reader:
                place = f"{path}:{line}"
                line = reader.line_num + 1
                if not header or not any(cells):  # Excel keeps rows that were emptied
                    is_header = any(cells) and cells[0].casefold() != "sep="  # the separator, before the header
                    header = header or (cells if is_header else [])
                    if twice := next((name for name in header if header.count(name) > 1), None):
                        damaged(f"{place}: the column {twice!r} is there twice; rename one of them")
                        return
                elif len(cells) > len(header):
                    report(f"{place}: more cells than the header has columns; quote cells that hold commas")
                else:
                    row = _row(place, dict(zip(header, cells, strict=False)), report)
                    if row and _decode_lists(row, report, lists):
                        yield row
        except csv.Error as error:
            damaged(f"{path}:{line}: malformed CSV, {error}; correct the file")


def _read_parquet(path: Path, report: OnProblem, damaged: OnProblem, lists: Sequence[str]) -> Iterator[DataRow]:
    from pyarrow import ArrowException, parquet  # imported here: a fraction of a second that the others do not need

    try:
        # By pyarrow alone: pandas would take what the file says of its columns for granted.
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                damaged(f"{path}: the column {twice!r} is there twice; rename one of them")
                return
            rows = (values for batch in file.iter_batches(_BATCH) for values in batch.to_pylist())
            for number, values in enumerate(rows, 1):
                fields = {key: value for key, value in values.items() if value == value}
                if (row := _row(f"{path}, row {number}", fields, report)) and _decode_lists(row, report, lists):
                    yield row
    except (ArrowException, ValueError) as error:  # no parquet, or texts that are no UTF-8
        if isinstance(error, UserError):
            raise
        damaged(f"{path}: cannot be read as parquet ({' '.join(str(error).split())}); write it again")


def _decode_lists(row: DataRow, report: OnProblem, lists: Sequence[str]) -> bool:
    for key in lists:
        text = row.fields.get(key)
        if isinstance(text, str):
            try:
                row.fields[key] = checked(read_json(text), texts=False)
            except ValueError:
                report(f'{row.place}: {key!r} must be JSON text such as ["…"], but is {text!r:.60}; correct it')
                return False
    return True
