"""Compiling and scoring variants: a program, its state, its config and its scores in one MLflow run."""

import contextlib
import hashlib
import io
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import dspy
import mlflow
from filelock import FileLock, Timeout

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.common.progress import Report, silent
from hoptimizer.compiled import program_of
from hoptimizer.config import Config
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import Evaluation, EvaluationProgress, evaluate
from hoptimizer.models.failures import answered_or_ended
from hoptimizer.models.usage import UsageMeter
from hoptimizer.optimizers import CompileContext, Optimizer
from hoptimizer.programs import Ensemble, Program
from hoptimizer.tracking import artifacts
from hoptimizer.tracking.compile_log import CompileLog
from hoptimizer.tracking.holding import absolute
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

    def as_dict(self) -> dict[str, Any]:
        """What ``hop eval --json`` and ``hop compile --json`` print."""
        result = {"run_id": self.run_id, "n": len(self.after.rows), "metrics": self.after.metrics}
        if self.before:
            result |= {"before": self.before.metrics, "after": self.after.metrics, "steps": self.steps, **self.costs}
        return result


def compile_variant(
    config: Config,
    *,
    split: str = "dev",
    run_id: str | None = None,
    score_before: bool = True,
    name: str | None = None,
    fingerprint: str | None = None,
    report: Report = silent,
) -> Variant:
    """Compile a program for a data set and keep it as an MLflow run.

    The same call continues a compile that was interrupted: its run is resumed, and every language model call
    that was finished comes from the cache.

    Args:
        config: what to compile, for which data, with which optimizer.
        split: what the program is scored on before and after.
        run_id: the compiled variant to start from, so that one optimizer goes on where another ended; by default the
            program is uncompiled.
        score_before: whether to score what the compile starts from, too.
        name: of the run; the program's and the optimizer's by default.
        fingerprint: identifies the work to be continued; config, split and start by default.
        report: told about progress.

    Raises:
        UserError: a part of the config can't be had: the data, the language model, the tracking store; or the run to
            start from holds another program.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import compile_variant, load_config
        >>> words = ["data=atlas", "data.train=4", "data.dev=1", "program=direct", "lm.default.max_tokens=8"]
        >>> store = f"tracking.uri=sqlite:///{Path.cwd()}/mlflow.db"
        >>> config = load_config(None, [*words, "optimizer=labeled_few_shot", store])
        >>> variant = compile_variant(config, score_before=False)
        >>> variant.compiled, len(variant.after.rows), 0 <= variant.after.metrics["f1"] <= 1
        (True, 1, True)
    """
    bench = Workbench(config, report, keeps_calls=True)
    _log.info(_labelled(bench.summary("train", "dev", split, run_id=run_id), name))
    trainset, scored = bench.data.split("train"), bench.data.split(split)
    name = name or f"{config.program.name} {config.optimizer.name}"
    start = f" from {run_id}" if run_id else ""
    fingerprint = fingerprint or f"{config.digest} {bench.data.digest} {split}{start}"
    tracker = Tracker(config.tracking.uri, config.experiment)
    work = work_folder(config, fingerprint)
    log = CompileLog(tracker.client, report)
    context = CompileContext(
        program=program_of(bench, tracker, run_id),
        trainset=trainset,
        devset=bench.data.split("dev"),
        corpus=bench.data.corpus,
        objective=replace(config.objective, judge=bench.lms.get("judge")),
        teacher_lm=bench.lms.get("teacher"),
        reflection_lm=bench.lms.get("reflection"),
        seed=config.seed,
        workers=config.workers,
        folder=work,
        listener=log,
    )
    if isinstance(context.program, Ensemble):
        raise UserError(f"run {run_id!r}: no optimizer goes on from the programs of an ensemble; give another run")
    optimizer = bench.optimizer()
    with dspy.context(lm=bench.lms["default"]):
        optimizer.check(context)
    with _alone(work), tracker.run("compile", name, fingerprint) as run, bench.active(work / "calls", judged=True):
        artifacts.log_config(config, bench.data)
        artifacts.log_questions(bench.data, "train", trainset)
        artifacts.log_questions(bench.data, split, scored)
        _tag_start(tracker, run_id)
        log.open(tracker.get(run.info.run_id))
        log.settle({f"lm_of.{step}": lm.model for step, lm in context.program.language_models().items()})
        report(f"compiling {config.program.name} by {config.optimizer.name}", 0, 0, "")
        compiled = _compiled(optimizer, context, log)
        before = None
        if score_before:
            before = _evaluate(bench, context.program, scored, f"{config.program.name} {_state(run_id)} on {split}")
            artifacts.log_evaluation(before, split, "before")
        after = _evaluate(bench, compiled, scored, f"{config.program.name} compiled on {split}")
        artifacts.log_evaluation(after, split, "after")
        steps = artifacts.log_variant(config, compiled, work)
        # A compile that is resumed computes only what its first part did not.
        mlflow.log_metric("computed_lm_calls", dspy.cache.computed)
    for lm in artifacts.tuned_lms(compiled):
        lm.kill()  # the next cell of a study may need the memory
    shutil.rmtree(work, ignore_errors=True)  # what it held is in the run
    return Variant(run.info.run_id, config, True, split, after, before, steps, log.costs)


