"""Scored variants: a program, its state, its config and its scores in one MLflow run."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import mlflow
from mlflow.entities import Run

from hoptimizer.common.concurrency import run_async
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.compiled import program_of
from hoptimizer.config import Config
from hoptimizer.eval import Difference, statistics
from hoptimizer.eval.display.format import change, figure
from hoptimizer.eval.display.sheet import notebook
from hoptimizer.eval.runner import Evaluation
from hoptimizer.eval.showing import evaluation_sheets
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.scoring import ascore, forget_kept, score_variant
from hoptimizer.tracing import traced
from hoptimizer.tracking import artifacts
from hoptimizer.tracking.journal import keep_run
from hoptimizer.tracking.models import answers_as, link_model, model_of
from hoptimizer.tracking.naming import OF_UNCOMPILED, STARTED_FROM, params_of, variant_name
from hoptimizer.tracking.reading import SPENT
from hoptimizer.tracking.settings import UnknownRun
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.workbench import Workbench

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """A scored variant.

    Attributes:
        run_id: its MLflow run.
        config: what it was made from.
        compiled: whether an optimizer made it.
        split: what it was scored on.
        after: its scores.
        before: the scores on the same questions of what was compiled, where they were asked for.
        costs: of the compile, ``estimate`` and ``spent``: ``calls``, ``prompt_tokens``, ``completion_tokens``, ``usd``
            and ``seconds``; where runs of it could not be scored, ``unscored``: how many ``by_judge`` and
            ``by_metric``.
        steps: how well its small models do on dev, by the step: ``f1``, ``precision``, ``recall``,
            ``balanced_accuracy`` and ``n``; of those that write, ``f1`` and ``n``; of those that copy words,
            ``token_f1`` and ``n``, and of a labeler ``tag_f1`` and the ``recall``, ``precision`` and ``passages`` of
            its program.
    """

    run_id: str
    config: Config
    compiled: bool
    split: str
    after: Evaluation
    before: Evaluation | None = None
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    costs: dict[str, dict[str, float]] = field(default_factory=dict)

    @cached_property  # it resamples thousands of times
    def difference(self) -> Difference | None:
        """How much better it is than what it was compiled from, on the same questions, in what is maximized; ``None``
        where that was not scored."""
        if self.before is None:
            return None
        name = self.config.objective.name
        scores = [[row.scores.get(name, math.nan) for row in scored.rows] for scored in (self.before, self.after)]
        before, after = statistics.known_pairs(*scores)
        return statistics.compare(before, after, self.config.seed) if before else None

    @property
    def gain(self) -> str:
        """What compiling did, in one line; nothing where that was not scored."""
        if (found := self.difference) is None:
            return ""
        metric = self.config.objective.name
        chance = "" if found.p < statistics.CHANCE else ", no more than chance would give"
        chosen = "; compiling may choose by these questions: report the test split" if self.split == "dev" else ""
        return (
            f"{metric} {figure(metric, found.before.mean)} before, {figure(metric, found.after.mean)} compiled: "
            f"{change(metric, found.difference, found.low, found.high)}, paired over {found.n} questions, "
            f"95% interval, p = {found.p:.2g}{chance}{chosen}"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        program = self.config.program.name
        rows = {f"{program}, before compiling": self.before} if self.before else {}
        rows[f"{program}, compiled" if self.compiled else program] = self.after
        title = f"run {self.run_id} on {self.split}, n = {len(self.after.rows)}"
        scores, costs = evaluation_sheets(rows, title, self.config.objective.name)
        return notebook(replace(scores, note=". ".join(filter(None, [self.gain, scores.note]))), costs)

    @property
    def figures(self) -> dict[str, float]:
        """What tables have of it: its scores, those of its small models' steps, and what the compile has spent."""
        steps = {f"steps/{step}/{name}": value for step, scores in self.steps.items() for name, value in scores.items()}
        spent = self.costs.get("spent", {})
        return self.after.metrics | steps | {name: spent[key] * by for key, (name, by) in SPENT.items() if key in spent}

    def as_dict(self) -> dict[str, Any]:
        """What ``hop eval --json`` and ``hop compile --json`` print."""
        result = {"run_id": self.run_id, "n": len(self.after.rows), "metrics": self.after.metrics}
        if self.before:
            result |= {"before": self.before.metrics, "after": self.after.metrics, "steps": self.steps, **self.costs}
        if difference := self.difference:
            result["difference"] = {"metric": self.config.objective.name, **asdict(difference)}
        return result


