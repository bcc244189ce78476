"""A study's results as a paper's table: means with deviations over seeds or intervals, beside what they cost."""

from collections.abc import Sequence
from typing import Any

import mlflow
import pandas as pd

from hoptimizer.eval import statistics
from hoptimizer.eval.display.format import COLUMNS, figure, heading, with_interval
from hoptimizer.eval.display.sheet import MARK, Sheet
from hoptimizer.study.cells import Study
from hoptimizer.study.choice import Choice, choice_sheet
from hoptimizer.study.file import NAME, label
from hoptimizer.study.lines import Line, told_n
from hoptimizer.study.significance import Significance

_SPREAD = "mean ± standard deviation over {} seeds"
_INTERVAL = "95% intervals"


def sheets(
    study: Study, lines: Sequence[Line], made: Sequence[Choice] = (), tests: Significance | None = None
) -> list[Sheet]:
    """The tables to show: what was chosen, then, where the study has columns, its metric over rows and columns, then
    every figure.

    Args:
        study: what was run.
        lines: of :func:`hoptimizer.study.lines.aggregate`.
        made: what was chosen.
        tests: what the paired tests of the figures say; without, nothing is marked.
    """
    tests = tests or Significance()
    chosen = [choice_sheet(study, made)] if made else []
    crossed = [_crossed(study, lines, tests)] if study.file.columns else []
    return [*chosen, *crossed, _complete(study, lines, tests)]


def figures_tested(study: Study, lines: Sequence[Line]) -> list[str]:
    """The figures that the tables show."""
    return list(dict.fromkeys([study.config.objective.name, *_names(study, lines)]))


def _names(study: Study, lines: Sequence[Line]) -> list[str]:
    """The figures of the complete table."""
    return [name for name in study.file.figures or COLUMNS if any(name in line.estimates for line in lines)]


def _crossed(study: Study, lines: Sequence[Line], tests: Significance) -> Sheet:
    file, objective = study.file, study.config.objective
    columns = list(dict.fromkeys(_at(line, file.columns) for line in lines))
    rows = list(dict.fromkeys(_at(line, file.rows) for line in lines))
    found = {(_at(line, file.rows), _at(line, file.columns)): number for number, line in enumerate(lines)}
    return Sheet(
        title=f"{study.name}: {objective.label} on {_setting(study, lines)}",
        header=[
            *_short(file.rows),
            *(", ".join(f"{key} {value}" for key, value in zip(_short(file.columns), c, strict=True)) for c in columns),
        ],
        labels=len(file.rows),
        rows=[
            [*row, *(_marked(study, lines, found[row, column], objective.name, tests) for column in columns)]
            for row in rows
        ],
        bold=frozenset(
            (i, len(file.rows) + j)
            for i, row in enumerate(rows)
            for j, column in enumerate(columns)
            if (objective.name, found[row, column]) in tests.best
        ),
        note=_note(lines, tests),
    )


def _complete(study: Study, lines: Sequence[Line], tests: Significance) -> Sheet:
    names = _names(study, lines)
    axes = [*study.file.rows, *study.file.columns]
    keys = list(dict.fromkeys(key for line in lines for key in line.options))
    counts = {"n": [str(line.n) for line in lines]} if len({line.n for line in lines}) > 1 else {}
    if any(line.failed for line in lines):
        counts["finished"] = [f"{line.seeds} of {line.seeds + line.failed}" for line in lines]
    first = len(axes) + len(keys) + len(counts)
    return Sheet(
        title=f"{study.name} on {_setting(study, lines)}",
        header=[*_short([*axes, *keys]), *counts, *(heading(name) for name in names)],
        labels=len(axes),
        rows=[
            [
                *_at(line, axes),
                *(label(line.options[key]) if key in line.options else "–" for key in keys),
                *(texts[number] for texts in counts.values()),
                *(_marked(study, lines, number, name, tests) for name in names),
            ]
            for number, line in enumerate(lines)
        ],
        bold=frozenset((line, first + names.index(name)) for name, line in tests.best if name in names),
        note=_note(lines, tests),
    )


def _setting(study: Study, lines: Sequence[Line]) -> str:
    return ", ".join([f"{study.file.split}, {told_n(line.n for line in lines)}", *_spread(study)])


def _note(lines: Sequence[Line], tests: Significance) -> str:
    """What stands below a table: what its signs mean, and which questions are in none of its figures, or not in all."""
    unanswered = [f"{line.unanswered} of {line.name}" for line in lines if line.unanswered]
    unjudged = [f"{line.unjudged} of {line.name}" for line in lines if line.unjudged]
    notes = [tests.note]
    notes += [f"Questions that got no answer and are left out: {', '.join(unanswered)}."] if unanswered else []
    notes += [f"Answers without a verdict, which accuracy leaves out: {', '.join(unjudged)}."] if unjudged else []
    return " ".join(filter(None, notes))


def _spread(study: Study) -> list[str]:
    """Says what stands beside the means."""
    return [_SPREAD.format(len(study.seeds)) if len(study.seeds) > 1 else _INTERVAL]


def _short(axes: Sequence[str]) -> list[str]:
    """Config keys without their section, where that tells them apart."""
    last = [axis.rpartition(".")[2] for axis in axes]
    return [axis if last.count(end) > 1 or end == NAME else end for axis, end in zip(axes, last, strict=True)]


def _shown(study: Study, line: Line, name: str) -> str:
    """A figure as text; the interval of a single run stands beside the metric alone, as in a comparison's table."""
    estimate, metric = line.estimates.get(name), study.config.objective.name
    if estimate is None or line.is_unsought(name, metric):
        return "failed" if not line.seeds else figure(name, None)
    if name == metric and line.has_interval(name):
        return with_interval(name, estimate.mean, estimate.low, estimate.high)
    return figure(name, estimate.mean, line.deviation(name))


def _marked(study: Study, lines: Sequence[Line], number: int, name: str, tests: Significance) -> str:
    return _shown(study, lines[number], name) + MARK * tests.differs(name, number)


def _at(line: Line, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(label(line.place[axis]) for axis in axes)


def log_tables(study: Study, lines: Sequence[Line], shown: Sequence[Sheet], result: dict[str, Any]) -> None:
    """Keep a study's tables and plots in the active run.

    Args:
        study: what was run.
        lines: of :func:`hoptimizer.study.lines.aggregate`.
        shown: of :func:`sheets`.
        result: the whole result as plain data.
    """
    from hoptimizer.eval.display import plots  # draws with matplotlib, which takes a second to import

    mlflow.log_dict(result, "study.json")
    mlflow.log_text(pd.DataFrame([line.as_dict() for line in lines]).to_csv(index=False), "study.csv")
    mlflow.log_text("\n".join(sheet.markdown() for sheet in shown), "study.md")
    mlflow.log_text("\n".join(sheet.latex() for sheet in shown), "study.tex")
    mlflow.log_text("\n".join(sheet.html() for sheet in shown), "study.html")
    note = ", ".join(_spread(study))
    bars = {line.name: {k: e for k, e in line.estimates.items() if k in COLUMNS} for line in lines if line.estimates}
    mlflow.log_figure(plots.bars(bars, note=note), "scores.png")
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
