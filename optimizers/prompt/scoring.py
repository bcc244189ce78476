"""The score of a candidate on dev."""

from hoptimizer.eval.runner import evaluate
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.programs import Program


def score(context: SearchContext, candidate: Program, anew: bool = False) -> float:
    """The objective of a program on dev, which is recorded; a program that was scored before is not run again.

    Args:
        context: the compile, with its recorder.
        candidate: the program.
        anew: whether it is run even where a program with the same state was scored.

    Returns:
        the mean of the objective over the dev questions.
    """
    state, recorder = candidate.dump_state(), context.recorder
    if not anew and (known := recorder.find(state)) and known.is_whole:
        return known.score
    objective = context.objective
    judge = objective.judge if objective.is_judged else None
    rows = evaluate(candidate, context.devset, workers=context.workers, judge=judge, objective=objective).rows
    objective.judge_failures.extend(row.judge_failure for row in rows if row.judge_failure)
    # A metric that a question has no score for counts 0, as it does when DSPy evaluates.
    scores = {row.question.id: objective.of(row.scores, failed=row.failure is not None) for row in rows}
    return recorder.add(state, scores, sum(row.failure is not None for row in rows))
