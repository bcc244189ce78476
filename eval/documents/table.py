"""Questions and answers from a user's table, whatever its columns are called."""

import ast
import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from pydantic import ValidationError

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.strict import read_json
from hoptimizer.eval.datasets.question import Question, id_of
from hoptimizer.eval.datasets.rows import DataRow, OnProblem

QUESTION_COLUMNS = ("question", "questions", "query", "q", "prompt")
ANSWER_COLUMNS = ("answer", "answers", "gold", "a", "response", "target")
# How a list or a mapping of texts begins, and what stands between the texts of NumPy's.
_TEXTS = re.compile(r"[\[{]\s*['\"]")
_NUMPYS = re.compile(r"['\"]\s+['\"]")
# Rows by which the columns are known: an empty cell is none.
_FIRST = 100


class NoAnswersError(UserError):
    """A table of questions has no answers, as the published test splits of many data sets."""


def read_table(
    rows: Iterator[DataRow], name: str, report: OnProblem, question: str | None = None, answer: str | None = None
) -> list[Question]:
    """The questions of a table. Rows with the same question are one, with the answers of all.

    Args:
        rows: of the table.
        name: what messages call it.
        report: called with what is wrong with a row, which is then left out.
        question: the column of questions; by default the first one with a usual name.
        answer: the column of answers: a text, a number or a day is one answer, a list (in CSV as JSON or Python writes
            it) has several, and so has SQuAD's mapping with a list ``text``, in CSV likewise.

    Raises:
        NoAnswersError: there are questions, but no column of answers.
        UserError: another column is not there, or there are no questions.

    Example:
        >>> from hoptimizer.eval.datasets.rows import DataRow, fail
        >>> from hoptimizer.eval.documents.table import read_table
        >>> rows = iter([DataRow("a.csv:2", {"Question": "When was the Alma built?", "Answer": "1998"})])
        >>> read_table(rows, "a.csv", fail)[0].answers
        ['1998']
    """
    first = list(islice(rows, _FIRST))
    columns = list(dict.fromkeys(column for row in first for column in row.fields))
    if not columns:
        raise UserError(f"{name}: no questions in it; give a table with a column of questions and one of answers")
    asked = _column(name, columns, question, QUESTION_COLUMNS, "question")
    try:
        right = _column(name, columns, answer, ANSWER_COLUMNS, "answer")
    except UserError as error:
        raise NoAnswersError(str(error)) from None
    found: dict[str, Question] = {}
    for row in chain(first, rows):
        text = row.fields.get(asked)
        if not isinstance(text, str) or not text.strip():
            report(f"{row.place}: {asked!r} must be a question, but is {text!r:.60}; write one or remove the row")
            continue
        shown = row.fields.get(right)
        try:
            given = _answers(shown)
        except ValueError as error:
            report(f"{row.place}: {right!r} {error}, but is {shown!r:.60}; correct it")
            continue
        if not given:
            report(f"{row.place}: {right!r} must be an answer, but is {shown!r:.60}; write one or remove the row")
            continue
        try:
            made = _question(text, given)
        except ValidationError as error:  # halves of characters
            report(f"{row.place}: {error.errors()[0]['msg']}; correct it")
            continue
        known = found.setdefault(made.question, made)
        if known is not made:
            known.answers.extend(made.answers)
    if not found:
        raise UserError(f"{name}: no questions with an answer in it; give another file")
    for one in found.values():
        one.answers[:] = dict.fromkeys(one.answers)
    return list(found.values())


def _question(text: str, answers: list[str]) -> Question:
    text = " ".join(text.split())
    return Question(id=id_of(text), question=text, answers=answers)


def _column(name: str, columns: Sequence[str], given: str | None, usual: Sequence[str], what: str) -> str:
    if given is not None:
        if given not in columns:
            raise UserError(f"{name}: no column {given!r}; {nearest(given, columns)}")
        return given
    folded = {column.strip().casefold(): column for column in reversed(columns)}
    if found := next((folded[one] for one in usual if one in folded), None):
        return found
    shown = ", ".join(repr(column) for column in columns[:20])
    filled = f"among those with something in them, {shown}"
    raise UserError(f"{name}: no column {what!r} {filled}; name the one to take with --{what}-column")


def _answers(value: Any) -> list[str]:  # noqa: ANN401 - whatever a cell holds
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        value = _decoded(value.strip())
    if isinstance(value, dict) and "text" in value:  # as SQuAD has them, with the places where they start
        value = value["text"]
    if not isinstance(value, list):
        return _answer(value)
    if any(isinstance(one, list | dict) for one in value):
        raise ValueError("must be a list of texts")
    return [text for one in value for text in _answer(one)]


def _decoded(text: str) -> Any:  # noqa: ANN401 - whatever it says
    """What a text in brackets says, as JSON or as pandas writes lists and mappings of Python; or the text itself.

    Raises:
        ValueError: it begins as a list or a mapping of texts, and goes on otherwise.
    """
    try:
        return read_json(text)
    except ValueError:
        if not _TEXTS.match(text):
            return text
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        # Python takes texts without a comma between them, as NumPy writes them, for one.
        if not _NUMPYS.search(text) and isinstance(value := ast.literal_eval(text), list | dict):
            return value
    raise ValueError("must be a list with commas between its texts")


def _answer(value: Any) -> list[str]:  # noqa: ANN401 - whatever a cell holds
    if isinstance(value, bool):
        return ["yes"] if value else ["no"]
    if isinstance(value, Decimal) or type(value) is date:  # of a database
        return [str(value)]
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with gaps
        value = int(value)
    text = str(value).strip() if isinstance(value, str | int) or (isinstance(value, float) and value == value) else ""
    return [text] if text else []
