"""Demonstrations from annotations and from the runs of a teacher."""

import math
import random
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.reading_adapters import choices
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.format_check import WAVE
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.bootstrap_loops import BootstrapLoop
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import PROBE, Search, WorkEstimate, finished
from hoptimizer.optimizers.teacher import check_threshold, teacher_settings
from hoptimizer.programs import Program

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Demonstrating(Search):
    """A search whose demonstrations include annotated questions.

    Args:
        distractors: the number of a demonstration's passages that do not support its answer (IRCoT's M).
    """

    distractors: Count = 1

    @property
    @abstractmethod
    def shots(self) -> int:
        """The number of demonstrations per step that the compiled program has, if there are so many."""

    def sketch(self, context: CompileContext) -> Program:
        return labeled(context.program, self.trainset(context), self.shots)

    def trainset(self, context: CompileContext) -> list[dspy.Example]:
        """The train questions with a value for each field of the steps, in random order.

        Args:
            context: the compile.
        """
        examples = annotate(
            context.trainset, context.corpus, context.program.retriever, distractors=self.distractors, seed=context.seed
        )
        random.Random(context.seed).shuffle(examples)
        return examples


def labeled(program: Program, examples: list[dspy.Example], k: int) -> Program:
    """A program with demonstrations taken directly from annotations (``dspy.LabeledFewShot``).

    DSPy draws k examples whether or not they have the outputs of a step. Here others that have stand in for the rest.
    Nor does it look at what they show: four that all judge "no" teach a model to say nothing else. Of a step that
    chooses, such as between "yes" and "no", each choice is shown in turn, as far as examples have it.

    Args:
        program: the program.
        examples: the annotated questions, in the order in which they stand in.
        k: the number of demonstrations per step, if so many examples have its outputs.
    """
    compiled: Program = dspy.LabeledFewShot(k=k).compile(program, trainset=examples)
    for predictor in compiled.predictors():
        drawn = predictor.demos
        others = (example for example in examples if example not in drawn)
        outputs = predictor.signature.output_fields.keys()
        whole = (demo for demo in chain(drawn, others) if outputs <= set(demo.keys()))
        predictor.demos = list(islice(_in_turn(whole, tuple(choices(predictor.signature))), k))
    return compiled


def _in_turn(demos: Iterable[dspy.Example], fields: tuple[str, ...]) -> Iterator[dspy.Example]:
    """The demonstrations, one of each choice before the next of any."""
    by_choice: dict[tuple[Any, ...], list[dspy.Example]] = {}
    for demo in demos:
        by_choice.setdefault(tuple(demo[field] for field in fields), []).append(demo)
    return (demo for turn in zip_longest(*by_choice.values()) for demo in turn if demo is not None)


@dataclass(frozen=True, kw_only=True)
class LabeledFewShot(Demonstrating):
    """Demonstrations taken directly from the annotations of the train split (``dspy.LabeledFewShot``).

    Args:
        k: the number of demonstrations per step.
    """

    k: Positive = 4

    makes_candidates: ClassVar[bool] = False

    @property
    def shots(self) -> int:
        return self.k

    def work(self, context: CompileContext) -> WorkEstimate:
        formats = len(self.prompt_formats) if is_local(dspy.settings.lm) else 0
        if formats > 1:  # the compiled program is the one that was best when the format was chosen
            return WorkEstimate(runs=0)
        # What is asked for the estimate has the prompts of the compiled program, unless it gets a format of its own.
        return WorkEstimate(runs=len(context.devset) if formats else max(0, len(context.devset) - PROBE))

    def search(self, context: SearchContext) -> Program:
        compiled = labeled(context.program, self.trainset(context), self.k)
        steps = ", ".join(name for name, _ in compiled.named_predictors())
        if steps and not any(predictor.demos for predictor in compiled.predictors()):
            raise UserError(
                f"optimizer=labeled_few_shot: no train question has what {steps} would show, such as hops or a "
                "rationale; take bootstrap_few_shot, whose demonstrations are runs"
            )
        return finished(context, compiled)


@dataclass(frozen=True, kw_only=True)
class Bootstrapping(Demonstrating):
    """A search whose demonstrations come from the runs of a teacher that scored well.

    The teacher is the program with labeled demonstrations, on ``lm.teacher`` where the config names one. Its runs are
    made concurrently before DSPy's sequential loops, which then need not wait for them.

    Args:
        max_bootstrapped_demos: the most demonstrations per step from the teacher's runs.
        max_labeled_demos: the number of labeled demonstrations per step of the teacher; labeled demonstrations also
            fill the compiled steps up to this number.
        metric_threshold: the least score of a run that is demonstrated.
    """

    max_bootstrapped_demos: Positive = 4
    max_labeled_demos: Count = 4
    metric_threshold: Share = 0.8

    @property
    def shots(self) -> int:
        return max(self.max_bootstrapped_demos, self.max_labeled_demos)

    def check(self, context: CompileContext) -> None:
        super().check(context)
        check_threshold(context, self.metric_threshold)

    @property
    def least(self) -> float:
        """The ``metric_threshold`` that DSPy is given, which must be above 0.

        DSPy takes 0 for no threshold, and would then accept a score below 0.
        """
        return self.metric_threshold or sys.float_info.min

    def loop(self, trainset: list[dspy.Example]) -> BootstrapLoop:
        """The bootstrap loop that DSPy runs with these settings.

        Args:
            trainset: the train questions, in the order in which the loop goes through them.
        """
        return BootstrapLoop(trainset, self.max_bootstrapped_demos, self.max_labeled_demos)

    def options(self, context: CompileContext) -> dict[str, Any]:
        """The constructor arguments that all of DSPy's bootstrapping optimizers share.

        Args:
            context: the compile.
        """
        return {
            "metric": context.objective,
            "metric_threshold": self.least,
            "teacher_settings": teacher_settings(context),
            "max_bootstrapped_demos": self.max_bootstrapped_demos,
            "max_labeled_demos": self.max_labeled_demos,
        }

    def bootstrap_runs(self, context: CompileContext) -> int:
        """An estimate of the teacher's runs in one bootstrap, in whole waves, if one in four scores well.

        Args:
            context: the compile.
        """
        waves = math.ceil(4 * self.max_bootstrapped_demos / WAVE)
        return min(len(context.trainset), waves * WAVE)


@dataclass(frozen=True, kw_only=True)
class BootstrapFewShot(Bootstrapping):
    """Demonstrations from the runs of a teacher that scored well (``dspy.BootstrapFewShot``)."""

    makes_candidates: ClassVar[bool] = False

    def work(self, context: CompileContext) -> WorkEstimate:
        return WorkEstimate(runs=self.bootstrap_runs(context) + len(context.devset))

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        taught = prefetch(context, [self.loop(trainset)], self.least)
        optimizer = dspy.BootstrapFewShot(**self.options(context))
        return finished(context, optimizer.compile(context.program, teacher=taught, trainset=trainset))
