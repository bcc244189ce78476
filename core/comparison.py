"""Variants side by side: means with intervals, and paired differences."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import mlflow
import pandas as pd
from mlflow.entities import Run

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.eval import statistics
from hoptimizer.eval.groups import GROUPINGS
from hoptimizer.eval.judge import ACCURACY
from hoptimizer.eval.metrics import METRICS
from hoptimizer.eval.objective import OBJECTIVE
from hoptimizer.tracking.artifacts import UNANSWERED
from hoptimizer.tracking.reading import Predictions
from hoptimizer.tracking.tracker import Tracker

# Of the metrics in a comparison's table, in this order, those that any variant has.
COLUMNS = ("em", "f1", "accuracy", "recall", "objective", "passages", "lm_calls", "retrievals")

COMPARISONS = " comparisons"
"""Ends the name of the experiment that has the comparisons of another one."""

_NEEDS = {ACCURACY: "it takes the same lm.judge", OBJECTIVE: "it takes a metric with the same weights"}


@dataclass(frozen=True)
class Compared:
    """One variant of a comparison.

    Attributes:
        run_id: its run.
        name: what the table calls it.
        compiled: whether an optimizer made it.
        estimates: mean and interval of each metric.
        scores: per question, in the order of ``ids``; not a number where a question has none.
        ids: the questions.
        unanswered: how many of them have no score because a language model's call got no answer.
    """

    run_id: str
    name: str
    compiled: bool
    estimates: dict[str, statistics.Estimate]
    scores: dict[str, list[float]]
    ids: list[str]
    unanswered: int = 0


@dataclass(frozen=True)
class Group:
    """The questions of one type, or with one number of hops.

    Attributes:
        name: the type, or the number of hops; ``None`` for questions of which it is not known.
        n: questions.
        estimates: mean and interval of the metric for each variant; ``None`` where it has no scores in the group.
        differences: of each variant but the first against it, paired by question; ``None`` where there are no pairs.
    """

    name: str | None
    n: int
    estimates: list[statistics.Estimate | None]
    differences: list[statistics.Difference | None]


@dataclass(frozen=True)
class Comparison:
    """Variants that answered the same questions.

    Attributes:
        split: the questions' split.
        metric: what the differences are of.
        variants: in the order asked for; the first is the baseline.
        differences: of each variant but the first against it.
        by: what questions are grouped by, or ``None``.
        groups: the metric by group.
    """

    split: str
    metric: str
    variants: list[Compared]
    differences: list[statistics.Difference]
    by: str | None = None
    groups: list[Group] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """What ``hop compare --json`` prints."""
        return {
            "split": self.split,
            "metric": self.metric,
            "variants": [
                {
                    "run_id": v.run_id,
                    "name": v.name,
                    "compiled": v.compiled,
                    "n": len(v.ids),
                    "unanswered": v.unanswered,
                    "metrics": {name: estimate.mean for name, estimate in v.estimates.items()},
                    "intervals": {name: [e.low, e.high] for name, e in v.estimates.items()},
                }
                for v in self.variants
            ],
            "differences": [
                {"run_id": v.run_id, "baseline": self.variants[0].run_id, **asdict(d)}
                for v, d in zip(self.variants[1:], self.differences, strict=True)
            ],
            **({"by": self.by, "groups": [asdict(group) for group in self.groups]} if self.by else {}),
        }


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
        run_ids: what to compare, the baseline first; none means every run of the experiment that answered the same
            questions as its latest run, the oldest as the baseline.
        split: the questions' split.
        metric: what the paired differences are of.
        seed: of the bootstrap.
        by: ``type`` or ``hops``, by which the metric is also compared in groups of questions; ``None`` for no groups.

    Raises:
        UserError: a run did not answer the split, or other questions than the first, or lacks the metric; or the
            questions have nothing to be grouped by.

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
    runs = [tracker.get(run_id) for run_id in run_ids] or tracker.runs()
    answered = [(run, tracker.predictions(run.info.run_id, split)) for run in runs]
    known = [(run, predictions) for run, predictions in answered if predictions is not None]
    if run_ids and len(known) < len(answered):
        missing = next(run for run, predictions in answered if predictions is None)
        raise UserError(
            f"run {missing.info.run_id} has no answers on {split}: give another --split, or score it with "
            f"`hop eval --run {missing.info.run_id} --split {split}`"
        )
    if not known:
        raise UserError(
            f"experiment {tracker.experiment.name!r} has no run that answered {split}: make one with `hop compile` "
            "or `hop eval`"
        )
    last = known[-1][1]
    if not run_ids:
        known = [(run, p) for run, p in known if _questions(p.table) == _questions(last.table) and p.data == last.data]
    numeric = {name for _, p in known for name in p.table.select_dtypes("number")} - {"hops"}
    wanted = [*COLUMNS, *({metric} & numeric - set(COLUMNS))]  # a metric of the user's is no column by default
    columns = [column for column in wanted if _alike(column, known)]
    column = _grouped(by, [p.table for _, p in known]) if by else None
    variants = [_compared(tracker, run, predictions.table, columns, seed) for run, predictions in known]
    first = variants[0]
    for variant in variants[1:]:
        if variant.ids != first.ids:
            raise UserError(
                f"runs {first.run_id} and {variant.run_id} answered different questions of {split}: score both on the "
                "same data and size"
            )
    shared = [column for column in columns if all(column in variant.scores for variant in variants)]
    if metric not in shared:
        needs = f" ({_NEEDS[metric]})" if metric in _NEEDS else ""
        unshown = [name for name in METRICS if all(name in predictions.table for _, predictions in known)]
        near = nearest(metric, dict.fromkeys([*shared, *unshown]))
        raise UserError(f"metric: the runs have no scores of {metric!r} in common{needs}; {near}")
    baseline = first.scores[metric]
    differences = [
        statistics.compare(*statistics.known_pairs(baseline, variant.scores[metric]), seed) for variant in variants[1:]
    ]
    groups = _groups(variants, metric, column, seed) if column is not None else []
    return Comparison(split, metric, variants, differences, by, groups)


def _grouped(by: str, tables: Sequence[pd.DataFrame]) -> pd.Series:
    """What each question is grouped by; of a run of a version that did not keep it, another run says it.

    Raises:
        UserError: there is no such grouping, or no question has a group.
    """
    if by not in GROUPINGS:
        raise UserError(f"--by {by}: expected {' or '.join(GROUPINGS)}")
    column = next((table[by] for table in tables if by in table and table[by].notna().any()), None)
    if column is None:
        raise UserError(f"--by {by}: the runs know no {by} of their questions; annotate the data set and score again")
    return column


def _groups(variants: Sequence[Compared], metric: str, column: pd.Series, seed: int) -> list[Group]:
    groups = []
    for value in [*sorted(column.dropna().unique()), None]:
        chosen = column.isna() if value is None else column == value
        scores = [[score for score, inside in zip(v.scores[metric], chosen, strict=True) if inside] for v in variants]
        if not scores[0]:
            continue
        known = [[score for score in own if not math.isnan(score)] for own in scores]
        pairs = [statistics.known_pairs(scores[0], own) for own in scores[1:]]
        groups.append(
            Group(
                name=f"{value:g}" if isinstance(value, float) else value and str(value),
                n=len(scores[0]),
                estimates=[statistics.mean(own, seed) if own else None for own in known],
                differences=[statistics.compare(*pair, seed) if pair[0] else None for pair in pairs],
            )
        )
    return groups


def _alike(column: str, answered: Sequence[tuple[Run, Predictions]]) -> bool:
    """Whether a score means the same in all runs that have it."""
    return len({_definition(column, run) for run, predictions in answered if column in predictions.table}) <= 1


def _definition(column: str, run: Run) -> frozenset[tuple[str, str]]:
    """The parameters of a run that decide on a score besides the answers: who judged them, what is weighed."""
    params = run.data.params
    sections: tuple[str, ...] = ("metric.",) if column == OBJECTIVE else ()
    if column == ACCURACY or (column == OBJECTIVE and f"metric.{ACCURACY}" in params):
        sections += ("lm.judge.",)
    return frozenset((key, value) for key, value in params.items() if key.startswith(sections))


def _questions(table: pd.DataFrame) -> list[str]:
    return list(table["id"])


def _compared(tracker: Tracker, run: Run, table: pd.DataFrame, columns: Sequence[str], seed: int) -> Compared:
    return Compared(
        run_id=run.info.run_id,
        name=run.info.run_name,
        compiled=tracker.is_compiled(run),
        estimates=estimates(table, columns, seed),
        scores={column: [float(value) for value in table[column]] for column in columns if column in table},
        ids=_questions(table),
        unanswered=int(table[UNANSWERED].notna().sum()) if UNANSWERED in table else 0,
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


def log_comparison(tracker: Tracker, comparison: Comparison) -> str:
    """Keep a comparison, its table and plots, as a run of an experiment beside that of the runs.

    Returns:
        the run's id.
    """
    from hoptimizer.eval import plots  # draws with matplotlib, which takes a second to import

    rows = [
        {"run_id": v.run_id, "variant": v.name, "n": len(v.ids)} | {k: e.mean for k, e in v.estimates.items()}
        for v in comparison.variants
    ]
    names = _distinct([variant.name for variant in comparison.variants])
    named = [replace(variant, name=name) for variant, name in zip(comparison.variants, names, strict=True)]
    metric = comparison.metric
    aside = Tracker(tracker.uri, f"{tracker.experiment.name}{COMPARISONS}")
    with aside.run("compare", f"comparison on {comparison.split}") as run:
        mlflow.log_table(pd.DataFrame(rows), "comparison.json")
        mlflow.log_dict(comparison.as_dict(), "comparison_full.json")
        mlflow.log_figure(plots.bars({v.name: v.estimates for v in named}), "scores.png")
        if comparison.differences:
            forest = plots.forest(dict(zip(names[1:], comparison.differences, strict=True)), metric, names[0])
            mlflow.log_figure(forest, "differences.png")
        points = {v.name: (v.estimates[metric], v.estimates["lm_calls"].mean) for v in named if metric in v.estimates}
        mlflow.log_figure(plots.cost(points, metric), "cost.png")
    return run.info.run_id


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where one occurs twice."""
    return [f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]
