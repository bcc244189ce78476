"""Conversations that a language model is fine-tuned on."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import dspy

from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.lm import build_adapter
from hoptimizer.models.settings import PromptFormat
from hoptimizer.optimizers.format_check import FormatCheck
from hoptimizer.optimizers.labels.annotations import Unannotated
from hoptimizer.optimizers.labels.examples import TrainingExample
from hoptimizer.optimizers.labels.labelling import PendingExample, collect
from hoptimizer.optimizers.labels.oracle import StepExample, replay
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.teacher import teacher, teacher_settings
from hoptimizer.optimizers.teacher_runs import TeacherRuns

StepConversation = dict[str, Any]
"""A conversation as ``messages``, the last of which the model writes, and the ``step`` that it belongs to."""

Take = Callable[[Question], Awaitable[list[StepExample]]]
"""A function that takes the steps of a question; it gives none where there is nothing to learn from them."""


def conversations(
    context: CompileContext, split: str, questions: Sequence[Question], take: Take, lm: dspy.LM
) -> list[StepConversation]:
    """The conversations of a split's questions, written to the context's folder as they are made.

    A question whose steps can't be taken is left out.

    Args:
        context: the compile.
        split: ``train`` or ``dev``.
        questions: the questions of the split.
        take: takes the steps of a question.
        lm: the language model whose prompt format the conversations have.

    Raises:
        UserError: a language model can't be used.
    """
    pending = [PendingExample(dict(one.asked), partial(_label, context, one, take, lm)) for one in questions]
    stage = f"lm: examples from {split}"
    file = context.folder / f"lm-{split}.jsonl"
    kept = collect(
        pending, file, context.workers, lambda done, total: context.listener.progress(stage, done, total, "")
    )
    return [row for example in kept if isinstance(example.output, list) for row in example.output]


def replayed(context: CompileContext, steps: Collection[str]) -> Take:
    """A function that takes a question's steps as the data set's annotations say.

    Args:
        context: the compile; its program takes the other steps as it is.
        steps: the names of the annotated steps.
    """
    return lambda question: replay(context.program, question, context.corpus, steps)


def bootstrapped(
    context: CompileContext,
    questions: Sequence[Question],
    steps: Collection[str],
    prompt_format: PromptFormat | None,
    threshold: float,
) -> Take:
    """A function that takes a question's steps from a teacher's run, if that scored well.

    The teacher is the program, on the teacher's language model where there is one. The function raises ``UserError``
    if the teacher keeps to the format in none of its first 16 runs.

    Args:
        context: the compile.
        questions: all questions that the teacher will be asked.
        steps: the names of the steps to learn.
        prompt_format: the prompt format of local models, unless the program sets one; ``None`` for that of each.
        threshold: the least score of a run that is learned from.
    """
    taught = teacher(context)
    taught.prompt_format = taught.prompt_format or prompt_format
    runs = TeacherRuns(context.teacher_lm or dspy.settings.lm, context.workers)
    format_check = FormatCheck([question.id for question in questions])

    async def take(question: Question) -> list[StepExample]:
        with dspy.context(**teacher_settings(context)):
            run = await format_check.run(runs.make(taught, **question.asked), question.id)
        if any(record.failure for record in run.prediction.steps):
            return []
        # Scored in a thread, since the objective may have to ask a judge.
        if await asyncio.to_thread(context.objective, question.to_dspy(), run.prediction) < threshold:
            return []
        return [
            StepExample(step, inputs, {name: outputs[name] for name in getattr(taught, step).signature.output_fields})
            for step, inputs, outputs in run.trace
            if step in steps
        ]

    return take


async def _label(context: CompileContext, question: Question, take: Take, lm: dspy.LM) -> TrainingExample | None:
    try:
        taken = await take(question)
    except Unannotated:
        return None
    with dspy.context(lm=lm):
        rows = [_row(context, one) for one in taken]
    return TrainingExample(dict(question.asked), rows) if rows else None


def _row(context: CompileContext, one: StepExample) -> StepConversation:
    signature = getattr(context.program, one.step).signature
    return {"step": one.step, **build_adapter().format_finetune_data(signature, [], one.inputs, one.outputs)}
