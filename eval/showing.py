"""Evaluations as tables of texts."""

from collections import Counter
from collections.abc import Mapping

from hoptimizer.eval.display.format import COLUMNS, COSTS, figure, figure_of, heading
from hoptimizer.eval.display.sheet import Sheet
from hoptimizer.eval.runner import Evaluation

_SCORES = (*COLUMNS, "seconds_per_question")
# Characters of a reason below a table; the table of predictions has it in full.
_LONGEST = 200


def evaluation_sheets(evaluations: Mapping[str, Evaluation], title: str, metric: str = "") -> list[Sheet]:
    """Scores, and what a question costs.

    Args:
        evaluations: by the name that their rows have.
        title: what the table of scores shows.
        metric: a metric of the user's that is shown first.

    Example:
        >>> from hoptimizer.eval import Evaluation, Question
        >>> from hoptimizer.eval.runner import QuestionResult
        >>> from hoptimizer.eval.showing import evaluation_sheets
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> row = QuestionResult(question, "Warsaw", passages=[], scores={"f1": 1.0}, steps=[])
        >>> scores, _ = evaluation_sheets({"rag": Evaluation([row], seconds=2.0)}, "dev")
        >>> scores.rows
        [['rag', '100.0', '2.00']]
    """
    metrics = {name: evaluation.metrics for name, evaluation in evaluations.items()}
    wanted = dict.fromkeys([*([metric] if metric not in _SCORES else []), *_SCORES])
    shown = [name for name in wanted if any(name in own for own in metrics.values())]
    scores = [[name, *(figure_of(score, own) for score in shown)] for name, own in metrics.items()]
    costs = [
        [name, *(figure(cost, own[cost]) if cost in own else "unknown" for cost in (*COSTS, "seconds_n"))]
        for name, own in metrics.items()
    ]
    failed = "; ".join(
        f"{name}: {failures(evaluations[name])}, {own['parse_failures']:.0f} outputs could not be parsed"
        + (f", {own['unanswered']:.0f} questions got no answer from a server" if own["unanswered"] else "")
        for name, own in metrics.items()
    )
    return [
        Sheet(title, ["", *map(heading, shown)], 1, scores, note=failed),
        Sheet("per question", ["", *map(heading, COSTS), "timed"], 1, costs, note=TIMED),
    ]


def failures(evaluation: Evaluation) -> str:
    """How many questions failed, with the reason of the first of them.

    Args:
        evaluation: of the questions.

    Example:
        >>> from hoptimizer.eval import Evaluation, Question
        >>> from hoptimizer.eval.runner import QuestionResult
        >>> from hoptimizer.eval.showing import failures
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> reasons = ["a metric failed: short: KeyError: 'answer'"] * 2 + ["the prompt is too long"]
        >>> rows = [QuestionResult(question, "", [], {}, [], reason) for reason in reasons]
        >>> failures(Evaluation(rows, seconds=2.0))
        "3 questions failed (2 of them: a metric failed: short: KeyError: 'answer')"
    """
    reasons = Counter(row.failure for row in evaluation.rows if row.failure is not None and row.is_answered)
    total = reasons.total()
    if not total:
        return "0 questions failed"
    reason, many = next(iter(reasons.items()))
    shown = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
    return f"{total} questions failed ({f'{many} of them: ' if many < total else ''}{shown})"


TIMED = (
    "Seconds are of the questions that were timed: those whose calls were not all answered from a cache. "
    "They hold the waiting for other questions that were under way"
)
