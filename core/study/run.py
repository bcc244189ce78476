"""Runs a study: every cell an MLflow run under the study's own, each finished one once."""

import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, silent
from hoptimizer.common.urls import line_without_secrets
from hoptimizer.comparison import COLUMNS, estimates
from hoptimizer.compiling import compile_variant
from hoptimizer.eval.statistics import Estimate
from hoptimizer.study.cells import Cell, Study
from hoptimizer.study.table import Figures, Line, aggregate, log_tables
from hoptimizer.tracking.artifacts import DECIMALS
from hoptimizer.tracking.journal import keep_run
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.variants import evaluate_variant


@dataclass(frozen=True)
class CellResult:
    """What came of a cell.

    Attributes:
        cell: what was run.
        run_id: its MLflow run.
        figures: its scores and their intervals; empty where it failed.
        failure: why it failed, in one line, or ``None``.
    """

    cell: Cell
    run_id: str
    figures: Figures = field(default_factory=Figures)
    failure: str | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """Its scores, counts and costs; empty where it failed."""
        return self.figures.metrics

    @property
    def unanswered(self) -> int:
        """The number of questions that are left out because a language model's call got no answer."""
        return int(self.metrics.get("unanswered", 0))

    @property
    def status(self) -> Literal["finished", "failed"]:
        """How it ended."""
        return "failed" if self.failure else "finished"

    def as_dict(self) -> dict[str, Any]:
        """The cell in what ``hop study --json`` prints."""
        return {
            "name": self.cell.name,
            "overrides": self.cell.overrides,
            "compiled": self.cell.compiled,
            "seed": self.cell.config.seed,
            "run_id": self.run_id,
            "status": self.status,
            "failure": self.failure,
            "n": self.cell.n,
            "metrics": self.metrics,
        }


@dataclass(frozen=True)
class StudyResult:
    """A study that was run.

    Attributes:
        study: what was run.
        run_id: its MLflow run, under which those of the cells are nested.
        outcomes: one a cell, in the study's order.
        lines: the table, one line a combination of the axes.
    """

    study: Study
    run_id: str
    outcomes: list[CellResult]
    lines: list[Line]

    @property
    def failed(self) -> list[CellResult]:
        """The cells that failed."""
        return [outcome for outcome in self.outcomes if outcome.failure]

    def as_dict(self) -> dict[str, Any]:
        """What ``hop study --json`` prints."""
        return {
            "study": self.study.name,
            "run_id": self.run_id,
            "metric": self.study.config.objective.name,
            "split": self.study.file.split,
            "cells": [outcome.as_dict() for outcome in self.outcomes],
            "table": [line.as_dict() for line in self.lines],
        }


def run_study(study: Study, report: Report = silent) -> StudyResult:
    """Run the cells of a study that have no finished run yet, and lay all of them out as a table.

    The same call continues a study that was interrupted: its run is found again by what is run, and so are the runs of
    its cells. A cell that fails is kept as failed, and the next one is run; the next call tries it again, and a cell in
    which questions got no answer.

    Args:
        study: of :func:`hoptimizer.study.cells.load_study`.
        report: told about progress, over the cells and in each.

    Raises:
        UserError: the tracking store can't be opened.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import load_study, run_study
        >>> _ = Path("depth.yaml").write_text('''
        ... base:
        ...   data: {name: atlas, dev: 5}
        ...   program: {name: rag, reader: none}
        ...   retriever: {name: bm25}
        ... grid:
        ...   retriever.k: [2, 4]
        ... ''')
        >>> store = f"tracking.uri=sqlite:///{Path.cwd()}/mlflow.db"
        >>> result = run_study(load_study(Path("depth.yaml"), [store]))
        >>> result.failed, [outcome.metrics["passages"] for outcome in result.outcomes]
        ([], [2.0, 4.0])
    """
    stage, total = f"study {study.name}", len(study.cells)
    outcomes: list[CellResult] = []  # of the cells that are done, also where another store keeps the study's run then

    def keep(tracker: Tracker) -> StudyResult:
        with tracker.run("study", study.name, study.digest, reopen=True) as run:
            for number, cell in enumerate(study.cells[len(outcomes) :], len(outcomes)):
                report(stage, number, total, cell.name)
                outcomes.append(_run_cell(study, cell, tracker, report))
            report(stage, total, total, "")
            lines = aggregate(study, [(outcome.cell, outcome.figures) for outcome in outcomes])
            result = StudyResult(study, run.info.run_id, outcomes, lines)
            log_tables(study, lines, result.as_dict())
            if result.failed:
                tracker.end_failed(f"{len(result.failed)} of {total} cells failed")
        return result

    return keep_run(study.config, keep, study.run_id)


def _run_cell(study: Study, cell: Cell, tracker: Tracker, report: Report) -> CellResult:
    kind, split = "compile" if cell.compiled else "eval", study.file.split
    name = f"{cell.name}, seed {cell.config.seed}" if len(study.seeds) > 1 else cell.name
    fingerprint = f"{study.digest} {cell.digest}"
    run_id = tracker.finished(fingerprint)
    metrics = tracker.metrics(run_id, split) if run_id else {}
    if run_id and not metrics.get("unanswered"):  # what got no answer is asked again
        predictions = tracker.predictions(run_id, split)
        intervals = _intervals(study, predictions.table) if predictions else {}
        return CellResult(cell, run_id, Figures(metrics, intervals))

    def inner(stage: str, done: int, total: int, remark: str) -> None:
        report(f"{name}: {stage}", done, total, remark)

    run = compile_variant if cell.compiled else evaluate_variant
    try:
        variant = run(cell.config, split=split, run_id=study.run_id, name=name, fingerprint=fingerprint, report=inner)
        # As the store keeps them, so that the table is the same where the cell's scores are read from there.
        answered = pd.DataFrame([row.scores for row in variant.after.rows]).round(DECIMALS)
        return CellResult(cell, variant.run_id, Figures(variant.figures, _intervals(study, answered)))
    except UserError as error:
        failure, details = _one_line(error), ""
    except Exception as error:  # noqa: BLE001 - whatever a cell dies of, the others have their turn
        failure, details = _one_line(error, f"{type(error).__name__}: "), traceback.format_exc()
    return CellResult(cell, tracker.fail(kind, name, fingerprint, failure, details), failure=failure)


def _intervals(study: Study, answered: pd.DataFrame) -> dict[str, Estimate]:
    """The scores' intervals over the questions, where there is one seed."""
    scores = dict.fromkeys([study.config.objective.name, *COLUMNS])
    return estimates(answered, list(scores), study.config.seed) if len(study.seeds) == 1 else {}


def _one_line(error: Exception, prefix: str = "") -> str:
    return prefix + line_without_secrets(error)
