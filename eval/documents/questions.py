"""The questions of a user's tables by split: from files, or from a data set of the Hugging Face hub."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeGuard

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded
from hoptimizer.eval.datasets import hub
from hoptimizer.eval.datasets.folder import SPLITS
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.rows import DataRow, OnProblem, fail, read_rows
from hoptimizer.eval.documents.table import NoAnswersError, read_table
from hoptimizer.eval.splits import check_splits, divided, named_splits

Rows = Callable[[OnProblem], Iterator[DataRow]]


def read_questions(
    table: Path | str | Mapping[str, Path | str],
    hub_splits: Path | str | Mapping[str, Path | str] | None,
    report: OnProblem,
    question: str | None,
    answer: str | None,
    sizes: Mapping[str, float],
    seed: int,
) -> tuple[dict[str, list[Question]], list[str]]:
    """The questions by split, and the splits on the hub that were left out.

    Args:
        table: one file, files by split, or a data set of the hub, as of
            :func:`~hoptimizer.eval.documents.importing.import_documents`; so are the other arguments.
        hub_splits: of a data set on the hub.
        report: called with what is wrong with a row, which is then left out.
        question: the column of questions; ``None`` for the first one with a usual name.
        answer: likewise, of answers.
        sizes: of the splits.
        seed: of the division.

    Raises:
        UserError: a file is missing or bad, or a column or a split is not there.
    """
    splits: dict[str, list[Question]] = {}
    places: dict[str, str] = {}
    unanswered: NoAnswersError | None = None
    sources, splits_left_out = _sources(table, hub_splits)
    check_splits([named for named, _, _ in sources], sizes)
    for named, name, rows in sources:
        found: list[Question] = []
        try:
            questions = read_table(rows(report), name, report, question, answer)
        except NoAnswersError as error:
            if not _on_hub(table):
                raise
            unanswered = unanswered or error
            splits_left_out += named
            continue
        for one in questions:
            if one.id in places:
                report(f"{name}: {one.question!r:.80} stands in {places[one.id]} too; keep it in one of the splits")
                continue
            places[one.id] = name
            found.append(one)
        if not found:
            raise UserError(f"{name}: no question in it that stands in no other split; give another file")
        splits |= divided(found, named, sizes, seed)
    if unanswered and not splits:
        raise unanswered
    return {split: splits[split] for split in SPLITS if split in splits}, splits_left_out


def _on_hub(table: object) -> TypeGuard[str]:
    return isinstance(table, str) and table.startswith(hub.PREFIX)


def _sources(
    table: Path | str | Mapping[str, Path | str], hub_splits: Path | str | Mapping[str, Path | str] | None
) -> tuple[list[tuple[tuple[str, ...], str, Rows]], list[str]]:
    """The splits that a source is divided among (none for one that is alone), its name, and what gives its rows; and
    the splits on the hub that are none of ours.
    """
    if _on_hub(table):
        found = hub.open_table(table)
        if hub_splits:
            named = named_splits(table, found, hub_splits)
            return [(ours, f"{table}, {split}", found[split]) for ours, split in named], []
        if len(found) == 1:
            return [((), table, rows) for rows in found.values()], []
        known = hub.by_our_names(table, found)
        return [((ours,), f"{table}, {ours}", found[split]) for ours, split in known.items()], hub.left_out(found)
    if not isinstance(table, Mapping):
        return [((), str(table), _rows(table))], []
    return [(tuple(key.split("+")), str(path), _rows(path)) for key, path in table.items()], []


def _rows(file: Path | str) -> Rows:
    return partial(read_rows, expanded(file), damaged=fail, lists=())
