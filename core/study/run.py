"""Runs a study: every cell an MLflow run under the study's own, each finished one once."""

import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.eval.display.sheet import Sheet, notebook
from hoptimizer.retrieval.kept_rankings import one_command
from hoptimizer.study.cell_runs import CellResult, CellRuns
from hoptimizer.study.cells import Study
from hoptimizer.study.choice import Choice, choices, chosen_cells
from hoptimizer.study.estimate import StudyEstimate, estimate
from hoptimizer.study.lines import Line, aggregate
from hoptimizer.study.significance import Significance, significance
from hoptimizer.study.table import figures_tested, log_tables, sheets
from hoptimizer.tracking.holding import located
from hoptimizer.tracking.journal import Journal, keep_run
from hoptimizer.tracking.tracker import Tracker

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyResult:
    """A study that was run.

    Attributes:
        study: what was run.
        run_id: its MLflow run, under which those of the cells are nested.
        outcomes: one a cell, in the study's order.
        lines: the table, one line a combination of the axes.
        tried: one a candidate, where values were chosen.
        choices: what was chosen.
    """

    study: Study
    run_id: str
    outcomes: list[CellResult]
    lines: list[Line]
    tried: list[CellResult] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)

    @property
    def failed(self) -> list[CellResult]:
        """The cells that failed."""
        return [outcome for outcome in (*self.tried, *self.outcomes) if outcome.failure]

    @cached_property
    def significance(self) -> Significance:
        """What the paired tests of the table say."""
        return significance(self.study, self.lines, figures_tested(self.study, self.lines))

    @cached_property
    def sheets(self) -> list[Sheet]:
        """The tables to show."""
        return sheets(self.study, self.lines, self.choices, self.significance)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return notebook(*self.sheets)

    def as_dict(self) -> dict[str, Any]:
        """What ``hop study --json`` prints."""
        return {
            "study": self.study.name,
            "run_id": self.run_id,
            "metric": self.study.config.objective.name,
            "split": self.study.file.split,
            "cells": [outcome.as_dict() for outcome in self.outcomes],
            "table": [line.as_dict() for line in self.lines],
            "choices": [choice.as_dict() for choice in self.choices],
            "tests": [
                {"name": self.lines[number].name, "figure": name, "p": p}
                for name, found in self.significance.p.items()
                for number, p in found.items()
            ],
            "best": [
                {"name": self.lines[number].name, "figure": name} for name, number in sorted(self.significance.best)
            ],
        }


def run_study(study: Study, report: Report = in_notebook) -> StudyResult:
    """Run the cells of a study that have no finished run yet, and lay all of them out as a table.

    The same call continues a study that was interrupted: its run is found again by what is run, and so are the runs of
    its cells. A cell that fails is kept as failed, and the next one is run; the next call tries it again, and a cell in
    which questions got no answer.

    Args:
        study: of :func:`hoptimizer.study.cells.load_study`.
        report: told about progress, over the cells and in each.

    Raises:
        UserError: the tracking store can't be opened, or finished cells wait in the journal for it.

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
    stage, runs = f"study {study.name}", CellRuns(study, report)  # holds what is done, also for another store

    def keep(tracker: Tracker) -> StudyResult:
        if tracker.uri == located(study.config.tracking.uri):
            _check_delivered(study)
        _log.info(estimate(study, tracker.runs()).line)
        with one_command(), tracker.run("study", study.name, study.digest, reopen=True) as run:
            candidates = [(cell, None) for cell in study.candidates]
            tried = runs.run(candidates, tracker, f"{stage}, choosing") if candidates else []
            made = choices(study, [(outcome.cell, outcome.metrics) for outcome in tried])
            outcomes = runs.run(chosen_cells(study, made), tracker, stage)
            lines = aggregate(study, [(outcome.cell, outcome.figures) for outcome in outcomes])
            result = StudyResult(study, run.info.run_id, outcomes, lines, tried, made)
            log_tables(study, lines, result.sheets, result.as_dict())
            if result.failed:
                tracker.end_failed(f"{len(result.failed)} of {len(tried) + len(outcomes)} cells failed")
        return result

    return keep_run(study.config, keep, study.run_id)


def _check_delivered(study: Study) -> None:
    """Make sure that no finished cell waits for the store in the journal: it would be run once more.

    Raises:
        UserError: some do.
    """
    if waiting := Journal(study.config.tracking.uri).finished(f"{study.digest} "):
        many = "1 finished cell waits" if len(waiting) == 1 else f"{len(waiting)} finished cells wait"
        raise UserError(
            f"study {study.name}: {many} in the journal, and would be run again; give `hop sync` first, then the same "
            "command"
        )


def estimate_study(study: Study, report: Report = in_notebook) -> StudyEstimate:
    """What a study will cost: by earlier runs, and by a few questions of each cell of which there are none. No run is
    made.

    Args:
        study: of :func:`hoptimizer.study.cells.load_study`.
        report: told about progress.

    Raises:
        UserError: the tracking store can't be opened.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import estimate_study, load_study
        >>> _ = Path("shallow.yaml").write_text('''
        ... base:
        ...   data: {name: atlas, dev: 5}
        ...   program: {name: rag, reader: none}
        ...   retriever: {name: bm25}
        ... grid:
        ...   retriever.k: [1, 3]
        ... ''')
        >>> store = f"tracking.uri=sqlite:///{Path.cwd()}/mlflow.db"
        >>> expected = estimate_study(load_study(Path("shallow.yaml"), [store]))
        >>> expected.finished, [(cell.questions, cell.of_each["lm_calls"]) for cell in expected.cells]
        (0, [(5, 0.0), (5, 0.0)])
    """

    def expected(tracker: Tracker) -> StudyEstimate:
        with one_command():
            return estimate(study, tracker.runs(), probe=tracker, report=report)

    return keep_run(study.config, expected, study.run_id)
