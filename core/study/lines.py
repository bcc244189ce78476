"""The lines of a study's table: each combination of the axes over its seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from hoptimizer.eval import statistics
from hoptimizer.eval.display.format import COLUMNS, is_unsought
from hoptimizer.study.cells import Cell, Study


@dataclass(frozen=True)
class Figures:
    """What a run of a cell came to.

    Attributes:
        metrics: its scores, counts and costs; empty where it failed.
        intervals: of the scores, mean and interval over the questions.
        scores: of each question, in rows, each score, in columns; questions without a score have none there.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, statistics.Estimate] = field(default_factory=dict)
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass(frozen=True)
class Line:
    """One combination of the axes, over its seeds.

    Attributes:
        name: the cell's name.
        place: its value on each axis.
        n: questions each run was scored on.
        seeds: runs that finished.
        failed: runs that failed.
        estimates: mean and standard deviation of each metric and count; of a single run, the scores have their 95%
            interval over its questions instead.
        scores: of each question, in rows, the mean over the seeds of each score, in columns.
        options: its values of the keys that were chosen.
        unanswered: questions of all its runs together that are left out because a call or a search got no answer.
        unjudged: answers of all its runs together that the judge gave no verdict on, which accuracy leaves out.
    """

    name: str
    place: dict[str, Any]
    n: int
    seeds: int
    failed: int
    estimates: dict[str, statistics.Estimate]
    scores: pd.DataFrame = field(default_factory=pd.DataFrame)
    options: dict[str, Any] = field(default_factory=dict)
    unanswered: int = 0
    unjudged: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The line in what ``hop study --json`` prints; the deviation of a single run is null."""
        counts = {"n": self.n, "seeds": self.seeds, "failed": self.failed, "unanswered": self.unanswered}
        result = self.place | self.options | counts
        for name, estimate in self.estimates.items():
            result |= {name: estimate.mean, f"{name}_sd": self.deviation(name)}
            if self.has_interval(name):
                result |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return result

    def deviation(self, name: str) -> float | None:
        """The standard deviation of a figure over the seeds; a single run has none."""
        estimate = self.estimates[name]
        return estimate.high - estimate.mean if self.seeds > 1 else None

    def is_unsought(self, name: str, metric: str) -> bool:
        """Whether a figure is the recall of a program that never searched, where another metric is maximized."""
        searches = self.estimates.get("retrievals")
        return searches is not None and is_unsought(name, searches.mean, metric)

    def has_interval(self, name: str) -> bool:
        """Whether a figure has an interval over questions."""
        return self.seeds == 1 and self.estimates[name].n > 1


def aggregate(study: Study, outcomes: Sequence[tuple[Cell, Figures]]) -> list[Line]:
    """The lines of a study's table.

    Args:
        study: what was run.
        outcomes: each cell with its figures, of which a failed one has none.
    """
    wanted = list(dict.fromkeys([study.config.objective.name, *COLUMNS, *study.file.figures, *_plotted(study)]))
    groups: dict[str, list[tuple[Cell, Figures]]] = {}
    for cell, figures in outcomes:
        groups.setdefault(cell.name, []).append((cell, figures))
    lines = []
    for name, runs in groups.items():
        finished = [figures for _, figures in runs if figures.metrics]
        values = {column: [f.metrics[column] for f in finished if column in f.metrics] for column in wanted}
        estimates = {column: statistics.over_seeds(found) for column, found in values.items() if found}
        if len(finished) == 1:
            estimates |= {column: found for column, found in finished[0].intervals.items() if column in estimates}
        cell = runs[0][0]
        scores = [figures.scores for figures in finished]
        lines.append(
            Line(
                name,
                cell.place,
                cell.n,
                seeds=len(finished),
                failed=len(runs) - len(finished),
                estimates=estimates,
                scores=pd.concat(scores).groupby(level=0, sort=False).mean() if scores else pd.DataFrame(),
                options=cell.options,
                unanswered=_sum("unanswered", finished),
                unjudged=_sum("judge_failures", finished),
            )
        )
    return lines


def _sum(count: str, runs: Iterable[Figures]) -> int:
    return sum(int(figures.metrics.get(count, 0)) for figures in runs)


def told_n(sizes: Iterable[int]) -> str:
    """How many questions there were, in words.

    Args:
        sizes: of what stands in a table.
    """
    known = sorted({*sizes})
    return f"n = {known[0]}" if len(known) == 1 else f"n = {known[0]} to {known[-1]}"


def _plotted(study: Study) -> list[str]:
    return [study.file.plot.y] if study.file.plot and study.file.plot.y else []
