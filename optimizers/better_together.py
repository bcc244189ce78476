"""Several optimizers one after the other, of prompts and of weights in turn (Soylu et al., 2024)."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.models.settings import PromptFormat
from hoptimizer.models.usage import BudgetExhausted
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.nested import InnerOptions, built
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate
from hoptimizer.programs import Program


@dataclass(frozen=True, kw_only=True)
class BetterTogether(Search):
    """A chain of optimizers, each of which starts from what the one before it made; the best on dev is kept.

    Args:
        strategy: the optimizers in their order, each by its name or with its options.
    """

    strategy: Annotated[tuple[InnerOptions, ...], Field(min_length=1)]
    prompt_formats: tuple[PromptFormat, ...] = ()

    def check(self, context: CompileContext) -> None:
        super().check(context)
        if any(options.name == "ensemble" for options in self.strategy[:-1]):
            raise UserError("optimizer.strategy: no other optimizer takes the programs of an ensemble; put it last")
        for options in self.strategy:
            built(options).check(context)

    def work(self, context: CompileContext) -> WorkEstimate:
        parts = [part.work(context) for part in map(built, self.strategy) if isinstance(part, Search)]
        trained = len(self.strategy) - len(parts)  # the result of a search is scored by it
        runs = sum(part.runs for part in parts) + (1 + trained) * len(context.devset)
        return WorkEstimate(runs=runs, proposals=sum(part.proposals for part in parts))

    def search(self, context: SearchContext) -> Program:
        program = context.program
        scored = [(score(context, program), program)]
        try:
            for number, options in enumerate(self.strategy, 1):
                part = replace(context, program=program, folder=context.folder / f"{number}-{options.name}")
                optimizer = built(options)
                program = optimizer.compile(part)
                # A state names its models without holding them: trained ones may have the names of those before.
                scored.append((score(context, program, anew=not isinstance(optimizer, Search)), program))
        except BudgetExhausted:
            if program is not scored[-1][1]:
                context.listener.progress(
                    f"the budget ended before what {options.name} made was scored: it is not kept", 0, 0, ""
                )
            # The best may be a candidate of the optimizer that was stopped; such candidates use the models of the
            # program that it was given.
            if alike := context.recorder.alike(program):
                scored.append((alike[0].score, context.recorder.restored(program)))
        return max(scored, key=lambda pair: pair[0])[1]
