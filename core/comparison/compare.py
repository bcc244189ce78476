"""Variants side by side: means with intervals, and paired differences."""

from collections.abc import Sequence

import pandas as pd

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.comparison.costs import costs
from hoptimizer.comparison.differing import differing
from hoptimizer.comparison.grouping import grouped, groups_of
from hoptimizer.comparison.matching import Answered, matched
from hoptimizer.comparison.meaning import alike, is_own, needs, other_gold
from hoptimizer.comparison.result import Compared, Comparison
from hoptimizer.eval import statistics
from hoptimizer.eval.display.format import COLUMNS
from hoptimizer.eval.metrics import METRICS, take_for_shares
from hoptimizer.tracking.naming import CORPUS, SHARES, UNANSWERED
from hoptimizer.tracking.tracker import Tracker


def compare_variants(
    tracker: Tracker,
    run_ids: Sequence[str] = (),
    *,
    split: str = "dev",
    metric: str = "f1",
    seed: int = 0,
    by: str | None = None,
) -> Comparison:
    """Lay variants side by side.

    Args:
        tracker: the store that holds the runs.
        run_ids: what to compare, the baseline first, by the questions that all of them answered; none means every run
            of the experiment that has scores of the metric and answered the questions of the latest such run, the
            oldest as the baseline, without those that another compile started from.
        split: the questions' split.
        metric: what the paired differences are of.
        seed: of the bootstrap.
        by: ``type`` or ``hops``, by which the metric is also compared in groups of questions; ``None`` for no groups.

    Raises:
        UserError: a run did not answer the split, the runs have no question in common, or one lacks the metric; or
            the questions have nothing to be grouped by.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import Tracker, compare_variants, evaluate_variant, load_config
        >>> words = ["data=atlas", "data.dev=10", "program.name=rag", "program.reader=none", "retriever.name=bm25"]
        >>> store = f"sqlite:///{Path.cwd()}/mlflow.db"
        >>> configs = [load_config(None, [*words, f"retriever.k={k}", f"tracking.uri={store}"]) for k in (1, 8)]
        >>> runs = [evaluate_variant(config).run_id for config in configs]
        >>> compared = compare_variants(Tracker(store, "atlas"), runs, metric="recall")
        >>> compared.differences[0].difference > 0
        True
    """
    answered, notes = matched(tracker, run_ids, split, metric)
    tables = [one.table for one in answered]
    numeric = {name for table in tables for name in table.select_dtypes("number")} - {"hops"}
    wanted = [*COLUMNS, *({metric} & numeric - set(COLUMNS))]  # a metric of the user's is no column by default
    columns = [column for column in wanted if alike(column, answered)]
    column = grouped(by, tables) if by else None
    shares = {name for one in answered for name in one.run.data.tags.get(SHARES, "").split(",") if name}
    take_for_shares(name for name in shares if is_own(name))
    settings = differing([one.run for one in answered])
    variants = [_compared(tracker, one, columns, own, seed) for one, own in zip(answered, settings, strict=True)]
    shared = [column for column in columns if all(column in variant.scores for variant in variants)]
    if metric not in shared:
        why = f" ({needs(metric)})" if metric in wanted and needs(metric) else ""
        unshown = [name for name in METRICS if name not in COLUMNS and all(name in table for table in tables)]
        near = nearest(metric, dict.fromkeys([*shared, *unshown]))
        raise UserError(f"metric: the runs have no scores of {metric!r} in common{why}; {near}")
    baseline = variants[0].scores[metric]
    return Comparison(
        split=split,
        metric=metric,
        variants=variants,
        differences=[
            statistics.compare(*statistics.known_pairs(baseline, other.scores[metric]), seed) for other in variants[1:]
        ],
        by=by,
        groups=groups_of(variants, metric, column, seed) if column is not None else [],
        notes=notes + _other_passages(answered) + _other_gold(wanted, answered),
        questions=[str(question) for question in tables[0]["question"]],
        gold=[_texts(answers) for answers in tables[0].get("answers", [None] * len(tables[0]))],
        seed=seed,
    )


def _other_passages(answered: Sequence[Answered]) -> list[str]:
    """That runs searched different passages, which no setting says where a data set's folder was made anew."""
    digests = {one.run.data.tags.get(CORPUS) for one in answered if "retriever.name" in one.run.data.params}
    return ["not all of these runs searched the same passages"] if len(digests - {None}) > 1 else []


def _other_gold(columns: Sequence[str], answered: Sequence[Answered]) -> list[str]:
    """That questions were scored by different supporting passages, and what is left out for that."""
    left_out = [column for column in columns if other_gold(column, answered)]
    told = "the supporting passages of these questions are not the same in all runs"
    return [f"{' and '.join(left_out)} left out: {told}"] if left_out else []


def _texts(answers: object) -> list[str]:
    return [str(answer) for answer in answers] if isinstance(answers, list) else []


def _compared(
    tracker: Tracker, answered: Answered, columns: Sequence[str], settings: dict[str, str], seed: int
) -> Compared:
    run, table = answered.run, answered.table
    return Compared(
        run_id=run.info.run_id,
        name=run.info.run_name,
        compiled=tracker.is_compiled(run),
        estimates=estimates(table, columns, seed),
        scores={column: [float(value) for value in table[column]] for column in columns if column in table},
        ids=[str(id) for id in table["id"]],
        unanswered=int(table[UNANSWERED].notna().sum()) if UNANSWERED in table else 0,
        settings=settings,
        costs=costs(table),
        answers=[str(answer) for answer in table["answer"]] if "answer" in table else [],
    )


def estimates(table: pd.DataFrame, columns: Sequence[str], seed: int) -> dict[str, statistics.Estimate]:
    """The mean and the interval of each score that a run's predictions have.

    Args:
        table: the predictions, one row for each question.
        columns: the scores wanted; those that the table lacks are left out.
        seed: of the bootstrap.
    """
    known = {column: [float(value) for value in table[column].dropna()] for column in columns if column in table}
    return {column: statistics.mean(values, seed) for column, values in known.items() if values}
