"""An optimizer: asks for short answers, where that scores better."""

from hoptimizer.eval.runner import evaluate
from hoptimizer.optimizers import CompileContext, Optimizer
from hoptimizer.programs import Program


class ShortAnswers(Optimizer):
    """The instructions of every step with a limit on the words of an answer, or as they are; the best on dev.

    Args:
        words: the limits to try.
    """

    def __init__(self, words: tuple[int, ...] = (3, 6)) -> None:
        self.words = words

    def compile(self, context: CompileContext) -> Program:
        candidates = [context.program.deepcopy(), *(self._limited(context.program, limit) for limit in self.words)]
        return max(candidates, key=lambda program: self._score(context, program))

    def _limited(self, program: Program, limit: int) -> Program:
        limited = program.deepcopy()
        for predictor in limited.predictors():
            instructions = f"{predictor.signature.instructions} Use at most {limit} words."
            predictor.signature = predictor.signature.with_instructions(instructions)
        return limited

    def _score(self, context: CompileContext, program: Program) -> float:
        rows = evaluate(program, context.devset, workers=context.workers, objective=context.objective).rows
        return sum(context.objective.of(row.scores, failed=row.failure is not None) for row in rows) / len(rows)
