"""Demonstrations that depend on the question."""

import asyncio
import random
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.options import Positive
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.format_check import FormatCheck
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.few_shot import Count, Demonstrating, Share, labeled
from hoptimizer.optimizers.prompt.prefetch import without
from hoptimizer.optimizers.prompt.search import WorkEstimate
from hoptimizer.optimizers.teacher import check_threshold, teacher, teacher_settings
from hoptimizer.optimizers.teacher_runs import TeacherRuns
from hoptimizer.programs import Program
from hoptimizer.programs.neighbours import Neighbours
from hoptimizer.programs.program import FAILURES


@dataclass(frozen=True, kw_only=True)
class KNNFewShot(Demonstrating):
    """Demonstrations from the train questions that are most similar to each question (as in ``dspy.KNNFewShot``).

    DSPy's optimizer runs the teacher on a question's neighbours when the question is asked. Here the teacher runs once
    on every train question when the program is compiled, and its runs are saved with the program. Where a run did not
    score well, the question's annotations are shown.

    Args:
        k: the number of demonstrations per step.
        max_labeled_demos: the number of labeled demonstrations per step of the teacher.
        metric_threshold: the least score of a run that is demonstrated.
        encoder: the encoder of the sentence vectors that questions are compared by.
    """

    k: Positive = 4
    max_labeled_demos: Count = 4
    metric_threshold: Share = 0.8
    encoder: Annotated[str, Field(min_length=1)] = "minilm"

    makes_candidates: ClassVar[bool] = False

    @property
    def shots(self) -> int:
        return self.k

    def check(self, context: CompileContext) -> None:
        super().check(context)
        check_threshold(context, self.metric_threshold)

    def work(self, context: CompileContext) -> WorkEstimate:
        return WorkEstimate(runs=len(context.trainset) + len(context.devset))

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        shown = run_async(self._shown(context, trainset))
        program = context.program.deepcopy()
        for predictor in program.predictors():
            predictor.demos = []
        pool = [(example.question, demos) for example, demos in zip(trainset, shown, strict=True)]
        program.neighbours = Neighbours(self.k, self.encoder, pool)
        return program

    async def _shown(self, context: CompileContext, trainset: list[dspy.Example]) -> list[dict[str, dict[str, Any]]]:
        taught = labeled(teacher(context), trainset, self.max_labeled_demos)
        with dspy.context(**teacher_settings(context)):
            runs = TeacherRuns(dspy.settings.lm, context.workers)
            checked = FormatCheck([example.id for example in trainset])
            shown = await all_of(self._demonstrations(context, taught, runs, checked, example) for example in trainset)
        return shown

    async def _demonstrations(
        self, context: CompileContext, taught: Program, runs: TeacherRuns, checked: FormatCheck, example: dspy.Example
    ) -> dict[str, dict[str, Any]]:
        """A demonstration by step: a call of the teacher's run if the run scored well, else the annotated fields."""
        annotated = {name: _fields(example, predictor.signature) for name, predictor in taught.named_predictors()}
        try:
            run = await checked.run(runs.make(without(taught, example), **example.inputs()), example.id)
        except FAILURES:
            return annotated
        # Scored in a thread, since the objective may have to ask a judge.
        if await asyncio.to_thread(context.objective, example, run.prediction, None) < self.metric_threshold:
            return annotated
        calls: dict[str, list[dict[str, Any]]] = {}
        for step, inputs, outputs in run.trace:
            calls.setdefault(step, []).append({"augmented": True, **inputs, **outputs})
        # A step that was taken several times shows a random one of its calls.
        draw = random.Random(f"{context.seed} {example.id}")
        return annotated | {name: draw.choice(some) for name, some in calls.items()}


def _fields(example: dspy.Example, signature: type[dspy.Signature]) -> dict[str, Any]:
    """The fields of a step that an annotated question has a value for; none where it lacks an output."""
    known = {name: example[name] for name in signature.fields if name in example}
    return known if all(name in known for name in signature.output_fields) else {}
