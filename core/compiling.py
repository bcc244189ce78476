"""Compiling variants: what an optimizer makes, with its scores, in one MLflow run."""

import contextlib
import hashlib
import io
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import dspy
import mlflow
from filelock import FileLock, Timeout

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.compiled import program_of
from hoptimizer.config import Config
from hoptimizer.eval.runner import Evaluation
from hoptimizer.models.failures import answered_or_ended
from hoptimizer.models.usage import UsageMeter
from hoptimizer.optimizers import CompileContext, Optimizer
from hoptimizer.programs import Ensemble, Program
from hoptimizer.scoring import score
from hoptimizer.tracing import traced
from hoptimizer.tracking import artifacts
from hoptimizer.tracking.compile_log import CompileLog
from hoptimizer.tracking.holding import identity
from hoptimizer.tracking.journal import keep_run
from hoptimizer.tracking.naming import FOLDED, variant_name
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.variants import Variant, labelled, state_of, tag_start
from hoptimizer.workbench import Workbench, use_cache

_log = logging.getLogger(__name__)


def compile_variant(
    config: Config,
    *,
    split: str = "dev",
    run_id: str | None = None,
    score_before: bool = True,
    name: str | None = None,
    fingerprint: str | None = None,
    report: Report = in_notebook,
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
        name: of the run; by default program, optimizer and language model.
        fingerprint: identifies the work to be continued; config, split and start by default.
        report: told about progress; shows it in a notebook by default.

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
    _log.info(labelled(bench.summary("train", "dev", split, run_id=run_id), name))
    start = f" from {run_id}" if run_id else ""
    compiling = _Compiling(bench, split, run_id, score_before)
    bench.check_lms()  # before an index is built and a run is made
    keep = partial(
        compiling.keep,
        name=name or variant_name(config, compiled=True),
        fingerprint=fingerprint or f"{config.digest} {bench.data.digest} {split}{start}",
    )
    return keep_run(config, keep, run_id)


@dataclass(frozen=True)
class _Made:
    """What a compile made: the program, its scores, those of what it started from, and the calls that took."""

    program: Program
    after: Evaluation
    before: Evaluation | None
    computed_calls: int


class _Compiling:
    """One compile. What it made is held, so that nothing is made again where one store fails and another keeps it.

    Args:
        bench: has the parts.
        split: what the program is scored on.
        run_id: the compiled variant to start from.
        score_before: whether to score what the compile starts from, too.
    """

    def __init__(self, bench: Workbench, split: str, run_id: str | None, score_before: bool) -> None:
        self._bench, self._split, self._run_id, self._score_before = bench, split, run_id, score_before
        self._trainset, self._scored = bench.data.split("train"), bench.data.split(split)
        self._log = CompileLog(bench.report)
        self._context: CompileContext | None = None
        self._made: _Made | None = None

    @cached_property
    def _optimizer(self) -> Optimizer:
        return self._bench.optimizer()

    def keep(self, tracker: Tracker, name: str, fingerprint: str) -> Variant:
        """The variant, kept as a run; an unfinished one with the same fingerprint is continued."""
        bench, config, log = self._bench, self._bench.config, self._log
        work = work_folder(config, fingerprint)
        context = self._context = self._context or self._checked(tracker, work)
        with (
            _alone(work),
            tracker.run("compile", name, fingerprint) as run,
            bench.active(work / "calls", judged=True, spread=True),
        ):
            artifacts.log_config(config, bench.data, compiled=True)
            artifacts.log_questions(bench.data, "train", self._trainset)
            questions = artifacts.log_questions(bench.data, self._split, self._scored)
            artifacts.hold_headlines(self._split, self._scored, config.objective.name)
            tag_start(self._run_id)
            log.open(tracker.uri, tracker.client, tracker.get(run.info.run_id))
            made = self._made = self._made or self._make(context)
            log.catch_up()
            if made.before:
                artifacts.log_evaluation(made.before, self._split, "before")
            steps, model_id = artifacts.log_variant(config, made.program, work, tracker.client)
            traces = traced(bench, tracker, run, made.after, model_id)
            links = artifacts.Links(model_id, questions, traces)
            artifacts.log_evaluation(made.after, self._split, "after", links, config.objective.name)
            # A compile that is resumed computes only what its first part did not.
            mlflow.log_metric(f"{FOLDED}computed_lm_calls", made.computed_calls)
        for lm in artifacts.tuned_lms(made.program):
            lm.kill()  # the next cell of a study may need the memory
        use_cache(config)
        shutil.rmtree(work, ignore_errors=True)  # what it held is in the run
        return Variant(run.info.run_id, config, True, self._split, made.after, made.before, steps, log.costs)

    def _checked(self, tracker: Tracker, work: Path) -> CompileContext:
        """The context of the compile, which is possible."""
        bench = self._bench
        program = program_of(bench, tracker, self._run_id)
        context = replace(context_of(bench, program), folder=work, listener=self._log)
        if isinstance(context.program, Ensemble):
            raise UserError(
                f"run {self._run_id!r}: no optimizer goes on from the programs of an ensemble; give another run"
            )
        with dspy.context(lm=bench.lms["default"]):
            self._optimizer.check(context)
        return context

    def _make(self, context: CompileContext) -> _Made:
        bench, program = self._bench, self._bench.config.program.name
        self._log.settle({f"lm_of.{step}": lm.model for step, lm in context.program.language_models().items()})
        bench.report(f"compiling {program} by {bench.config.optimizer.name}", 0, 0, "")
        compiled = _compiled(self._optimizer, context, self._log)
        before = None
        if self._score_before:
            stage = f"{program} {state_of(self._run_id)} on {self._split}"
            before = score(bench, context.program, self._scored, stage)
        after = score(bench, compiled, self._scored, f"{program} compiled on {self._split}")
        return _Made(compiled, after, before, dspy.cache.computed)


def context_of(bench: Workbench, program: Program) -> CompileContext:
    """What an optimizer is given, but for a folder and a listener.

    Args:
        bench: of the config.
        program: the program to start from.

    Raises:
        UserError: the data lack a split.
    """
    config = bench.config
    return CompileContext(
        program=program,
        trainset=bench.data.split("train"),
        devset=bench.data.split("dev"),
        corpus=bench.data.corpus,
        objective=replace(config.objective, judge=bench.lms.get("judge")),
        teacher_lm=bench.lms.get("teacher"),
        reflection_lm=bench.lms.get("reflection"),
        seed=config.seed,
        workers=config.workers,
        folder=Path(),
    )


def score_first(
    config: Config,
    split: str,
    n: int,
    tracker: Tracker,
    run_id: str | None = None,
    *,
    compiled_as: Config | None = None,
    report: Report = in_notebook,
) -> tuple[dict[str, float], bool]:
    """What the first questions of a split cost and score; no run is made of it, and nothing is compiled.

    Args:
        config: what to score.
        split: the questions.
        n: how many of them, at most.
        tracker: has the compiled variant.
        run_id: the compiled variant whose state the program gets.
        compiled_as: what the program will have been compiled with; ``None`` where it is scored as it is.
        report: told about progress.

    Returns:
        the figures, and whether the prompts were those that were asked for: of a program that will have been compiled,
        as far as its optimizer can tell without a call.

    Raises:
        UserError: a part of the config can't be had.
    """
    bench = Workbench(config, report)
    stage = f"{config.program.name} {state_of(run_id)} on {n} questions of {split}"
    with bench.active(judged=True):
        program, sketch = program_of(bench, tracker, run_id), None
        if compiled_as:
            made = bench if compiled_as == config else Workbench(compiled_as, report)
            source = program if made is bench else program_of(made, tracker, run_id)
            sketch = made.optimizer().sketch(context_of(made, source))
        if sketch:
            program.load_state(sketch.dump_state())
        figures = score(bench, program, bench.data.split(split)[:n], stage).metrics
    return figures, bool(sketch) or compiled_as is None


def work_folder(config: Config, fingerprint: str) -> Path:
    """Where a compile keeps what a later process resumes: its language model calls, examples and checkpoints.

    Args:
        config: says where its run is kept.
        fingerprint: identifies the work; the run has it as its tag ``hop.fingerprint``.
    """
    work = f"{identity(config.tracking.uri)} {config.experiment} {fingerprint}"
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
        log.record("spent", meter.spent.figures(), meter.spent.calls)
    objective = context.objective
    if objective.judge_failures or objective.metric_failures:
        unscored = {"by_judge": len(objective.judge_failures), "by_metric": len(objective.metric_failures)}
        log.record("unscored", unscored, 0)
    log.mark_winner(compiled.dump_state())
    return compiled


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
