"""Instructions and demonstrations together, by Bayesian optimization."""

import math
from dataclasses import dataclass
from typing import Annotated

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.bootstrap_loops import mipro_loops
from hoptimizer.optimizers.prompt.few_shot import Bootstrapping, Positive
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import WorkEstimate, finished, prompt_model
from hoptimizer.programs import Program

# DSPy summarizes the train set in so many calls, and the program in some.
_SUMMARIES = 10


@dataclass(frozen=True, kw_only=True)
class MIPROv2(Bootstrapping):
    """The best combination of proposed instructions and bootstrapped demonstrations (``dspy.MIPROv2``).

    Args:
        num_candidates: instructions, and sets of demonstrations, per step.
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

    def check(self, context: CompileContext) -> None:
        super().check(context)
        if self.minibatch_size is not None and self.minibatch_size > len(context.devset):
            raise UserError(
                f"optimizer.minibatch_size: {self.minibatch_size} of {len(context.devset)} dev questions; take fewer"
            )

    def work(self, context: CompileContext) -> WorkEstimate:
        steps = len(context.program.predictors())
        bootstraps = (self.num_candidates - 2) * self.bootstrap_runs(context)
        scored = self.trials(context) * (self.minibatch_size or len(context.devset)) + len(context.devset)
        return WorkEstimate(runs=bootstraps + scored, proposals=_SUMMARIES + (self.num_candidates + 2) * steps)

    def trials(self, context: CompileContext) -> int:
        """How many combinations are tried: DSPy recommends 2 log2(n) for each variable, and 1.5 n at least."""
        variables = 2 * len(context.program.predictors())
        recommended = max(2 * variables * math.log2(self.num_candidates), 1.5 * self.num_candidates)
        return self.num_trials or int(recommended)

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        loops = mipro_loops(self.loop(trainset), self.num_candidates, context.seed)
        taught = prefetch(context, loops, self.least)
        optimizer = dspy.MIPROv2(
            **self.options(context),
            prompt_model=prompt_model(context),
            task_model=dspy.settings.lm,
            auto=None,
            num_candidates=self.num_candidates,
            num_threads=context.workers,
            seed=context.seed,
            init_temperature=self.init_temperature,
            track_stats=False,
        )
        compiled = optimizer.compile(
            context.program,
            trainset=trainset,
            teacher=taught,
            valset=context.examples("dev"),
            num_trials=self.trials(context),
            minibatch=self.minibatch_size is not None,
            minibatch_size=self.minibatch_size or len(context.devset),
            view_data_batch_size=self.view_data_batch_size,
        )
        return finished(context, compiled)
