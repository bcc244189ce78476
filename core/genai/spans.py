"""A step as a span of MLflow's: of which type, when it was, and what was found as documents."""

from mlflow.entities import Document, SpanType

from hoptimizer.programs.record import StepRecord
from hoptimizer.programs.steps.searching import as_document
from hoptimizer.retrieval import Passage

TYPES = {"lm": SpanType.LLM, "model": SpanType.TOOL, "retrieval": SpanType.RETRIEVER, "outcome": SpanType.CHAIN}
"""By the kind of a step."""


def times(step: StepRecord) -> tuple[int, int]:
    """When a step started and ended, in nanoseconds since 1970."""
    end = int(step.ended * 1e9)
    return end - int(step.seconds * 1e9), end


def document(passage_id: str, passage: Passage | None) -> Document:
    """A passage that was found.

    Args:
        passage_id: its id.
        passage: the passage; ``None`` where its text is not known here.
    """
    if passage is None:
        return Document(page_content="", id=passage_id)
    return Document(**as_document(passage))
