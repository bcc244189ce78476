"""Instructions that a language model proposes."""

from dataclasses import dataclass
from typing import Annotated, Any

import dspy
from dspy.teleprompt.infer_rules import RulesInductionProgram
from dspy.utils.exceptions import DSPyError
from pydantic import Field

from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.optimizers.prompt.few_shot import Bootstrapping, Positive
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import Search, Work, finished, prompt_model
from hoptimizer.programs import Program


@dataclass(frozen=True, kw_only=True)
class COPRO(Search):
    """Instructions by coordinate ascent, one step of the program at a time (``dspy.COPRO``).

    Args:
        breadth: proposals a step and round, the instruction so far among them.
        depth: rounds; each one shows what was tried, with its score.
        init_temperature: of the proposals.
    """

    breadth: Annotated[int, Field(ge=2)] = 6
    depth: Positive = 2
    init_temperature: Annotated[float, Field(gt=0)] = 1.0

    def work(self, job: Job) -> Work:
        steps = len(job.program.predictors())
        # With several steps, a round tries all proposals so far again, since the other steps have changed.
        tried = sum(self.breadth * (round + 1 if steps > 1 else 1) for round in range(self.depth))
        return Work(runs=steps * tried * len(job.devset), proposals=steps * self.depth)

    def search(self, job: Job, ledger: Ledger) -> Program:
        optimizer = dspy.COPRO(
            prompt_model=prompt_model(job),
            metric=job.objective,
            breadth=self.breadth,
            depth=self.depth,
            init_temperature=self.init_temperature,
        )
        options = {"num_threads": job.workers, "display_progress": False, "display_table": False}
        return finished(job, optimizer.compile(job.program, trainset=job.examples("dev"), eval_kwargs=options))


@dataclass(frozen=True, kw_only=True)
class InferRules(Bootstrapping):
    """Bootstrapped demonstrations, and rules that a language model infers from examples (``dspy.InferRules``).

    Args:
        num_candidates: sets of rules that are tried on dev.
        num_rules: rules in a set.
        examples: annotated questions that rules are inferred from.
    """

    num_candidates: Positive = 4
    num_rules: Positive = 5
    examples: Positive = 8

    def work(self, job: Job) -> Work:
        proposals = self.num_candidates * len(job.program.predictors())
        return Work(runs=self.bootstrap_runs(job) + self.num_candidates * len(job.devset), proposals=proposals)

    def search(self, job: Job, ledger: Ledger) -> Program:
        trainset = self.trainset(job)
        taught = prefetch(job, [self.loop(trainset)], self.least)
        optimizer = _RulesOfSome(
            self.examples,
            num_candidates=self.num_candidates,
            num_rules=self.num_rules,
            num_threads=job.workers,
            **self.options(job),
        )
        optimizer.rules_induction_program = RulesInductionProgram(self.num_rules, {"lm": prompt_model(job)})
        # DSPy writes its rules into the signatures, which its candidates share with each other and with every program:
        # these get their own, and what it returns has the last rules. The ledger has each candidate as it was scored.
        student = finished(job, job.program)
        optimizer.compile(student, teacher=taught, trainset=trainset, valset=job.examples("dev"))
        return ledger.restored(job.program)


class _RulesOfSome(dspy.InferRules):
    """DSPy's shows the whole train set, drops one example after the other until the prompt fits, and asserts that
    nothing else went wrong."""

    def __init__(self, examples: int, **options: Any) -> None:  # noqa: ANN401 - DSPy's
        super().__init__(**options)
        self._examples = examples

    def induce_natural_language_rules(self, predictor: dspy.Predict, trainset: list[dspy.Example]) -> str:
        try:
            return super().induce_natural_language_rules(predictor, trainset)
        except (AssertionError, RuntimeError) as error:
            if isinstance(error.__context__, DSPyError):
                raise error.__context__ from None
            raise

    def get_predictor_demos(self, trainset: list[dspy.Example], predictor: dspy.Predict) -> list[dict[str, Any]]:
        return super().get_predictor_demos(trainset[: self._examples], predictor)
