"""Runs a program over many questions at once and scores what comes out."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.errors import ServiceError
from hoptimizer.eval import latency
from hoptimizer.eval.datasets.dataset import Question
from hoptimizer.eval.failures import MAX_UNANSWERED, failure_of
from hoptimizer.eval.judge import ACCURACY
from hoptimizer.eval.latency import CACHED, SECONDS
from hoptimizer.eval.objective import Objective
from hoptimizer.models.engine.engine import seconds_since
from hoptimizer.models.failures import is_outage, one_line
from hoptimizer.programs.program import FAILURES, Program
from hoptimizer.programs.record import COST, StepRecord
from hoptimizer.programs.settings import count_names

# What is scored where nothing is maximized: every metric and count, and no weighted sum.
_NO_OBJECTIVE = Objective((("f1", 1.0),))

EvaluationProgress = Callable[[int, int, dict[str, float]], None]
"""Called after each question with how many are done, of how many, and the mean scores so far."""


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One question's outcome.

    Attributes:
        question: what was asked, with its gold annotations.
        answer: the program's answer; empty where it failed.
        passages: ids of the passages the program collected.
        scores: every metric and count of this question, with its tokens and its price in ``usd`` where they are known;
            ``seconds`` from when it was taken up to its answer, which includes waiting for other questions that are
            under way, but not for a model that is loaded; ``cached_calls``, those of its ``lm_calls`` that a cache
            answered, where that is known; ``accuracy`` where a judge gave its verdict, ``objective`` where a weighted
            sum is maximized. A metric of the user's that failed is 0 if it is a share, missing where a call got none.
        steps: what the program did, step by step.
        failure: why the program or a metric failed on this question, or a call got no answer; else ``None``.
        is_answered: false where a call or a search got none: that is no result of the program's.
        judge_failure: why the judge gave no verdict on the answer, or ``None``.
    """

    question: Question
    answer: str
    passages: list[str]
    scores: dict[str, float]
    steps: list[StepRecord]
    failure: str | None = None
    judge_failure: str | None = None
    is_answered: bool = True


