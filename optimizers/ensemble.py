"""The best candidates of an optimizer, which vote."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.models.settings import Layout
from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.nested import InnerOptions, built
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.optimizers.prompt.search import Search, Work
from hoptimizer.programs import Program
from hoptimizer.programs.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True)
class EnsembleSearch(Search):
    """The answer that most of the best candidates of another optimizer give (``dspy.Ensemble``, ``dspy.majority``).

    Args:
        of: the optimizer that makes the candidates, by its name or with its options.
        size: programs that vote, if there are as many.
    """

    of: InnerOptions
    size: Annotated[int, Field(ge=2)] = 3
    layouts: tuple[Layout, ...] = ()

    makes_candidates: ClassVar[bool] = False

    def check(self, job: Job) -> None:
        super().check(job)
        self._inner().check(job)

    def work(self, job: Job) -> Work:
        return self._inner().work(job)

    def search(self, job: Job, ledger: Ledger) -> Program:
        self._inner().compile(job)
        best = ledger.alike(job.program)[: self.size]
        return Ensemble([ledger.restored(job.program, candidate) for candidate in best])

    def _inner(self) -> Search:
        if not (isinstance(optimizer := built(self.of), Search) and optimizer.makes_candidates):
            raise UserError(f"optimizer.of: {self.of.name} makes one program, and no candidates; take another")
        return optimizer
