"""A study's results as a paper's table: means with deviations over seeds or intervals, beside what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlflow
import pandas as pd

from hoptimizer.comparison import COLUMNS
from hoptimizer.eval import statistics
from hoptimizer.format import figure, heading, with_interval
from hoptimizer.study.cells import Cell, Study
from hoptimizer.study.file import NAME, label

_SPREAD = "mean ± standard deviation over {} seeds"
_INTERVAL = "95% intervals"


@dataclass(frozen=True)
class Figures:
    """What a run of a cell came to.

    Attributes:
        metrics: its scores, counts and costs; empty where it failed.
        intervals: of the scores, mean and interval over the questions.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, statistics.Estimate] = field(default_factory=dict)


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
    """

    name: str
    place: dict[str, Any]
    n: int
    seeds: int
    failed: int
    estimates: dict[str, statistics.Estimate]

    def as_dict(self) -> dict[str, Any]:
        """The line in what ``hop study --json`` prints; the deviation of a single run is null."""
        result = self.place | {"n": self.n, "seeds": self.seeds, "failed": self.failed}
        for name, estimate in self.estimates.items():
            result |= {name: estimate.mean, f"{name}_sd": self.deviation(name)}
            if self.has_interval(name):
                result |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return result

    def deviation(self, name: str) -> float | None:
        """The standard deviation of a figure over the seeds; a single run has none."""
        estimate = self.estimates[name]
        return estimate.high - estimate.mean if self.seeds > 1 else None

    def has_interval(self, name: str) -> bool:
        """Whether a figure has an interval over questions."""
        return self.seeds == 1 and self.estimates[name].n > 1


@dataclass(frozen=True)
class Sheet:
    """A table of texts, to be shown in any way.

    Attributes:
        title: what it shows.
        header: names of the columns.
        labels: how many columns, from the left, say what a row is.
        rows: the texts.
    """

    title: str
    header: list[str]
    labels: int
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in markdown."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.header) - self.labels)
        lines = [[_cell(text) for text in row] for row in (self.header, rule, *self.rows)]
        return "\n".join([f"{self.title}\n", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def _cell(text: str) -> str:
    """A text as one cell of a markdown table, which a bar or a line break would end."""
    return " ".join(text.splitlines()).replace("|", "\\|")


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
        lines.append(Line(name, cell.place, cell.n, len(finished), len(runs) - len(finished), estimates))
    return lines


def sheets(study: Study, lines: Sequence[Line]) -> list[Sheet]:
    """The tables to show: where the study has columns, its metric over rows and columns first, then every figure."""
    complete = _complete(study, lines)
    return [_crossed(study, lines), complete] if study.file.columns else [complete]


def _crossed(study: Study, lines: Sequence[Line]) -> Sheet:
    file, objective = study.file, study.config.objective
    columns = list(dict.fromkeys(_at(line, file.columns) for line in lines))
    found = {(_at(line, file.rows), _at(line, file.columns)): line for line in lines}
    return Sheet(
        title=f"{study.name}: {objective.label} on {_setting(study, lines)}",
        header=[
            *_short(file.rows),
            *(", ".join(f"{key} {value}" for key, value in zip(_short(file.columns), c, strict=True)) for c in columns),
        ],
        labels=len(file.rows),
        rows=[
            [*row, *(_shown(study, found[row, column], objective.name) for column in columns)]
            for row in dict.fromkeys(_at(line, file.rows) for line in lines)
        ],
    )


def _complete(study: Study, lines: Sequence[Line]) -> Sheet:
    axes = [*study.file.rows, *study.file.columns]
    names = [name for name in study.file.figures or COLUMNS if any(name in line.estimates for line in lines)]
    counts = {"n": [str(line.n) for line in lines]} if len({line.n for line in lines}) > 1 else {}
    if any(line.failed for line in lines):
        counts["finished"] = [f"{line.seeds} of {line.seeds + line.failed}" for line in lines]
    return Sheet(
        title=f"{study.name} on {_setting(study, lines)}",
        header=[*_short(axes), *counts, *(heading(name) for name in names)],
        labels=len(axes),
        rows=[
            [
                *_at(line, axes),
                *(texts[number] for texts in counts.values()),
                *(_shown(study, line, name) for name in names),
            ]
            for number, line in enumerate(lines)
        ],
    )


def _setting(study: Study, lines: Sequence[Line]) -> str:
    sizes = sorted({line.n for line in lines})
    n = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return ", ".join([f"{study.file.split}, n = {n}", *_spread(study)])


def _spread(study: Study) -> list[str]:
    """Says what stands beside the means."""
    return [_SPREAD.format(len(study.seeds)) if len(study.seeds) > 1 else _INTERVAL]


def _short(axes: Sequence[str]) -> list[str]:
    """Config keys without their section, where that tells them apart."""
    last = [axis.rpartition(".")[2] for axis in axes]
    return [axis if last.count(end) > 1 or end == NAME else end for axis, end in zip(axes, last, strict=True)]


def _shown(study: Study, line: Line, name: str) -> str:
    """A figure as text; the interval of a single run stands beside the metric alone, as in a comparison's table."""
    estimate = line.estimates.get(name)
    if estimate is None:
        return "failed" if not line.seeds else figure(name, None)
    if name == study.config.objective.name and line.has_interval(name):
        return with_interval(name, estimate.mean, estimate.low, estimate.high)
    return figure(name, estimate.mean, line.deviation(name))


def _at(line: Line, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(label(line.place[axis]) for axis in axes)


def _plotted(study: Study) -> list[str]:
    return [study.file.plot.y] if study.file.plot and study.file.plot.y else []


def log_tables(study: Study, lines: Sequence[Line], result: dict[str, Any]) -> None:
    """Keep a study's tables and plots in the active run.

    Args:
        study: what was run.
        lines: of :func:`aggregate`.
        result: the whole result as plain data.
    """
    from hoptimizer.eval import plots  # draws with matplotlib, which takes a second to import

    mlflow.log_dict(result, "study.json")
    mlflow.log_text(pd.DataFrame([line.as_dict() for line in lines]).to_csv(index=False), "study.csv")
    mlflow.log_text("\n".join(sheet.markdown() for sheet in sheets(study, lines)), "study.md")
    note = ", ".join(_spread(study))
    shown = {line.name: {k: e for k, e in line.estimates.items() if k in COLUMNS} for line in lines if line.estimates}
    mlflow.log_figure(plots.bars(shown, note=note), "scores.png")
    if study.file.plot:
        x, y = study.file.plot.x, study.file.plot.y or study.config.objective.name
        mlflow.log_figure(plots.curve(_curves(study, lines, x, y), x, y, note=note), "curve.png")


def _curves(study: Study, lines: Sequence[Line], x: str, y: str) -> dict[str, list[tuple[float, statistics.Estimate]]]:
    """Points over ``x``, a curve for each combination of the other axes."""
    others = [axis for axis in study.file.axes if axis != x]
    curves: dict[str, list[tuple[float, statistics.Estimate]]] = {}
    for line in lines:
        if y in line.estimates:
            curves.setdefault(", ".join(_at(line, others)), []).append((line.place[x], line.estimates[y]))
    return curves