def evaluate_variant(
    config: Config,
    *,
    split: str = "dev",
    run_id: str | None = None,
    name: str | None = None,
    fingerprint: str | None = None,
    report: Report = in_notebook,
    answered: Evaluation | None = None,
) -> Variant:
    """Score a program, and keep its scores as an MLflow run.

    Args:
        config: what to score, on which data, with which language models.
        split: the questions.
        run_id: the variant whose state the program gets; ``None`` scores the program uncompiled, and logs it as an
            MLflow model.
        name: of the run; by default program, optimizer and language model.
        fingerprint: identifies the work, so that an unfinished run of it is continued; by default none is.
        report: told about progress; shows it in a notebook by default.
        answered: the questions' results, where they were asked already, by :func:`answer_together`.

    Raises:
        UserError: a part of the config can't be had, or the run holds another program.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import evaluate_variant, load_config
        >>> words = ["data=atlas", "data.dev=10", "program.name=rag", "program.reader=none", "retriever=bm25"]
        >>> store = f"tracking.uri=sqlite:///{Path.cwd()}/mlflow.db"
        >>> variant = evaluate_variant(load_config(None, [*words, store]))
        >>> variant.split, variant.after.metrics["passages"]
        ('dev', 4.0)
    """
    bench = Workbench(config, report)
    _log.info(labelled(bench.summary(split, run_id=run_id), name))
    questions = bench.data.split(split)
    scored = f"{config.program.name} {state_of(run_id)}"
    evaluation = answered

    def keep(tracker: Tracker) -> Variant:
        nonlocal evaluation  # what was answered is kept in another store where the first one fails
        start = _start(tracker, run_id)
        compiled = run_id is not None and (start is None or tracker.is_compiled(start))
        called = name or variant_name(config, compiled=compiled)
        with bench.active(judged=True), tracker.run("eval", called, fingerprint) as run:
            artifacts.log_config(config, bench.data, compiled=compiled)
            dataset = artifacts.log_questions(bench.data, split, questions)
            tag_start(run_id, compiled=compiled)
            evaluation = evaluation or score_variant(bench, tracker, run_id, questions, f"{scored} on {split}")
            model_id = _model_of_scored(bench, tracker, run, run_id, start, compiled=compiled)
            links = artifacts.Links(model_id, dataset, traced(bench, tracker, run, evaluation, model_id))
            artifacts.log_evaluation(evaluation, split, "after", links, config.objective.name)
        forget_kept(bench, run_id)
        return Variant(run.info.run_id, config, compiled, split, evaluation)

    return keep_run(config, keep, run_id)


@dataclass(frozen=True)
class Scoring:
    """A program that is to be scored, as :func:`evaluate_variant` takes it.

    Attributes:
        config: what to score.
        split: the questions.
        run_id: the compiled variant whose state the program gets, or ``None``.
        report: told about progress.
    """

    config: Config
    split: str
    run_id: str | None = None
    report: Report = in_notebook


def answer_together(scorings: Sequence[Scoring], tracker: Tracker) -> list[Evaluation | Exception]:
    """Ask several programs their questions at the same time, where waiting for a server is what takes the time.

    Args:
        scorings: what is asked; their models of this process are in memory together.
        tracker: has the compiled variants among them.

    Returns:
        what each came to, or the exception that it ended with.
    """

    async def answer(scoring: Scoring) -> Evaluation:
        bench = Workbench(scoring.config, scoring.report)
        questions = bench.data.split(scoring.split)
        stage = f"{scoring.config.program.name} {state_of(scoring.run_id)} on {scoring.split}"
        with bench.active(judged=True):
            return await ascore(bench, program_of(bench, tracker, scoring.run_id), questions, stage)

    async def answer_all() -> list[Evaluation | BaseException]:
        return await asyncio.gather(*map(answer, scorings), return_exceptions=True)

    return [_not_ended(result) for result in run_async(answer_all())]


def _not_ended(result: Evaluation | BaseException) -> Evaluation | Exception:
    if isinstance(result, Evaluation | Exception):
        return result
    raise result


def labelled(summary: str, name: str | None) -> str:
    """What a run uses, after the name that its caller gave it, such as that of a study's cell."""
    return f"{name}: {summary}" if name else summary


def tag_start(run_id: str | None, *, compiled: bool = True) -> None:
    """Tag the active run with the one that has its program, and with whether that is compiled."""
    if run_id:
        mlflow.set_tag(STARTED_FROM, run_id)
        if not compiled:
            mlflow.set_tag(OF_UNCOMPILED, "true")


def _model_of_scored(
    bench: Workbench, tracker: Tracker, run: Run, run_id: str | None, start: Run | None, *, compiled: bool
) -> str | None:
    """The MLflow model of what a run has scored: a variant's own, or a new one where something else took a place in the
    variant, such as another language model, or where nothing was compiled.

    Args:
        bench: of the config.
        tracker: the store.
        run: the run, which is active.
        run_id: the variant's run, or ``None``.
        start: the same where the store has it.
        compiled: whether an optimizer made the program.

    Returns:
        the model's id; ``None`` where the store does not have the variant's.
    """
    config = bench.config
    if run_id is not None:
        made = model_of(tracker.client, start) if start else None
        if made is None:
            return None
        if answers_as(made, params_of(config, compiled=compiled)):
            return link_model(tracker.client, run.info.run_id, made)
    # What a cluster has answered was made there, and needs no index here.
    program = program_of(bench, tracker, run_id, searches=not isinstance(config.executor, RayExecutor))
    return artifacts.log_program(config, program, tracker.client, compiled=compiled)


def _start(tracker: Tracker, run_id: str | None) -> Run | None:
    """The run that has the program; ``None`` in a store that lacks it, such as a journal."""
    with contextlib.suppress(UnknownRun):
        return tracker.get(run_id) if run_id else None
    return None


def state_of(run_id: str | None) -> str:
    """Of which run a program is, as stages and names of runs have it."""
    return f"of {run_id[:8]}" if run_id else "uncompiled"
