"""Runs cells of a study: each an MLflow run, those that are finished once, and several at once where that is wanted."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import mlflow
import pandas as pd
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report
from hoptimizer.common.urls import line_without_secrets, text_without_secrets
from hoptimizer.comparison import estimates
from hoptimizer.compiling import compile_variant
from hoptimizer.eval.display.format import COLUMNS
from hoptimizer.eval.runner import Evaluation
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.task import Node, unmasked
from hoptimizer.executors.together import answer_on_cluster
from hoptimizer.study.cell_worker import Order
from hoptimizer.study.cells import Cell, Study
from hoptimizer.study.file import SPENT
from hoptimizer.study.lines import Figures
from hoptimizer.study.on_cluster import compile_on_cluster
from hoptimizer.tracking.artifacts import DECIMALS
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.variants import Scoring, answer_together, evaluate_variant
from hoptimizer.workbench import Workbench

AT_ONCE = 4
"""Cells under way at once by default, where waiting for servers is what takes the time."""


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


class CellRuns:
    """The runs of a study's cells. What came of them is held, so that another store goes on where the first one fails.

    Args:
        study: what is run.
        report: told about progress.
    """

    def __init__(self, study: Study, report: Report) -> None:
        self._study, self._report = study, report
        self._done: dict[str, CellResult] = {}  # by fingerprint

    def run(self, cells: Sequence[tuple[Cell, str | None]], tracker: Tracker, stage: str) -> list[CellResult]:
        """What comes of cells, in their order.

        Args:
            cells: each with the reason why it can't be run, or ``None``.
            tracker: keeps their runs.
            stage: what progress is told of.
        """
        for number, (cell, refused) in enumerate(cells):
            self._report(stage, number, len(cells), cell.title)
            refused = refused or self._source_failure(cell, tracker)
            if self._known(cell):
                continue
            if refused:
                self._keep(self._failed(cell, tracker, refused))
                continue
            beside = self._beside(cell, [other for other, reason in cells[number + 1 :] if not reason], tracker)
            for _ in self._run([cell, *beside], tracker):
                self._report(stage, sum(self._known(one) for one, _ in cells), len(cells), cell.title)
        self._report(stage, len(cells), len(cells), "")
        return [replace(self._done[self._study.fingerprint(cell)], cell=cell) for cell, _ in cells]

    def _known(self, cell: Cell) -> bool:
        return self._study.fingerprint(cell) in self._done

    def _keep(self, result: CellResult) -> CellResult:
        self._done[self._study.fingerprint(result.cell)] = result
        return result

    def _alone(self, cell: Cell, tracker: Tracker) -> CellResult:
        """What comes of a cell, unless it came to something before."""
        return self._keep(self._finished(cell, tracker) or self._made(cell, tracker, None))

    def _run(self, cells: Sequence[Cell], tracker: Tracker) -> Iterator[Cell]:
        """Run a cell, or several together: each is compiled elsewhere, or their questions are answered and kept one
        after the other."""
        executor = self._study.config.executor
        if len(cells) == 1:
            self._alone(cells[0], tracker)
            yield cells[0]
        elif isinstance(executor, RayExecutor) and self._compiles(cells[0]):
            orders, reports = [self._order(cell, tracker) for cell in cells], [self._inner(cell) for cell in cells]
            for number, failure in compile_on_cluster(orders, reports, executor):
                self._keep(self._compiled(cells[number], tracker, failure))
                yield cells[number]
        else:
            scorings = [self._scoring(cell) for cell in cells]
            if isinstance(executor, RayExecutor):
                answered = answer_on_cluster(scorings, tracker, executor)
            else:
                answered = enumerate(answer_together(scorings, tracker))
            for number, evaluation in answered:
                self._keep(self._made(cells[number], tracker, evaluation))
                yield cells[number]

    def _beside(self, cell: Cell, others: Sequence[Cell], tracker: Tracker) -> list[Cell]:
        """The cells that are run together with one: those that follow, have no run, and compile if it does. In one
        process these are some that load no other model, and none that compile."""
        apart, compiles = isinstance(self._study.config.executor, RayExecutor), self._compiles(cell)
        room = len(others) if apart else self._at_once(cell) - 1
        if not room or (compiles and not apart) or self._finished(cell, tracker):
            return []
        found: list[Cell] = []
        for other in others:
            if len(found) == room:
                break
            fits = apart or {*other.config.local_models} <= {*cell.config.local_models}
            known = self._known(other) or other.digest in {one.digest for one in (cell, *found)}
            # What a source is compiled for has its turn when that is done.
            alike = self._compiles(other) == compiles and not (compiles and self._source(other))
            if fits and alike and not known and not self._finished(other, tracker):
                found.append(other)
        return found

    def _at_once(self, cell: Cell) -> int:
        """How many cells are under way at once. A model in this process gains nothing by more than one."""
        waits = not cell.config.local_models and not cell.is_timed
        return self._study.file.at_once or (AT_ONCE if waits else 1)

    def _source_failure(self, cell: Cell, tracker: Tracker) -> str | None:
        """Compile what a cell is scored from, where that is not done; why it can't be, or ``None``."""
        source = self._source(cell)
        if source is None:
            return None
        made = self._done.get(self._study.fingerprint(source)) or self._alone(source, tracker)
        return f"{source.title}: {made.failure}" if made.failure else None

    def _source(self, cell: Cell) -> Cell | None:
        """What a cell's program is compiled as: for another cell too, or for this one alone."""
        return self._study.sources.get((cell.source or cell).digest) if cell.compiled else None

    def _start(self, cell: Cell) -> CellResult | None:
        """The run that has the cell's compiled program, where that is another one: of its source, or of the candidate
        that it was compiled as."""
        made = [source] if (source := self._source(cell)) else self._study.candidates
        prints = (self._study.fingerprint(other) for other in made if other.digest == (cell.source or cell).digest)
        found = (self._done.get(one) for one in prints if one != self._study.fingerprint(cell))
        return next((result for result in found if result and cell.compiled and not result.failure), None)

    def _compiles(self, cell: Cell) -> bool:
        return cell.compiled and self._start(cell) is None

    def _scoring(self, cell: Cell) -> Scoring:
        start = self._start(cell)
        return Scoring(cell.config, cell.split, start.run_id if start else self._study.run_id, self._inner(cell))

    def _name(self, cell: Cell) -> str:
        return f"{cell.title}, seed {cell.config.seed}" if len(self._study.seeds) > 1 else cell.title

    def _inner(self, cell: Cell) -> Report:
        name = self._name(cell)

        def inner(stage: str, done: int, total: int, remark: str) -> None:
            self._report(f"{name}: {stage}", done, total, remark)

        return inner

    def _finished(self, cell: Cell, tracker: Tracker) -> CellResult | None:
        """What a cell came to before, unless some of its questions got no answer: these are asked again."""
        kept = self._kept(cell, tracker)
        return None if kept is None or kept.unanswered else kept

    def _kept(self, cell: Cell, tracker: Tracker) -> CellResult | None:
        run_id = tracker.finished(self._study.work(cell))
        if not run_id:
            return None
        metrics = tracker.metrics(run_id, cell.split)
        predictions = tracker.predictions(run_id, cell.split)
        table = predictions.table if predictions else pd.DataFrame()
        return CellResult(cell, run_id, self._figures(cell, metrics, table))

    def _options(self, cell: Cell) -> dict[str, Any]:
        """Of what makes the cell's variant, except what is told of its progress."""
        options = {"split": cell.split, "name": self._name(cell), "fingerprint": self._study.fingerprint(cell)}
        if not self._compiles(cell):
            return options | {"run_id": self._scoring(cell).run_id}
        # The table has rows for what is not compiled, if it is to be seen.
        return options | {"run_id": self._study.run_id, "score_before": False}

    def _order(self, cell: Cell, tracker: Tracker) -> Order:
        values = unmasked(cell.config) | {"executor": "in_process"}
        values["tracking"]["uri"] = tracker.uri
        node = Node.for_models(cell.config.local_models)
        return Order(values, Workbench(cell.config).data.digest, node, self._options(cell))

    def _compiled(self, cell: Cell, tracker: Tracker, failure: Exception | None) -> CellResult:
        """What a cell came to that was compiled in another process."""
        # A worker that died with its node's disk has left its run as if it were under way there.
        tracker.end_running(self._study.fingerprint(cell))
        kept = None if failure else self._kept(cell, tracker)
        if kept is None:
            lost = UserError("its run is in the journal of the worker that compiled it: `hop sync` there, or try again")
            return self._made(cell, tracker, failure or lost)
        if run := mlflow.active_run():  # the study's, which that process did not have open
            tracker.client.set_tag(kept.run_id, MLFLOW_PARENT_RUN_ID, run.info.run_id)
        return kept

    def _made(self, cell: Cell, tracker: Tracker, answered: Evaluation | Exception | None) -> CellResult:
        options = self._options(cell) | {"report": self._inner(cell)}
        try:
            if isinstance(answered, Exception):
                raise answered
            if self._compiles(cell):
                variant = compile_variant(cell.config, **options)
            else:
                variant = evaluate_variant(cell.config, answered=answered, **options)
            # As the store keeps them, so that the table is the same where the cell's scores are read from there.
            rows = [{"question": row.question.question} | row.scores for row in variant.after.rows]
            table = pd.DataFrame(rows).round(DECIMALS)
            return CellResult(cell, variant.run_id, self._figures(cell, variant.figures, table))
        except UserError as error:
            return self._failed(cell, tracker, line_without_secrets(error))
        except Exception as error:  # noqa: BLE001 - whatever a cell dies of, the others have their turn
            failure = f"{type(error).__name__}: {line_without_secrets(error)}"
            return self._failed(cell, tracker, failure, text_without_secrets(traceback.format_exc()))

    def _failed(self, cell: Cell, tracker: Tracker, failure: str, details: str = "") -> CellResult:
        kind = "compile" if self._compiles(cell) else "eval"
        run_id = tracker.fail(kind, self._name(cell), self._study.fingerprint(cell), failure, details)
        return CellResult(cell, run_id, failure=failure)

    def _figures(self, cell: Cell, metrics: dict[str, float], table: pd.DataFrame) -> Figures:
        """What the table has of a cell; of a program that was compiled to choose from, what the compile has as well."""
        if start := self._start(cell):
            made = {name: value for name, value in start.metrics.items() if name in SPENT or name.startswith("steps/")}
            metrics = made | metrics
        scores = dict.fromkeys([self._study.config.objective.name, *COLUMNS])
        seeds = self._study.seeds if cell.split == self._study.file.split else [cell.config.seed]
        intervals = estimates(table, list(scores), self._study.config.seed) if len(seeds) == 1 else {}
        return Figures(metrics, intervals, _by_question(table))


def _by_question(table: pd.DataFrame) -> pd.DataFrame:
    """The scores alone, by the question: its number and its words."""
    if table.empty:
        return table
    index = pd.Index([f"{number} {question}" for number, question in enumerate(table["question"])])
    return table.drop(columns=["question"]).select_dtypes("number").set_index(index)
