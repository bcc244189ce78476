"""Scoring a program as a config says: in this process, or by the workers of a cluster."""

from collections.abc import Sequence

from hoptimizer.common.concurrency import run_async
from hoptimizer.common.progress import Report
from hoptimizer.compiled import program_of
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import Evaluation, EvaluationProgress, aevaluate
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.programs import Program
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.workbench import Workbench


def score(bench: Workbench, program: Program, questions: Sequence[Question], stage: str) -> Evaluation:
    """Score a program in this process.

    Args:
        bench: of the config.
        program: what is scored.
        questions: what it is asked.
        stage: what progress is told of.
    """
    return run_async(ascore(bench, program, questions, stage))


async def ascore(bench: Workbench, program: Program, questions: Sequence[Question], stage: str) -> Evaluation:
    """Like :func:`score`, from async code."""
    objective = bench.config.objective
    return await aevaluate(
        program,
        questions,
        workers=bench.config.workers,
        max_unanswered=bench.config.max_unanswered,
        progress=running(bench.report, stage, objective),
        judge=bench.lms.get("judge"),
        objective=objective,
    )


def score_variant(
    bench: Workbench, tracker: Tracker, run_id: str | None, questions: Sequence[Question], stage: str
) -> Evaluation:
    """Score a compiled variant, or an uncompiled program, by what the config's ``executor`` names.

    Args:
        bench: of the config.
        tracker: has the variant.
        run_id: the variant's, or ``None``.
        questions: what it is asked.
        stage: what progress is told of.
    """
    settings = bench.config.executor
    if not isinstance(settings, RayExecutor):
        return score(bench, program_of(bench, tracker, run_id), questions, stage)
    from hoptimizer.executors.answers import answering_workers
    from hoptimizer.executors.connection import connected
    from hoptimizer.executors.evaluation import Asked, aevaluate_on
    from hoptimizer.executors.worker import Worker

    state = tracker.load_state(run_id) if run_id else None
    asked = Asked(bench, questions, run_id, state, running(bench.report, stage, bench.config.objective))
    with connected(settings) as ray, answering_workers(ray, settings, Worker) as workers:
        return run_async(aevaluate_on(workers, asked, settings.tasks))


def forget_kept(bench: Workbench, run_id: str | None) -> None:
    """Remove what :func:`score_variant` has kept in case that it is killed, once a run has it.

    Args:
        bench: of the config.
        run_id: of the variant that was scored, or ``None``.
    """
    if isinstance(bench.config.executor, RayExecutor):
        from hoptimizer.executors.kept_rows import KeptRows

        KeptRows(bench, run_id).forget()


def running(report: Report, stage: str, objective: Objective) -> EvaluationProgress:
    """Progress of an evaluation as a report takes it, with the score so far."""

    def progress(done: int, total: int, scores: dict[str, float]) -> None:
        report(stage, done, total, f"{objective.label} {scores.get(objective.name, 0):.3f}")

    return progress
