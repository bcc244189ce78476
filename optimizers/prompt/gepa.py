"""Instructions that evolve by reflection on what went wrong (GEPA)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import dspy
from dspy.teleprompt.gepa import InstructionProposer

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.models.reading_adapters import ReadingJSONAdapter
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.feedback import Feedback
from hoptimizer.optimizers.prompt.few_shot import Count
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate, finished
from hoptimizer.programs import Program


@dataclass(frozen=True, kw_only=True)
class GEPA(Search):
    """Instructions by reflective evolution (``dspy.GEPA``), which ``lm.reflection`` writes.

    The reflecting model reads for each step what :class:`~hoptimizer.optimizers.prompt.feedback.Feedback` says about
    where a run went wrong. Where the objective is a weighted sum, candidates that are best in one of its terms, over
    all questions, are kept beside those that are best on some question (GEPA's hybrid Pareto front).

    Args:
        max_full_evals: the number of runs of the program, in passes over all train and dev questions.
        reflection_minibatch_size: the number of train questions that a proposal reflects on.
        candidate_selection_strategy: the candidate that is changed next. ``pareto``: one of those that are best on
            some question; ``current_best``: the one that is best on all questions.
        component_selector: the steps that are changed. ``round_robin``: one step after the other; ``all``: all at once.
        use_merge: whether candidates are also merged.
        max_merge_invocations: the most merges.
    """

    max_full_evals: Positive = 4
    reflection_minibatch_size: Positive = 3
    candidate_selection_strategy: Literal["pareto", "current_best"] = "pareto"
    component_selector: Literal["round_robin", "all"] = "round_robin"
    use_merge: bool = True
    max_merge_invocations: Count = 5

    def check_roles(self, roles: Collection[str]) -> None:
        if "reflection" not in roles:
            raise UserError("optimizer=gepa: no language model reflects; name one, as in lm.reflection=MODEL")

    def check(self, context: CompileContext) -> None:
        super().check(context)
        self.check_roles({"reflection"} if context.reflection_lm else ())
        if self.reflection_minibatch_size > len(context.trainset):
            raise UserError(
                f"optimizer.reflection_minibatch_size: {self.reflection_minibatch_size} of {len(context.trainset)} "
                "train questions; take fewer"
            )

    def work(self, context: CompileContext) -> WorkEstimate:
        runs = self.max_full_evals * (len(context.trainset) + len(context.devset))
        return WorkEstimate(runs=runs, proposals=runs // (len(context.devset) + 2 * self.reflection_minibatch_size) + 1)

    def search(self, context: SearchContext) -> Program:
        optimizer = dspy.GEPA(
            metric=Feedback(context.objective, context.corpus),
            max_full_evals=self.max_full_evals,
            reflection_minibatch_size=self.reflection_minibatch_size,
            candidate_selection_strategy=self.candidate_selection_strategy,
            reflection_lm=context.reflection_lm,
            # The proposer's own adapter would read braces in a model's thoughts as the proposal.
            instruction_proposer=InstructionProposer(adapter=ReadingJSONAdapter()),
            component_selector=self.component_selector,
            use_merge=self.use_merge,
            max_merge_invocations=self.max_merge_invocations,
            num_threads=context.workers,
            seed=context.seed,
            failure_score=context.objective.worst,
            perfect_score=context.objective.best,
            gepa_kwargs={} if context.objective.is_metric else {"frontier_type": "hybrid"},
        )
        compiled = optimizer.compile(
            context.program, trainset=context.examples("train"), valset=context.examples("dev")
        )
        return finished(context, compiled)
