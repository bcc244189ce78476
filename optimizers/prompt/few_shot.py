"""Demonstrations from annotations, and from the runs of a teacher."""

import math
import random
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.optimizers.prompt.bootstrap_loops import Loop
from hoptimizer.optimizers.prompt.prefetch import WAVE, prefetch
from hoptimizer.optimizers.prompt.search import Search, Work, finished
from hoptimizer.optimizers.teacher import check_threshold, teacher_settings
from hoptimizer.programs import Program

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Demonstrating(Search):
    """A search that shows annotated questions.

    Args:
        distractors: passages among a demonstration's that do not support its answer (IRCoT's M).
    """

    distractors: Count = 1

    def trainset(self, job: Job) -> list[dspy.Example]:
        """The train questions with a value for each field of the steps, in random order."""
        examples = annotate(
            job.trainset, job.corpus, job.program.retriever, distractors=self.distractors, seed=job.seed
        )
        random.Random(job.seed).shuffle(examples)
        return examples


@dataclass(frozen=True, kw_only=True)
class LabeledFewShot(Demonstrating):
    """Demonstrations straight from the annotations of the train split (``dspy.LabeledFewShot``).

    Args:
        k: demonstrations a step.
    """

    k: Positive = 4

    makes_candidates: ClassVar[bool] = False

    def work(self, job: Job) -> Work:
        return Work(runs=0)

    def search(self, job: Job, ledger: Ledger) -> Program:
        return finished(job, dspy.LabeledFewShot(k=self.k).compile(job.program, trainset=self.trainset(job)))


@dataclass(frozen=True, kw_only=True)
class Bootstrapping(Demonstrating):
    """A search that shows the runs of a teacher that scored well.

    The teacher is the program with labeled demonstrations, on ``lm.teacher`` where the config has one. Its runs are
    made concurrently ahead of DSPy's sequential loops, which then find them made.

    Args:
        max_bootstrapped_demos: demonstrations from the teacher's runs, a step, at most.
        max_labeled_demos: demonstrations of the teacher; the compiled steps are filled up to so many with labeled
            ones.
        metric_threshold: the least score of a run that is demonstrated.
    """

    max_bootstrapped_demos: Positive = 4
    max_labeled_demos: Count = 4
    metric_threshold: Share = 0.8

    def check(self, job: Job) -> None:
        super().check(job)
        check_threshold(job, self.metric_threshold)

    @property
    def least(self) -> float:
        """The least score that DSPy is told; 0 would be none to it, and a score below 0 a good one."""
        return self.metric_threshold or sys.float_info.min

    def loop(self, trainset: list[dspy.Example]) -> Loop:
        """One bootstrap by DSPy."""
        return Loop(trainset, self.max_bootstrapped_demos, self.max_labeled_demos)

    def options(self, job: Job) -> dict[str, Any]:
        """What all of DSPy's bootstrapping optimizers are constructed with."""
        return {
            "metric": job.objective,
            "metric_threshold": self.least,
            "teacher_settings": teacher_settings(job),
            "max_bootstrapped_demos": self.max_bootstrapped_demos,
            "max_labeled_demos": self.max_labeled_demos,
        }

    def bootstrap_runs(self, job: Job) -> int:
        """Runs of the teacher in one bootstrap, if one in four scores well; they are made in waves."""
        waves = math.ceil(4 * self.max_bootstrapped_demos / WAVE)
        return min(len(job.trainset), waves * WAVE)


@dataclass(frozen=True, kw_only=True)
class BootstrapFewShot(Bootstrapping):
    """Demonstrations from the runs of a teacher that scored well (``dspy.BootstrapFewShot``)."""

    makes_candidates: ClassVar[bool] = False

    def work(self, job: Job) -> Work:
        return Work(runs=self.bootstrap_runs(job))

    def search(self, job: Job, ledger: Ledger) -> Program:
        trainset = self.trainset(job)
        taught = prefetch(job, [self.loop(trainset)], self.least)
        optimizer = dspy.BootstrapFewShot(**self.options(job))
        return finished(job, optimizer.compile(job.program, teacher=taught, trainset=trainset))
