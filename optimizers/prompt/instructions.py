"""Instructions that a language model proposes."""

from dataclasses import dataclass
from typing import Annotated, Any

import dspy
from dspy.teleprompt.infer_rules import RulesInductionProgram
from dspy.utils.exceptions import DSPyError
from pydantic import Field

from hoptimizer.common.options import Positive
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.few_shot import Bootstrapping
from hoptimizer.optimizers.prompt.prefetch import prefetch
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate, finished, prompt_model
from hoptimizer.programs import Program


@dataclass(frozen=True, kw_only=True)
class COPRO(Search):
    """Instructions by coordinate ascent, one step of the program at a time (``dspy.COPRO``).

    Args:
        breadth: the number of proposals per step and round, including the present instruction.
        depth: the number of rounds; each shows the proposing model what was tried before, with its score.
        init_temperature: the sampling temperature of the proposals.
    """

    breadth: Annotated[int, Field(ge=2)] = 6
    depth: Positive = 2
    init_temperature: Annotated[float, Field(gt=0)] = 1.0

    def work(self, context: CompileContext) -> WorkEstimate:
        steps = len(context.program.predictors())
        # With several steps, a round tries all proposals so far again, since the other steps have changed.
        tried = sum(self.breadth * (round + 1 if steps > 1 else 1) for round in range(self.depth))
        return WorkEstimate(runs=steps * tried * len(context.devset), proposals=steps * self.depth)

    def search(self, context: SearchContext) -> Program:
        optimizer = dspy.COPRO(
            prompt_model=prompt_model(context),
            metric=context.objective,
            breadth=self.breadth,
            depth=self.depth,
            init_temperature=self.init_temperature,
        )
        options = {"num_threads": context.workers, "display_progress": False, "display_table": False}
        return finished(
            context, optimizer.compile(context.program, trainset=context.examples("dev"), eval_kwargs=options)
        )


@dataclass(frozen=True, kw_only=True)
class InferRules(Bootstrapping):
    """Bootstrapped demonstrations, and rules that a language model infers from examples (``dspy.InferRules``).

    Args:
        num_candidates: the number of sets of rules that are tried on dev.
        num_rules: the number of rules per set.
        examples: the number of annotated questions that rules are inferred from.
    """

    num_candidates: Positive = 4
    num_rules: Positive = 5
    examples: Positive = 8

    def work(self, context: CompileContext) -> WorkEstimate:
        proposals = self.num_candidates * len(context.program.predictors())
        scored = (1 + self.num_candidates) * len(context.devset)
        return WorkEstimate(runs=self.bootstrap_runs(context) + scored, proposals=proposals)

    def search(self, context: SearchContext) -> Program:
        trainset = self.trainset(context)
        taught = prefetch(context, [self.loop(trainset)], self.least)
        optimizer = _RulesOfSome(
            self.examples,
            num_candidates=self.num_candidates,
            num_rules=self.num_rules,
            num_threads=context.workers,
            **self.options(context),
        )
        optimizer.rules_induction_program = RulesInductionProgram(self.num_rules, {"lm": prompt_model(context)})
        # DSPy writes the rules into the signatures, which its candidates share with each other and with every program.
        # So the student gets signatures of its own; and since the returned program has the last rules instead of the
        # best, the result is restored from the recorder, which keeps each candidate as it was scored.
        student = finished(context, context.program)
        optimizer.compile(student, teacher=taught, trainset=trainset, valset=context.examples("dev"))
        return context.recorder.restored(context.program)


class _RulesOfSome(dspy.InferRules):
    """DSPy's optimizer with rules that are inferred from the first examples of the train set.

    The original shows the whole train set, drops one example after the other until the prompt fits, and asserts that
    nothing else went wrong.
    """

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
