"""Searches for the best of several sets of bootstrapped demonstrations."""

from dataclasses import dataclass
from typing import Any

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.bootstrap_loops import random_search_loops
from hoptimizer.optimizers.prompt.few_shot import Bootstrapping, Count
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import WorkEstimate, finished
from hoptimizer.programs import Program


@dataclass(frozen=True, kw_only=True)
class BootstrapRandomSearch(Bootstrapping):
    """The bootstrapped program that is best on dev (``dspy.BootstrapFewShotWithRandomSearch``).

    The candidates are the program without demonstrations, the program with labeled ones, the program with the first
    ones that can be bootstrapped, and ``num_candidate_programs`` programs with random ones.

    Args:
        num_candidate_programs: the number of programs with random demonstrations.
    """

    num_candidate_programs: Count = 4

    def work(self, context: CompileContext) -> WorkEstimate:
        bootstraps = self.num_candidate_programs + 1
        return WorkEstimate(runs=bootstraps * self.bootstrap_runs(context) + (bootstraps + 2) * len(context.devset))

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        loops = random_search_loops(self.loop(trainset), self.num_candidate_programs)
        taught = prefetch(context, loops, self.least)
        optimizer = dspy.BootstrapFewShotWithRandomSearch(
            **self.options(context),
            num_candidate_programs=self.num_candidate_programs,
            num_threads=context.workers,
        )
        return finished(
            context,
            optimizer.compile(context.program, teacher=taught, trainset=trainset, valset=context.examples("dev")),
        )


@dataclass(frozen=True, kw_only=True)
class BootstrapOptuna(Bootstrapping):
    """One bootstrapped demonstration per step, chosen by Optuna (``dspy.BootstrapFewShotWithOptuna``).

    Args:
        num_candidate_programs: the number of combinations that are tried on dev.
    """

    num_candidate_programs: Positive = 16

    def work(self, context: CompileContext) -> WorkEstimate:
        scored = (1 + self.num_candidate_programs) * len(context.devset)
        return WorkEstimate(runs=self.bootstrap_runs(context) + scored)

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        taught = prefetch(context, [self.loop(trainset)], self.least)
        optimizer = _SeededOptuna(
            **self.options(context),
            num_candidate_programs=self.num_candidate_programs,
            num_threads=context.workers,
            seed=context.seed,
        )
        return finished(
            context,
            optimizer.compile(
                context.program,
                teacher=taught,
                max_demos=self.max_bootstrapped_demos,
                trainset=trainset,
                valset=context.examples("dev"),
            ),
        )


class _SeededOptuna(dspy.BootstrapFewShotWithOptuna):
    """DSPy's optimizer with a threshold and a seed.

    The original takes every run of the teacher that scores above 0, and gives its sampler no seed.
    """

    def __init__(self, *, metric_threshold: float, seed: int, **options: Any) -> None:  # noqa: ANN401 - DSPy's
        super().__init__(**options)
        self.metric_threshold, self.seed = metric_threshold, seed

    def compile(self, student: Program, *, teacher: Program, max_demos: int, trainset: Any, valset: Any) -> Program:  # noqa: ANN401 - DSPy's
        import optuna  # imported here: a config that only names the optimizer does not need it

        self.student, self.valset = student.reset_copy(), valset
        bootstrap = dspy.BootstrapFewShot(
            metric=self.metric,
            metric_threshold=self.metric_threshold,
            max_bootstrapped_demos=max_demos,
            max_labeled_demos=self.max_labeled_demos,
            teacher_settings=self.teacher_settings,
        )
        self.compiled_teleprompter = bootstrap.compile(self.student, teacher=teacher, trainset=trainset)
        for name, predictor in self.compiled_teleprompter.named_predictors():
            if not predictor.demos:  # Optuna would have nothing to choose from
                raise UserError(
                    f"optimizer.metric_threshold={self.metric_threshold:g}: no run of the teacher that scored so well "
                    f"shows the step {name!r}; lower it, or take another lm.teacher or optimizer.max_labeled_demos=4"
                )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=self.seed))
        study.optimize(self.objective, n_trials=self.num_candidate_sets)
        return study.best_trial.user_attrs["program"]
