"""What a program did for one question, step by step."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

COUNTS = ("lm_calls", "model_calls", "retrievals", "iterations", "parse_failures", "subquestions")
"""Names of what :func:`counts` gives for any program."""

COST = ("prompt_tokens", "completion_tokens", "cached_tokens", "usd")
"""Names of what :func:`counts` gives where it is known."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a program's run on one question.

    Attributes:
        step: the step's name in its program, e.g. ``"reader"`` or ``"retrieve"``.
        kind: what took it: a language model (``lm``), a small model in its place (``model``) or the retriever
            (``retrieval``). An ``outcome`` is no step, but says how a question or sub-question ended: its ``answer``,
            what it was settled ``by`` and, where the answer is unknown, ``why``.
        inputs: what was asked; passages by id.
        outputs: what came out; passages by id; with a small model also its ``probability``.
        depth: 0 for the question itself, one more for each level of sub-questions.
        seconds: wall time of the step.
        calls: language model calls it took: more than one where a prompt had to be cut to the model's context, or where
            an output that could not be parsed was asked for again in another prompt format.
        prompt_tokens: tokens of the prompts of its calls; ``None`` where they are not known, as of the next four.
        completion_tokens: tokens of what the model wrote, thinking included.
        cached_tokens: those prompt tokens that the provider, or the engine in this process, had cached.
        cached_calls: those calls that DSPy's cache answered.
        usd: the price of its calls in dollars; not known for a model without one, such as a model in this process.
        failure: why nothing usable came out, or ``None``.
        choices: everything that an outcome could have been settled ``by``.
        ended: when it ended, in seconds since 1970; a record is made as its step ends.

    Example:
        >>> from hoptimizer.programs import StepRecord
        >>> record = StepRecord("reader", "lm", {"question": "Who?"}, {"answer": "Marie Curie"}, calls=1)
        >>> record.as_dict()["outputs"]
        {'answer': 'Marie Curie'}
    """

    step: str
    kind: Literal["lm", "model", "retrieval", "outcome"]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    depth: int = 0
    seconds: float = 0.0
    calls: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cached_tokens: int | None = 0
    cached_calls: int | None = 0
    usd: float | None = 0.0
    failure: str | None = None
    choices: tuple[str, ...] = ()
    ended: float = field(default_factory=time.time, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The record as plain data, for JSON; ``choices`` only where there are any, costs only of language models."""
        left_out = (() if self.kind == "lm" else (*COST, "cached_calls")) + (() if self.choices else ("choices",))
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in left_out}


def counts(records: Iterable[StepRecord]) -> dict[str, float]:
    """The counts of the papers' tables, derived from the records of one question.

    Returns:
        ``lm_calls``, ``model_calls`` (steps taken by small models), ``retrievals`` (searches), ``iterations``
        (retrieval rounds that a further thought followed, plus the first), ``parse_failures``. For a program that
        splits questions up, ``iterations`` are the levels of questions that were worked on, and there are also
        ``subquestions`` (RA-ISF, table 4, which counts the question itself as well) and, 1 or 0 each, ``by_...`` for
        everything that could have settled the question (RA-ISF, table 7; the mean over questions is a module's
        workload rate). ``prompt_tokens``, ``completion_tokens``, ``cached_tokens`` and ``usd`` are there if they are
        known of every call.
    """
    rows = list(records)
    outcomes = [row for row in rows if row.kind == "outcome"]
    steps = [row for row in rows if row.kind != "outcome"]
    result = {
        "lm_calls": float(sum(row.calls for row in steps)),
        "model_calls": float(sum(row.kind == "model" for row in steps)),
        "retrievals": float(sum(row.kind == "retrieval" for row in steps)),
        "iterations": float(
            sum(row.kind == "retrieval" and row.depth == 0 for row in steps)
            # A program that goes on with several queries at once has each round one level deeper.
            + max((row.depth for row in steps if row.kind == "retrieval"), default=0)
        ),
        "parse_failures": float(sum(row.failure is not None for row in steps)),
    }
    for name in COST:
        values = [getattr(row, name) for row in steps]
        if None not in values:
            result[name] = float(sum(values))
    if outcomes:
        result["iterations"] = 1.0 + max((row.depth for row in steps), default=-1)
        result["subquestions"] = float(sum(row.depth > 0 for row in outcomes))
        for outcome in (row for row in outcomes if row.depth == 0):
            result |= {f"by_{name}": float(name == outcome.outputs["by"]) for name in outcome.choices}
    return result


def outcome_counts(choices: Iterable[str]) -> tuple[str, ...]:
    """Names of what :func:`counts` and :func:`solved` give for a program whose questions are settled by one of several.

    >>> outcome_counts(["reading", "splitting"])
    ('by_reading', 'by_splitting', 'solved_by_reading', 'solved_by_splitting')
    """
    by = [f"by_{name}" for name in choices]
    return (*by, *(f"solved_{name}" for name in by))


def solved(counted: Mapping[str, float], em: float) -> dict[str, float]:
    """1 for what settled a question and was right, 0 for all else (RA-ISF, table 7: correct problems of each module).

    Args:
        counted: the counts that :func:`counts` gives.
        em: 1 if the question's answer is right, else 0.
    """
    return {f"solved_{name}": value * em for name, value in counted.items() if name.startswith("by_")}
