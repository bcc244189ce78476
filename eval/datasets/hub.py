"""Data sets of the Hugging Face hub, their rows in the published formats."""

import contextlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hoptimizer.common.errors import UserError, as_line
from hoptimizer.common.paths import expanded
from hoptimizer.eval.datasets.rows import DataRow, OnProblem

PREFIX = "hub:"

# Our names of the hub's splits.
_SPLITS: Mapping[str, str] = {"train": "train", "validation": "dev", "dev": "dev", "test": "test"}

_SECONDS = 20
# What a column of class labels says, in the order of its numbers from -1 on.
_YES_NO = {-1: "NONE", 0: "NO", 1: "YES"}

Row = dict[str, Any]


@dataclass(frozen=True)
class HubColumns:
    """The columns of a data set on the hub, and the published format that they are turned into.

    Attributes:
        format: the format's name.
        names: columns that tell it from the others.
        row: makes an item of the published format of a row.
        example: a data set with these columns.
        answer: what the column ``answer`` holds: ``bool``, or ``list``; anything by default.
    """

    format: str
    names: frozenset[str]
    row: Callable[[Row], Row]
    example: str
    answer: str = ""


@dataclass(frozen=True)
class HubSet:
    """A data set of the hub.

    Attributes:
        name: as the user named it.
        format: the published format of its rows.
        splits: its splits by their names on the hub; each gives its rows, in the published format.
    """

    name: str
    format: str
    splits: Mapping[str, Callable[[OnProblem], Iterator[DataRow]]]


def open_hub(name: str) -> HubSet:
    """Find a data set on the hub, or in a folder that ``datasets`` can read.

    Args:
        name: ``hub:OWNER/NAME``, ``hub:OWNER/NAME:CONFIG`` or ``hub:FOLDER``.

    Raises:
        UserError: there is none, the hub is out of reach, or its columns are none that are known.
    """
    loaded = _load(name)
    columns = _known(loaded)
    if columns is None:
        examples = ", ".join(known.example for known in COLUMNS)
        given = ", ".join(next(iter(loaded.values())).column_names)
        raise UserError(f"{name}: its columns ({given}) are none that are known; give a data set such as {examples}")
    splits = {split: _rows_of(f"{name}, {split}", data, columns) for split, data in loaded.items()}
    fullwiki = columns.format == "hotpotqa" and name.endswith(":fullwiki")
    return HubSet(name, "fullwiki" if fullwiki else columns.format, splits)


def is_published(name: str) -> bool:
    """Whether a data set on the hub has the columns of a published one; any other is a table.

    Args:
        name: as of :func:`open_hub`.

    Raises:
        UserError: there is none, or the hub is out of reach.
    """
    return _known(_load(name)) is not None


def open_table(name: str) -> Mapping[str, Callable[[OnProblem], Iterator[DataRow]]]:
    """The splits of a data set on the hub by their names there, whatever its columns are; each gives its rows.

    Args:
        name: as of :func:`open_hub`.

    Raises:
        UserError: there is none, or the hub is out of reach.
    """
    as_it_is = HubColumns("table", frozenset(), dict, "")
    return {split: _rows_of(f"{name}, {split}", data, as_it_is) for split, data in _load(name).items()}


def by_our_names(name: str, splits: Collection[str]) -> dict[str, str]:
    """A data set's splits on the hub by our names, where it has several.

    Args:
        name: of the data set, for messages.
        splits: what the hub calls them.

    Raises:
        UserError: none of them is known, or two are one of ours.

    Example:
        >>> from hoptimizer.eval.datasets.hub import by_our_names
        >>> by_our_names("hub:owner/name", ["train", "validation"])
        {'train': 'train', 'dev': 'validation'}
    """
    ours: dict[str, str] = {}
    for split in (split for split in splits if split in _SPLITS):
        if (our := _SPLITS[split]) in ours:
            raise UserError(f"{name}: {ours[our]} and {split} would both be {our}; keep one of them")
        ours[our] = split
    if not ours:
        raise UserError(f"{name}: expected splits among {', '.join(_SPLITS)}, got {', '.join(splits)}")
    return ours


def left_out(splits: Collection[str]) -> list[str]:
    """Those of a data set's splits on the hub that :func:`by_our_names` passes over.

    Args:
        splits: what the hub calls them.
    """
    return [split for split in splits if split not in _SPLITS]


def _known(loaded: Any) -> HubColumns | None:  # noqa: ANN401 - a DatasetDict
    """The published format that a data set's columns are those of."""
    features = next(iter(loaded.values())).features
    answer = getattr(features.get("answer"), "dtype", "list")
    return next((one for one in COLUMNS if one.names <= set(features) and one.answer in ("", answer)), None)


def _rows_of(place: str, data: Any, columns: HubColumns) -> Callable[[OnProblem], Iterator[DataRow]]:  # noqa: ANN401 - a Dataset
    def rows(_: OnProblem) -> Iterator[DataRow]:
        for number, values in enumerate(data, 1):
            item = _item(values, columns)
            known = {key: value for key, value in item.items() if value is not None and value == value}
            yield DataRow(f"{place} row {number}", {key: value for key, value in known.items() if value != ""})

    return rows