def work_folder(config: Config, fingerprint: str) -> Path:
    """Where a compile keeps what a later process resumes: its language model calls, examples and checkpoints.

    Args:
        config: says where its run is kept.
        fingerprint: identifies the work; the run has it as its tag ``hop.fingerprint``.
    """
    work = f"{absolute(config.tracking.uri)} {config.experiment} {fingerprint}"
    return home() / "work" / hashlib.sha256(work.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Hold a piece of work, so that no other process resumes it meanwhile; after a kill the system releases it."""
    work.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(work.with_suffix(".lock"), blocking=False):
            yield
    except Timeout as error:
        raise UserError("this compile is under way in another process; wait for it, or stop it there") from error


def _compiled(optimizer: Optimizer, context: CompileContext, log: CompileLog) -> Program:
    """The compiled program, and what it took in the log."""
    meter = UsageMeter(lambda _: False, seconds=dspy.cache.seconds)
    with _quiet(), answered_or_ended(), dspy.context(meter=meter):
        compiled = optimizer.compile(context)
    if "spent" not in log.costs:  # searches have a meter of their own
        log.record("spent", asdict(meter.spent), meter.spent.calls)
    objective = context.objective
    if objective.judge_failures or objective.metric_failures:
        unscored = {"by_judge": len(objective.judge_failures), "by_metric": len(objective.metric_failures)}
        log.record("unscored", unscored, 0)
    log.mark_winner(compiled.dump_state())
    return compiled


def evaluate_variant(
    config: Config,
    *,
    split: str = "dev",
    run_id: str | None = None,
    name: str | None = None,
    fingerprint: str | None = None,
    report: Report = silent,
) -> Variant:
    """Score a program, and keep its scores as an MLflow run.

    Args:
        config: what to score, on which data, with which language models.
        split: the questions.
        run_id: the compiled variant whose state the program gets; ``None`` scores the program uncompiled.
        name: of the run; says by default what is scored.
        fingerprint: identifies the work, so that an unfinished run of it is continued; by default none is.
        report: told about progress.

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
    _log.info(_labelled(bench.summary(split, run_id=run_id), name))
    questions = bench.data.split(split)
    tracker = Tracker(config.tracking.uri, config.experiment)
    scored = f"{config.program.name} {_state(run_id)}"
    with bench.active(judged=True), tracker.run("eval", name or scored, fingerprint) as run:
        artifacts.log_config(config, bench.data)
        artifacts.log_questions(bench.data, split, questions)
        _tag_start(tracker, run_id)
        program = program_of(bench, tracker, run_id)
        evaluation = _evaluate(bench, program, questions, f"{scored} on {split}")
        artifacts.log_evaluation(evaluation, split, "after")
    return Variant(run.info.run_id, config, run_id is not None, split, evaluation)


def _labelled(summary: str, name: str | None) -> str:
    """What a run uses, after the name that its caller gave it, such as that of a study's cell."""
    return f"{name}: {summary}" if name else summary


def _tag_start(tracker: Tracker, run_id: str | None) -> None:
    """Tag the active run with the one that has its program."""
    if run_id:
        tracker.tag("variant", run_id)


def _state(run_id: str | None) -> str:
    return f"of {run_id[:8]}" if run_id else "uncompiled"


def _evaluate(bench: Workbench, program: Program, questions: Sequence[Question], stage: str) -> Evaluation:
    objective = bench.config.objective
    return evaluate(
        program,
        questions,
        workers=bench.config.workers,
        max_unanswered=bench.config.max_unanswered,
        progress=_running(bench.report, stage, objective),
        judge=bench.lms.get("judge"),
        objective=objective,
    )


def _running(report: Report, stage: str, objective: Objective) -> EvaluationProgress:
    def progress(done: int, total: int, scores: dict[str, float]) -> None:
        report(stage, done, total, f"{objective.label} {scores.get(objective.name, 0):.3f}")

    return progress


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DSPy's optimizers print and log; what they say is in the run."""
    logger = logging.getLogger("dspy")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
