"""Evaluations whose questions are answered by the workers of a Ray cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hoptimizer.compiled import variant_of
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import Evaluation, EvaluationProgress, QuestionResult, aevaluate_by
from hoptimizer.executors.kept_rows import KeptRows
from hoptimizer.executors.pool import Pool, Workers, WorkersDiedError
from hoptimizer.executors.task import Node, Task, call_limits, unmasked
from hoptimizer.workbench import Workbench


@dataclass(frozen=True)
class Asked:
    """What is asked on a cluster.

    Attributes:
        bench: of the config. Its data are read, and nothing else is made here.
        questions: of its data.
        run_id: the compiled variant that is asked, or ``None`` for an uncompiled program.
        state: that variant's.
        progress: called after each question.
    """

    bench: Workbench
    questions: Sequence[Question]
    run_id: str | None = None
    state: dict[str, Any] | None = None
    progress: EvaluationProgress | None = None


async def aevaluate_on(workers: Workers, asked: Asked, tasks: int, beside: int = 1) -> Evaluation:
    """Score a program whose questions are answered by workers, and keep each outcome as it comes.

    Args:
        workers: lends them.
        asked: what is asked.
        tasks: how many workers are to answer, at most; a model's ``max_concurrency`` may let fewer.
        beside: how many evaluations share the calls that may be under way at once.

    Raises:
        UserError: a worker lacks something, or has another version of it.
        ServiceError: workers die, or can't be started; or more questions than the config allows have no answer.
    """
    bench, config = asked.bench, asked.bench.config
    values = unmasked(config) | {"executor": "in_process"}
    kept = KeptRows(bench, asked.run_id)
    known = kept.read(asked.questions)
    left = len(asked.questions) - len(known)
    size = min(tasks, left, *(max(1, most // beside) for most in call_limits(values)))
    node = Node.for_models(config.local_models, computes=bool(config.local_models or config.retriever.encoders))
    variant = variant_of(asked.run_id) if asked.run_id else ""
    task = Task(bench.data.digest, node, asked.state, variant, sharing=max(size, 1) * beside)
    pool: Pool[QuestionResult] = Pool(workers, size, (values, task), share=-(-config.workers // max(size, 1)))

    async def answer(question: Question) -> QuestionResult:
        if row := known.get(question.id):
            return row
        try:
            row = await pool.ask(question)
        except WorkersDiedError as error:
            return QuestionResult(question, "", [], {}, [], str(error), is_answered=False)
        kept.keep(row)
        return replace(row, question=question)

    async with workers.head.needed(), pool:
        return await aevaluate_by(
            answer,
            asked.questions,
            workers=config.workers,
            progress=asked.progress,
            max_unanswered=config.max_unanswered,
        )
