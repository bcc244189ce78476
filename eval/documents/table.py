"""Questions and answers from a user's table, whatever its columns are called."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from pydantic import ValidationError

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.strict import read_json
from hoptimizer.eval.datasets.question import Question, id_of
from hoptimizer.eval.datasets.rows import DataRow, OnProblem

QUESTION_COLUMNS = ("question", "questions", "query", "q", "prompt")
ANSWER_COLUMNS = ("answer", "answers", "gold", "a", "response", "target")
# Rows by which the columns are known: an empty cell is none.
_FIRST = 100


def read_table(
    rows: Iterator[DataRow], name: str, report: OnProblem, question: str | None = None, answer: str | None = None
) -> list[Question]:
    """The questions of a table. Rows with the same question are one, with the answers of all.

    Args:
        rows: of the table.
        name: what messages call it.
        report: called with what is wrong with a row, which is then left out.
        question: the column of questions; by default the first one with a usual name.
        answer: the column of answers: a text or a number is one answer, a list (in CSV as JSON text) has several.

    Raises:
        UserError: a column is not there, or there are no questions.

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
    right = _column(name, columns, answer, ANSWER_COLUMNS, "answer")
    answers: dict[str, list[str]] = {}
    for row in chain(first, rows):
        text = row.fields.get(asked)
        if not isinstance(text, str) or not text.strip():
            report(f"{row.place}: {asked!r} must be a question, but is {text!r:.60}; write one or remove the row")
            continue
        given = _answers(row.fields.get(right))
        if not given:
            shown = row.fields.get(right)
            report(f"{row.place}: {right!r} must be an answer, but is {shown!r:.60}; write one or remove the row")
            continue
        try:
            made = _question(text, given)
        except ValidationError as error:  # halves of characters
            report(f"{row.place}: {error.errors()[0]['msg']}; correct it")
            continue
        answers.setdefault(made.question, []).extend(made.answers)
    if not answers:
        raise UserError(f"{name}: no questions with an answer in it; give another file")
    return [_question(text, given) for text, given in answers.items()]


def _question(text: str, answers: Sequence[str]) -> Question:
    text = " ".join(text.split())
    return Question(id=id_of(text), question=text, answers=list(dict.fromkeys(answers)))


def _column(name: str, columns: Sequence[str], given: str | None, usual: Sequence[str], what: str) -> str:
    if given is not None:
        if given not in columns:
            raise UserError(f"{name}: no column {given!r}; {nearest(given, columns)}")
        return given
    folded = {column.strip().casefold(): column for column in reversed(columns)}
    if found := next((folded[one] for one in usual if one in folded), None):
        return found
    shown = ", ".join(repr(column) for column in columns[:20])
    raise UserError(f"{name}: no column {what!r} among {shown}; name the one to take with --{what}-column")


def _answers(value: Any) -> list[str]:  # noqa: ANN401 - whatever a cell holds
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = read_json(value)
        except ValueError:
            return [value.strip()]  # a text that begins with a bracket
    if isinstance(value, list):
        return [text for one in value if not isinstance(one, list) for text in _answers(one)]
    if isinstance(value, bool):
        return ["yes"] if value else ["no"]
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with gaps
        value = int(value)
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    return [text] if text else []
