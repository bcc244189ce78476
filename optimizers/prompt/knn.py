"""Demonstrations that depend on the question."""

import asyncio
import random
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import dspy
from dspy.utils.exceptions import DSPyError
from pydantic import Field

from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.format_check import check_format
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.few_shot import Count, Demonstrating, Positive, Share
from hoptimizer.optimizers.prompt.prefetch import without
from hoptimizer.optimizers.prompt.search import WorkEstimate
from hoptimizer.optimizers.teacher import check_threshold, teacher, teacher_settings
from hoptimizer.optimizers.teacher_runs import TeacherRuns
from hoptimizer.programs import Program
from hoptimizer.programs.neighbours import Neighbours


@dataclass(frozen=True, kw_only=True)
class KNNFewShot(Demonstrating):
    """Each question is shown with those train questions that are most like it (as ``dspy.KNNFewShot`` does).

    DSPy's runs the teacher on a question's neighbours when it is asked; here it runs on every train question once,
    when the program is compiled, and what comes of it is saved with the program. Where the teacher's run did not score
    well, the question's annotations are shown.

    Args:
        k: demonstrations per step.
        max_labeled_demos: demonstrations of the teacher.
        metric_threshold: the least score of a run that is demonstrated.
        encoder: makes the sentence vectors by which questions are alike.
    """

    k: Positive = 4
    max_labeled_demos: Count = 4
    metric_threshold: Share = 0.8
    encoder: Annotated[str, Field(min_length=1)] = "minilm"

    makes_candidates: ClassVar[bool] = False

    def check(self, context: CompileContext) -> None:
        super().check(context)
        check_threshold(context, self.metric_threshold)

    def work(self, context: CompileContext) -> WorkEstimate:
        return WorkEstimate(runs=len(context.trainset) + len(context.devset))

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        shown = asyncio.run(self._shown(context, trainset))
        program = context.program.deepcopy()
        for predictor in program.predictors():
            predictor.demos = []
        pool = [(example.question, demos) for example, demos in zip(trainset, shown, strict=True)]
        program.neighbours = Neighbours(self.k, self.encoder, pool)
        return program

    async def _shown(self, context: CompileContext, trainset: list[dspy.Example]) -> list[dict[str, dict[str, Any]]]:
        taught = dspy.LabeledFewShot(k=self.max_labeled_demos).compile(teacher(context), trainset=trainset)
        with dspy.context(**teacher_settings(context)):
            runs = TeacherRuns(dspy.settings.lm, context.workers)
            shown = await asyncio.gather(
                *(self._demonstrations(context, taught, runs, example) for example in trainset)
            )
            check_format(runs.made)
        return shown

    async def _demonstrations(
        self, context: CompileContext, taught: Program, runs: TeacherRuns, example: dspy.Example
    ) -> dict[str, dict[str, Any]]:
        """By the step, a call of the teacher's run if that scored well, else the annotated fields."""
        annotated = {name: _fields(example, predictor.signature) for name, predictor in taught.named_predictors()}
        try:
            run = await runs.make(without(taught, example), example.question)
        except DSPyError:
            return annotated
        # In a thread: a judge may have to be asked.
        if await asyncio.to_thread(context.objective, example, run.prediction, None) < self.metric_threshold:
            return annotated
        calls: dict[str, list[dict[str, Any]]] = {}
        for step, inputs, outputs in run.trace:
            calls.setdefault(step, []).append({"augmented": True, **inputs, **outputs})
        # A step that was taken several times shows one of them, whichever.
        draw = random.Random(f"{context.seed} {example.id}")
        return annotated | {name: draw.choice(some) for name, some in calls.items()}


def _fields(example: dspy.Example, signature: type[dspy.Signature]) -> dict[str, Any]:
    """What an annotated question knows of a step; nothing where it lacks an output."""
    known = {name: example[name] for name in signature.fields if name in example}
    return known if all(name in known for name in signature.output_fields) else {}