@dataclass(frozen=True)
class Evaluation:
    """A program's scores on a list of questions.

    Attributes:
        rows: one per question, in the order of the questions.
        seconds: wall time of the whole evaluation, the judge's included.

    Example:
        >>> from hoptimizer.eval import Evaluation, Question
        >>> from hoptimizer.eval.runner import QuestionResult
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> row = QuestionResult(question, "Warsaw", passages=[], scores={"f1": 1.0}, steps=[])
        >>> Evaluation([row], seconds=2.0).metrics["f1"]
        1.0
    """

    rows: list[QuestionResult]
    seconds: float

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the questions that were answered; ``unanswered`` is the number of the others, ``failures``
        that of questions on which the program failed, ``judge_failures`` that of answers without a verdict
        where there is a judge, ``seconds_median`` and ``seconds_p95`` the median and the 95th percentile of the
        ``seconds`` of the ``seconds_n`` questions whose calls were not all answered from a cache, and
        ``seconds_per_question`` the wall time of the whole evaluation over the
        number of questions. Tokens and ``usd`` are there if they are known of every question on which the
        program did not fail."""
        means = mean_scores(self.rows)
        means.pop(CACHED, None)
        for name in COST:
            if any(name not in row.scores for row in self.rows if row.failure is None):
                means.pop(name, None)
        metrics = means | {
            "parse_failures": sum(row.scores.get("parse_failures", 0.0) for row in self.rows),
            "failures": float(sum(row.failure is not None and row.is_answered for row in self.rows)),
            "unanswered": float(sum(not row.is_answered for row in self.rows)),
            "seconds_per_question": self.seconds / len(self.rows),
        }
        metrics |= latency.summary(row.scores for row in self.rows)
        unjudged = sum(row.judge_failure is not None for row in self.rows)
        return metrics | ({"judge_failures": float(unjudged)} if unjudged or ACCURACY in metrics else {})

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from hoptimizer.eval.display.sheet import notebook
        from hoptimizer.eval.showing import evaluation_sheets

        return notebook(*evaluation_sheets({"all": self}, f"n = {len(self.rows)}"))

    def scores(self, metric: str) -> list[float]:
        """The scores of one metric, one for each question that has it."""
        return [row.scores[metric] for row in self.rows if metric in row.scores]


def mean_scores(rows: Sequence[QuestionResult]) -> dict[str, float]:
    """The mean of every score over the rows that have it (recall exists only where supporting passages are known)."""
    names = dict.fromkeys(name for row in rows for name in row.scores)
    values = {name: [row.scores[name] for row in rows if name in row.scores] for name in names}
    return {name: sum(scores) / len(scores) for name, scores in values.items()}


def evaluate(
    program: Program,
    questions: Sequence[Question],
    *,
    workers: int = 64,
    progress: EvaluationProgress | None = None,
    judge: dspy.LM | None = None,
    objective: Objective | None = None,
    max_unanswered: float = MAX_UNANSWERED,
) -> Evaluation:
    """Score a program.

    A question of which a call or a search got no answer, however often it was made, has no score: it is left out of
    all means. A prompt or a query that is refused is a failure of its question.

    Args:
        program: what to run.
        questions: what to ask it; at least one.
        workers: questions under way at once.
        progress: called after each question.
        judge: the language model that judges answers; its calls are none of the program's.
        objective: what is maximized; a weighted sum becomes a score of its own.
        max_unanswered: the greatest share of the questions that may have no answer.

    Raises:
        UserError: a language model can't be used: it refuses its key or is not known, for instance.
        ServiceError: more questions than that have no answer; the others are not asked any more.

    Example:
        >>> from hoptimizer.eval import evaluate, load
        >>> from hoptimizer.programs import RAG
        >>> from hoptimizer.retrieval import BM25Retriever
        >>> atlas = load("atlas")
        >>> program = RAG(BM25Retriever(atlas.corpus), k=4, reader="none")
        >>> evaluation = evaluate(program, atlas.split("dev", 10))
        >>> 0 < evaluation.metrics["recall"] < 1, evaluation.metrics["passages"]
        (True, 4.0)
    """
    return run_async(
        aevaluate(
            program,
            questions,
            workers=workers,
            progress=progress,
            judge=judge,
            objective=objective,
            max_unanswered=max_unanswered,
        )
    )


async def aevaluate(
    program: Program,
    questions: Sequence[Question],
    *,
    workers: int = 64,
    progress: EvaluationProgress | None = None,
    judge: dspy.LM | None = None,
    objective: Objective | None = None,
    max_unanswered: float = MAX_UNANSWERED,
) -> Evaluation:
    """Like :func:`evaluate`, from async code."""
    return await aevaluate_by(
        lambda question: ask(program, question, objective or _NO_OBJECTIVE, judge),
        questions,
        workers=workers,
        progress=progress,
        max_unanswered=max_unanswered,
    )


async def aevaluate_by(
    asks: Callable[[Question], Awaitable[QuestionResult]],
    questions: Sequence[Question],
    *,
    workers: int,
    progress: EvaluationProgress | None = None,
    max_unanswered: float = MAX_UNANSWERED,
) -> Evaluation:
    """Like :func:`aevaluate`, of whatever answers questions: ``asks`` does, as :func:`ask` does in this process."""
    rows: dict[int, QuestionResult] = {}
    numbered = enumerate(questions)
    means = _RunningMeans()
    start = time.perf_counter()

    # A task for each question would keep its context, with all that DSPy puts there, until the last one ends.
    async def work() -> None:
        for number, question in numbered:
            row = rows[number] = await asks(question)
            if not row.is_answered:
                _check_outage(rows.values(), len(questions), max_unanswered)
            if progress:
                progress(len(rows), len(questions), means.with_row(row))

    await all_of(work() for _ in range(min(workers, len(questions))))
    return Evaluation([rows[number] for number in range(len(questions))], seconds_since(start))


def _unanswered(question: Question, failure: str) -> QuestionResult:
    return QuestionResult(question, "", [], {}, [], failure, is_answered=False)


def _check_outage(done: Iterable[QuestionResult], total: int, max_unanswered: float) -> None:
    unanswered = [row for row in done if not row.is_answered]
    if len(unanswered) > max_unanswered * total:
        raise ServiceError(
            f"{len(unanswered)} of {total} questions got no answer, and max_unanswered={max_unanswered:g} allows no "
            f"more ({unanswered[-1].failure}); give the same command again later: what was answered is cached"
        )


class _RunningMeans:
    """The means over the rows so far, which are not summed up anew with each."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def with_row(self, row: QuestionResult) -> dict[str, float]:
        """The means with one more row."""
        for name, score in row.scores.items():
            self._sums[name] = self._sums.get(name, 0.0) + score
            self._counts[name] = self._counts.get(name, 0) + 1
        return {name: total / self._counts[name] for name, total in self._sums.items()}


async def ask(program: Program, question: Question, objective: Objective, judge: dspy.LM | None) -> QuestionResult:
    """Ask a program a question, and score what comes out.

    Args:
        program: what to run.
        question: what to ask it.
        objective: what is maximized.
        judge: the language model that judges the answer, if one does.

    Raises:
        UserError: a language model can't be used at all.
    """
    start = time.perf_counter()
    failure = None
    try:
        prediction = await program.acall(**question.asked)
    except ServiceError as error:
        return _unanswered(question, str(error))
    except FAILURES as error:
        failure = failure_of(error, "the language model", "the lm section")
        if is_outage(error):
            return _unanswered(question, failure)
        prediction = dspy.Prediction(answer="", passages=[], steps=[])
    seconds = seconds_since(start)
    try:
        scored = await objective.ascore(question, prediction, judge, failed=failure is not None)
    except DSPyError as error:  # the judge's
        return _unanswered(question, one_line(error))
    # The calls and searches before a failure are lost with their records; what they cost and found is not nothing.
    lost = (*COST, *count_names(), "passages") if failure else ()
    cached = [] if failure else [record.cached_calls for record in prediction.steps]
    timing = {SECONDS: seconds} | ({} if failure or None in cached else {CACHED: float(sum(cached))})
    if scored.failure and not failure:
        failure = f"a metric failed: {scored.failure}"
    return QuestionResult(
        question=question,
        answer=prediction.answer,
        passages=[passage.id for passage in prediction.passages],
        scores={name: value for name, value in scored.values.items() if name not in lost} | timing,
        steps=prediction.steps,
        failure=failure,
        judge_failure=scored.judge_failure,
    )