def as_published(row: DataRow) -> DataRow:
    """A row of one of the hub's files as the published format has it; one with columns that are not known, itself.

    Args:
        row: of the file.
    """
    known = next((columns for columns in COLUMNS if columns.names <= row.fields.keys()), None)
    return DataRow(row.place, _item(row.fields, known)) if known else row


def _item(values: Row, columns: HubColumns) -> Row:
    # The format says what is wrong with a row that can't be turned into an item.
    with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
        return columns.row(values)
    return values


def _load(name: str) -> Any:  # noqa: ANN401 - a DatasetDict
    import datasets  # imported here: a second that files do not need
    import httpx
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    path, _, config = name.removeprefix(PREFIX).partition(":")
    local = expanded(path)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        if local.is_dir():
            return datasets.load_dataset(str(local), config or None)
        if not constants.HF_HUB_OFFLINE:
            HfApi().dataset_info(path, timeout=_SECONDS)  # loading would try for half a minute
        return datasets.load_dataset(path, config or None)
    except HFValidationError as error:
        raise UserError(f"hub:{path}: no folder and no name of a data set; give hub:OWNER/NAME") from error
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        if local.is_dir():
            raise UserError(f"hub:{path}: no data that can be read in the folder ({as_line(str(error))})") from error
        raise UserError(
            f"hub:{path}: the hub did not give it ({type(error).__name__}); check the name and the network, set "
            "HF_HUB_OFFLINE=1 if it was downloaded before, or import its files"
        ) from error
    except (ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"hub:{path}: cannot be loaded ({as_line(str(error))}); check the name and its config"
        ) from error


def _lists(value: Any, *names: str) -> Any:  # noqa: ANN401 - any column
    """Entries of some fields each, which the hub keeps as one list a field, or as JSON text."""
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        return value
    return [list(entry) for entry in zip(*(value[name] for name in names), strict=True)]


def _hotpot(row: Row) -> Row:
    return {
        **row,
        "_id": row.get("_id") or row["id"],
        "context": _lists(row["context"], "title", "sentences"),
        "supporting_facts": _lists(row["supporting_facts"], "title", "sent_id"),
        "evidences": _lists(row.get("evidences"), "fact", "relation", "entity") or [],
    }


def _listed(value: Any) -> list[Row]:  # noqa: ANN401 - any column
    """Objects, which the hub keeps as an object of lists."""
    if not isinstance(value, Mapping):
        return list(value)
    return [dict(zip(value, entries, strict=True)) for entries in zip(*value.values(), strict=True)]


def _natural_questions(row: Row) -> Row:
    document, annotations = row["document"], _listed(row["annotations"])
    return {
        "example_id": row["id"],
        "question_text": row["question"]["text"],
        "document_title": document["title"],
        "document_html": document["html"],
        "document_tokens": [{**token, "html_token": token["is_html"]} for token in _listed(document["tokens"])],
        "long_answer_candidates": _listed(row["long_answer_candidates"]),
        "annotations": [
            {
                "long_answer": entry["long_answer"],
                "short_answers": _listed(entry["short_answers"]),
                "yes_no_answer": _YES_NO.get(entry["yes_no_answer"], entry["yes_no_answer"]),
            }
            for entry in annotations
        ],
    }


def _trivia(row: Row) -> Row:
    answer = row["answer"]
    pages = [
        {"Title": page["title"], "text": page.get("wiki_context") or ""}
        for page in _listed(row.get("entity_pages", []))
    ]
    found = [
        {"Title": page["title"], "text": page.get("search_context") or ""}
        for page in _listed(row.get("search_results", []))
    ]
    return {
        "QuestionId": row["question_id"],
        "Question": row["question"],
        "Answer": {"Value": answer["value"], "Aliases": answer["aliases"]},
        "EntityPages": pages,
        "SearchResults": found,
    }


def _strategy(row: Row) -> Row:
    facts = row.get("facts")
    return {**row, "facts": [facts] if isinstance(facts, str) and facts else facts or []}


COLUMNS: tuple[HubColumns, ...] = (
    HubColumns(
        "nq",
        frozenset({"id", "document", "question", "long_answer_candidates", "annotations"}),
        _natural_questions,
        "google-research-datasets/natural_questions",
    ),
    HubColumns(
        "triviaqa", frozenset({"question_id", "question", "answer", "entity_pages"}), _trivia, "mandarjoshi/trivia_qa"
    ),
    HubColumns(
        "2wikimultihopqa",
        frozenset({"question", "answer", "context", "supporting_facts", "evidences"}),
        _hotpot,
        "framolfese/2WikiMultihopQA",
    ),
    HubColumns(
        "hotpotqa", frozenset({"question", "answer", "context", "supporting_facts"}), _hotpot, "hotpotqa/hotpot_qa"
    ),
    HubColumns("musique", frozenset({"question", "paragraphs", "question_decomposition"}), dict, "dgslibisey/MuSiQue"),
    HubColumns("strategyqa", frozenset({"qid", "question", "answer"}), _strategy, "ChilleD/StrategyQA", answer="bool"),
    HubColumns("nq", frozenset({"question", "answer"}), dict, "google-research-datasets/nq_open", answer="list"),
)
"""The data sets of the hub that are known by their columns; the first that fits counts."""
