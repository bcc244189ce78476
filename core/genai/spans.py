"""A step as a span of MLflow's: of which type, and when it was."""

from mlflow.entities import SpanType

from hoptimizer.programs.record import StepRecord

TYPES = {"lm": SpanType.LLM, "model": SpanType.TOOL, "retrieval": SpanType.RETRIEVER, "outcome": SpanType.CHAIN}
"""By the kind of a step."""


def times(step: StepRecord) -> tuple[int, int]:
    """When a step started and ended, in nanoseconds since 1970."""
    end = int(step.ended * 1e9)
    return end - int(step.seconds * 1e9), end
