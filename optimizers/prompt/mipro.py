"""Instructions and demonstrations together, by Bayesian optimization."""

import math
from dataclasses import dataclass
from typing import Annotated

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.optimizers.prompt.bootstrap_loops import mipro_loops
from hoptimizer.optimizers.prompt.few_shot import Bootstrapping, Positive
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import Work, finished, prompt_model
from hoptimizer.programs import Program

# DSPy summarizes the train set in so many calls, and the program in some.
_SUMMARIES = 10


@dataclass(frozen=True, kw_only=True)
class MIPROv2(Bootstrapping):
    """The best combination of proposed instructions and bootstrapped demonstrations (``dspy.MIPROv2``).

    Args:
        num_candidates: instructions, and sets of demonstrations, a step.
        num_trials: combinations that are tried; by default as many as DSPy recommends for the candidates.
        minibatch_size: dev questions that a trial is scored on; all by default.
        init_temperature: of the proposals.
        view_data_batch_size: train questions that one call of the data's summary sees.
    """

    num_candidates: Annotated[int, Field(ge=2)] = 6
    num_trials: Positive | None = None
    minibatch_size: Positive | None = None
    init_temperature: Annotated[float, Field(gt=0)] = 1.0
    view_data_batch_size: Positive = 10

    def check(self, job: Job) -> None:
        super().check(job)
        if self.minibatch_size is not None and self.minibatch_size > len(job.devset):
            raise UserError(
                f"optimizer.minibatch_size: {self.minibatch_size} of {len(job.devset)} dev questions; take fewer"
            )

    def work(self, job: Job) -> Work:
        steps = len(job.program.predictors())
        bootstraps = (self.num_candidates - 2) * self.bootstrap_runs(job)
        scored = self.trials(job) * (self.minibatch_size or len(job.devset)) + len(job.devset)
        return Work(runs=bootstraps + scored, proposals=_SUMMARIES + (self.num_candidates + 2) * steps)

    def trials(self, job: Job) -> int:
        """How many combinations are tried: DSPy recommends 2 log2(n) for each variable, and 1.5 n at least."""
        variables = 2 * len(job.program.predictors())
        recommended = max(2 * variables * math.log2(self.num_candidates), 1.5 * self.num_candidates)
        return self.num_trials or int(recommended)

    def search(self, job: Job, ledger: Ledger) -> Program:
        trainset = self.trainset(job)
        loops = mipro_loops(self.loop(trainset), self.num_candidates, job.seed)
        taught = prefetch(job, loops, self.least)
        optimizer = dspy.MIPROv2(
            **self.options(job),
            prompt_model=prompt_model(job),
            task_model=dspy.settings.lm,
            auto=None,
            num_candidates=self.num_candidates,
            num_threads=job.workers,
            seed=job.seed,
            init_temperature=self.init_temperature,
            track_stats=False,
        )
        compiled = optimizer.compile(
            job.program,
            trainset=trainset,
            teacher=taught,
            valset=job.examples("dev"),
            num_trials=self.trials(job),
            minibatch=self.minibatch_size is not None,
            minibatch_size=self.minibatch_size or len(job.devset),
            view_data_batch_size=self.view_data_batch_size,
        )
        return finished(job, compiled)
