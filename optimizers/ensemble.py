"""A vote of the best candidates of an optimizer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.models.settings import PromptFormat
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.nested import InnerOptions, built
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate
from hoptimizer.programs import Program
from hoptimizer.programs.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True)
class EnsembleSearch(Search):
    """The answer that most of the best candidates of another optimizer give (``dspy.Ensemble``, ``dspy.majority``).

    Args:
        of: the optimizer that makes the candidates, by its name or with its options.
        size: the number of programs that vote, if there are so many.
    """

    of: InnerOptions
    size: Annotated[int, Field(ge=2)] = 3
    prompt_formats: tuple[PromptFormat, ...] = ()

    makes_candidates: ClassVar[bool] = False

    def check(self, context: CompileContext) -> None:
        super().check(context)
        self._inner().check(context)

    def work(self, context: CompileContext) -> WorkEstimate:
        return self._inner().work(context)

    def search(self, context: SearchContext) -> Program:
        # The compiled program, not the one before it: its models may have been trained.
        compiled = self._inner().compile(context)
        best = context.recorder.alike(compiled)[: self.size]
        return Ensemble([context.recorder.restored(compiled, candidate) for candidate in best])

    def _inner(self) -> Search:
        if not (isinstance(optimizer := built(self.of), Search) and optimizer.makes_candidates):
            raise UserError(f"optimizer.of: {self.of.name} makes one program, and no candidates; take another")
        return optimizer
