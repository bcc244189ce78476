"""Instructions and demonstrations, chosen together by Bayesian optimization."""

import math
from dataclasses import dataclass
from typing import Annotated

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.bootstrap_loops import mipro_loops
from hoptimizer.optimizers.prompt.few_shot import Bootstrapping
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import WorkEstimate, finished, prompt_model
from hoptimizer.programs import Program

# The most calls in which DSPy summarizes the train set; the summary of the program takes a few more.
_SUMMARIES = 10


@dataclass(frozen=True, kw_only=True)
class MIPROv2(Bootstrapping):
    """The best combination of proposed instructions and bootstrapped demonstrations (``dspy.MIPROv2``).

    Args:
        num_candidates: the number of instructions, and of sets of demonstrations, per step.
        num_trials: the number of combinations that are tried; by default what DSPy recommends for the candidates.
        minibatch_size: the number of dev questions that a trial is scored on; by default all.
        init_temperature: the sampling temperature of the proposals.
        view_data_batch_size: the number of train questions per call that summarizes the data.
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
        """The number of combinations that are tried.

        For n candidates, DSPy recommends 2 log2(n) combinations per variable, and at least 1.5 n.

        Args:
            context: the compile.
        """
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
