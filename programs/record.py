"""What a program did for one question, step by step."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a program's run on one question.

    Attributes:
        step: the step's name in its program, e.g. ``"reader"`` or ``"retrieve"``.
        kind: what fulfilled it: a language model, or the retriever.
        inputs: what was asked; passages by id.
        outputs: what came out; passages by id.
        depth: 0 for the question itself, one more for each level of sub-questions.
        seconds: wall time of the step.
        calls: language model calls it took (more than one where a prompt had to be cut to the model's context).
        failure: why nothing usable came out, or ``None``.
    """

    step: str
    kind: Literal["lm", "retrieval"]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    depth: int = 0
    seconds: float = 0.0
    calls: int = 0
    failure: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The record as plain data, for JSON."""
        return asdict(self)


@dataclass(slots=True)
class Trail:
    """Collects the records of one question, in the order in which the steps finished."""

    records: list[StepRecord] = field(default_factory=list)

    def add(self, record: StepRecord) -> None:
        self.records.append(record)


def counts(records: Iterable[StepRecord]) -> dict[str, float]:
    """The counts of the papers' tables, derived from the records of one question.

    Returns:
        ``lm_calls``, ``retrievals`` (searches), ``iterations`` (retrieval rounds that a further thought followed,
        plus the first), ``parse_failures``.
    """
    rows = list(records)
    return {
        "lm_calls": float(sum(row.calls for row in rows)),
        "retrievals": float(sum(row.kind == "retrieval" for row in rows)),
        "iterations": float(sum(row.kind == "retrieval" and row.depth == 0 for row in rows)),
        "parse_failures": float(sum(row.failure is not None for row in rows)),
    }
