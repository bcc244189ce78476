"""The score of a candidate on dev."""

from hoptimizer.eval.runner import evaluate
from hoptimizer.optimizers.candidates import Candidate, SearchContext
from hoptimizer.programs import Program


def score(context: SearchContext, program: Program, anew: bool = False) -> float:
    """The mean of the objective over the dev questions: :func:`scored` without the rest of what is known.

    Args:
        context: the compile, with its recorder.
        program: the candidate.
        anew: whether it is run even where a program with the same state was scored.
    """
    return scored(context, program, anew).score


def scored(context: SearchContext, program: Program, anew: bool = False) -> Candidate:
    """A program as a candidate with its scores on dev; one that was scored before is not run again.

    Args:
        context: the compile, with its recorder.
        program: the candidate.
        anew: whether it is run even where a program with the same state was scored.
    """
    state, recorder = program.dump_state(), context.recorder
    if not anew and (known := recorder.find(state)) and known.is_whole:
        return known
    objective = context.objective
    judge = objective.judge if objective.is_judged else None
    rows = evaluate(program, context.devset, workers=context.workers, judge=judge, objective=objective).rows
    objective.judge_failures.extend(row.judge_failure for row in rows if row.judge_failure)
    # A metric that a question has no score for counts 0, as it does when DSPy evaluates.
    scores = {row.question.id: objective.of(row.scores, failed=row.failure is not None) for row in rows}
    return recorder.add(state, scores, sum(row.failure is not None for row in rows))
