"""Scoring a candidate on dev."""

from hoptimizer.eval.runner import evaluate
from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.programs import Program


def score(job: Job, candidate: Program, ledger: Ledger) -> float:
    """The objective of a program on dev, which the ledger is told; what it knows already is not run again."""
    state = candidate.dump_state()
    if (known := ledger.find(state)) and known.is_whole:
        return known.score
    objective = job.objective
    judge = objective.judge if objective.is_judged else None
    rows = evaluate(candidate, job.devset, workers=job.workers, judge=judge).rows
    objective.judge_failures.extend(row.judge_failure for row in rows if row.judge_failure)
    # What a question's scores lack counts 0, as it does where DSPy evaluates.
    scores = {row.question.id: objective.of(row.scores, failed=row.failure is not None) for row in rows}
    return ledger.add(state, scores, sum(row.failure is not None for row in rows))
