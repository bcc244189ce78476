"""The conversations that a language model is fine-tuned on."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.failures import SYSTEMIC
from hoptimizer.models.lm import build_adapter
from hoptimizer.models.settings import Layout
from hoptimizer.optimizers.labels.examples import Example
from hoptimizer.optimizers.labels.labelling import Wanted, collect
from hoptimizer.optimizers.labels.oracle import Taken, Unannotated, replay
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.optimizers.prompt.prefetch import Trial
from hoptimizer.optimizers.teacher import teacher, teacher_settings
from hoptimizer.optimizers.teacher_runs import Runs

Row = dict[str, Any]
"""A conversation's ``messages``, the last of which is the model's, and the ``step`` that has it."""

Take = Callable[[Question], Awaitable[list[Taken]]]
"""How the steps of a question are taken; no steps where there is nothing to learn from them."""


def conversations(job: Job, split: str, questions: Sequence[Question], take: Take, lm: dspy.LM) -> list[Row]:
    """The conversations of a split's questions, kept in the job's folder as they are made.

    A question whose steps can't be taken is left out.

    Args:
        job: the compile.
        split: ``train`` or ``dev``.
        questions: of the split.
        take: see there.
        lm: as this one will be asked, the conversations are laid out.

    Raises:
        UserError: a language model can't be used.
    """
    wanted = [Wanted({"question": one.question}, partial(_label, job, one, take, lm)) for one in questions]
    stage = f"lm: examples from {split}"
    file = job.folder / f"lm-{split}.jsonl"
    kept = collect(wanted, file, job.workers, lambda done, total: job.report(stage, done, total, ""))
    return [row for example in kept if isinstance(example.output, list) for row in example.output]


def replayed(job: Job, steps: Collection[str]) -> Take:
    """Steps as the data set's annotations say.

    Args:
        job: its program takes the other steps as ever.
        steps: the annotated ones.
    """
    return lambda question: replay(job.program, question, job.corpus, steps)


def bootstrapped(
    job: Job, questions: Sequence[Question], steps: Collection[str], layout: Layout, threshold: float
) -> Take:
    """Steps of a teacher's runs that scored well: the program, on the teacher's language model where there is one.

    A teacher is given up that can't keep to the format in any of its first 16 runs.

    Args:
        job: the compile.
        questions: all that it will be asked.
        steps: what to learn.
        layout: how local models are written to, where the program does not say.
        threshold: the least score.
    """
    taught = teacher(job)
    taught.layout = taught.layout or layout
    runs = Runs(job.teacher_lm or dspy.settings.lm, job.workers)
    trial = Trial([question.id for question in questions])

    async def take(question: Question) -> list[Taken]:
        with dspy.context(**teacher_settings(job)):
            run = await trial.run(runs.make(taught, question.question), question.id)
        if any(record.failure for record in run.prediction.steps):
            return []
        # In a thread: a judge may have to be asked.
        if await asyncio.to_thread(job.objective, question.to_dspy(), run.prediction) < threshold:
            return []
        return [
            Taken(step, inputs, {name: outputs[name] for name in getattr(taught, step).signature.output_fields})
            for step, inputs, outputs in run.trace
            if step in steps
        ]

    return take


async def _label(job: Job, question: Question, take: Take, lm: dspy.LM) -> Example | None:
    try:
        taken = await take(question)
    except Unannotated:
        return None
    except DSPyError as error:
        if isinstance(error, SYSTEMIC) or isinstance(error.__cause__, UserError):
            raise
        return None
    with dspy.context(lm=lm):
        rows = [_row(job, one) for one in taken]
    return Example({"question": question.question}, rows) if rows else None


def _row(job: Job, one: Taken) -> Row:
    signature = getattr(job.program, one.step).signature
    return {"step": one.step, **build_adapter().format_finetune_data(signature, [], one.inputs, one.outputs)}
