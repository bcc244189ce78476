"""DSPy's few-shot optimizers: labeled, bootstrapped, and random search over bootstrapped ones."""

import random
from typing import Annotated

import dspy
from pydantic import Field

from hoptimizer.models.settings import Layout
from hoptimizer.optimizers.annotate import annotate
from hoptimizer.optimizers.job import Job, Optimizer
from hoptimizer.optimizers.layout import LAYOUTS, choose_layout
from hoptimizer.optimizers.loops import Loop, random_search_loops
from hoptimizer.optimizers.prefetch import prefetch
from hoptimizer.programs import Program

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def _trainset(job: Job, distractors: int) -> list[dspy.Example]:
    examples = annotate(job.trainset, job.corpus, job.program.retriever, distractors=distractors, seed=job.seed)
    random.Random(job.seed).shuffle(examples)
    return examples


class LabeledFewShot(Optimizer):
    """Demonstrations straight from the annotations of the train split (``dspy.LabeledFewShot``).

    Args:
        k: demonstrations a step.
        distractors: passages among a demonstration's that do not support its answer (IRCoT's M).
        layouts: layouts of prompts that are tried on dev, on local language models.
    """

    def __init__(self, k: Positive = 4, distractors: Count = 1, layouts: tuple[Layout, ...] = LAYOUTS) -> None:
        self.k = k
        self.distractors = distractors
        self.layouts = layouts

    def compile(self, job: Job) -> Program:
        job = choose_layout(job, self.layouts)
        optimizer = dspy.LabeledFewShot(k=self.k)
        return optimizer.compile(job.program, trainset=_trainset(job, self.distractors))


class BootstrapFewShot(Optimizer):
    """Demonstrations from the runs of a teacher that scored well (``dspy.BootstrapFewShot``).

    The teacher is the program with labeled demonstrations, on ``lm.teacher`` where the config has one. Its runs are
    made concurrently ahead of DSPy's sequential loop, which then finds them in the cache.

    Args:
        max_bootstrapped_demos: demonstrations from the teacher's runs, a step, at most.
        max_labeled_demos: demonstrations of the teacher; the compiled steps are filled up to so many with labeled
            ones.
        metric_threshold: the least score of a run that is demonstrated.
        distractors: as for :class:`LabeledFewShot`.
        layouts: as for :class:`LabeledFewShot`.
    """

    def __init__(
        self,
        max_bootstrapped_demos: Positive = 4,
        max_labeled_demos: Count = 4,
        metric_threshold: Share = 0.8,
        distractors: Count = 1,
        layouts: tuple[Layout, ...] = LAYOUTS,
    ) -> None:
        self.max_bootstrapped_demos = max_bootstrapped_demos
        self.max_labeled_demos = max_labeled_demos
        self.metric_threshold = metric_threshold
        self.distractors = distractors
        self.layouts = layouts

    def compile(self, job: Job) -> Program:
        job = choose_layout(job, self.layouts)
        trainset = _trainset(job, self.distractors)
        loop = Loop(trainset, self.max_bootstrapped_demos, self.max_labeled_demos)
        teacher = prefetch(job, [loop], self.metric_threshold)
        optimizer = dspy.BootstrapFewShot(
            metric=job.objective,
            metric_threshold=self.metric_threshold,
            teacher_settings={"lm": job.teacher_lm} if job.teacher_lm else {},
            max_bootstrapped_demos=self.max_bootstrapped_demos,
            max_labeled_demos=self.max_labeled_demos,
        )
        return optimizer.compile(job.program, teacher=teacher, trainset=trainset)


class BootstrapRandomSearch(Optimizer):
    """The best on dev of several bootstrapped programs (``dspy.BootstrapFewShotWithRandomSearch``).

    The candidates are the program without demonstrations, with labeled ones, with the first ones that can be
    bootstrapped, and ``num_candidate_programs`` with random ones.

    Args:
        num_candidate_programs: random candidates.
        max_bootstrapped_demos: as for :class:`BootstrapFewShot`.
        max_labeled_demos: as for :class:`BootstrapFewShot`.
        metric_threshold: as for :class:`BootstrapFewShot`.
        distractors: as for :class:`LabeledFewShot`.
        layouts: as for :class:`LabeledFewShot`.
    """

    def __init__(
        self,
        num_candidate_programs: Count = 4,
        max_bootstrapped_demos: Positive = 4,
        max_labeled_demos: Count = 4,
        metric_threshold: Share = 0.8,
        distractors: Count = 1,
        layouts: tuple[Layout, ...] = LAYOUTS,
    ) -> None:
        self.num_candidate_programs = num_candidate_programs
        self.max_bootstrapped_demos = max_bootstrapped_demos
        self.max_labeled_demos = max_labeled_demos
        self.metric_threshold = metric_threshold
        self.distractors = distractors
        self.layouts = layouts

    def compile(self, job: Job) -> Program:
        job = choose_layout(job, self.layouts)
        trainset = _trainset(job, self.distractors)
        loops = random_search_loops(
            trainset, self.max_bootstrapped_demos, self.max_labeled_demos, self.num_candidate_programs
        )
        teacher = prefetch(job, loops, self.metric_threshold)
        optimizer = dspy.BootstrapFewShotWithRandomSearch(
            metric=job.objective,
            metric_threshold=self.metric_threshold,
            teacher_settings={"lm": job.teacher_lm} if job.teacher_lm else {},
            max_bootstrapped_demos=self.max_bootstrapped_demos,
            max_labeled_demos=self.max_labeled_demos,
            num_candidate_programs=self.num_candidate_programs,
            num_threads=job.workers,
        )
        devset = [question.to_dspy() for question in job.devset]
        program = optimizer.compile(job.program, teacher=teacher, trainset=trainset, valset=devset)
        # DSPy hangs every candidate on the winner; they would be copied with it ever after.
        del program.candidate_programs
        return program
