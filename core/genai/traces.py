"""Answers as MLflow traces: each step a span, what was retrieved as documents, scores as assessments."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlflow
from mlflow.entities import (
    Assessment,
    AssessmentSource,
    Expectation,
    Feedback,
    Span,
    SpanType,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import (
    TRACE_SCHEMA_VERSION,
    TRACE_SCHEMA_VERSION_KEY,
    SpanAttributeKey,
    TraceMetadataKey,
    TraceTagKey,
)

from hoptimizer.common.urls import text_without_secrets
from hoptimizer.eval.runner import QuestionResult
from hoptimizer.genai.spans import TYPES, document, times
from hoptimizer.genai.transaction import one_transaction
from hoptimizer.programs.record import StepRecord
from hoptimizer.retrieval import Passage

Known = Callable[[str], Passage | None]
"""Gives a passage by its id, where it is known."""

QUALITIES = ("em", "f1", "accuracy", "recall", "objective")
QUESTION = "hop.question"
"""The tag of a trace that has the question's id."""

_BATCH = 50  # traces that are sent together
_SOURCE = AssessmentSource(source_type="CODE", source_id="hoptimizer")
_PREVIEW = 1000


@dataclass(frozen=True)
class TracedRun:
    """The run whose answers are traced.

    Attributes:
        uri: the store's tracking URI.
        experiment_id: the run's experiment.
        run_id: the run.
        program: the program's name, which the root span has.
        model_id: the MLflow model that answered, if there is one.
    """

    uri: str
    experiment_id: str
    run_id: str
    program: str
    model_id: str | None = None


def log_traces(rows: Sequence[QuestionResult], run: TracedRun, known: Known, quality: str) -> dict[str, str]:
    """Log answers as traces of a run. Logged again, they take the place of those that are there.

    They are made of the records of the steps once all questions are answered: nothing is slower by them before.

    Args:
        rows: what is traced.
        run: the run.
        known: gives the passages, which records name by their ids.
        quality: a metric of the user's that is an assessment, too.

    Returns:
        the ids of the traces, by those of their questions.

    Raises:
        MlflowException: the store fails.
    """
    client, ids = TracingClient(run.uri), {}
    for start in range(0, len(rows), _BATCH):
        spans: list[Span] = []
        with one_transaction(client) as writer:
            for row in rows[start : start + _BATCH]:
                trace = _Trace(row, run, known)
                writer.start_trace(trace.info([*dict.fromkeys([*QUALITIES, quality])]))
                spans += trace.spans()
                ids[row.question.id] = trace.id
            writer.log_spans(run.experiment_id, spans)
    return ids


def copy_traces(source: str, run_id: str, target: TracedRun, mapped: Callable[[str], str]) -> None:
    """Log the traces of a run of one store in another, with their ids.

    Args:
        source: the tracking URI of the store that has them.
        run_id: the run there.
        target: the run that they become those of.
        mapped: a text that names runs and models as the other store calls them.
    """
    found = mlflow.MlflowClient(tracking_uri=source)
    experiment, client, token = found.get_run(run_id).info.experiment_id, TracingClient(target.uri), None
    while True:
        page = found.search_traces(
            locations=[experiment], run_id=run_id, max_results=_BATCH, page_token=token, include_spans=True
        )
        for trace in page:
            info = trace.info
            info.trace_location = TraceLocation.from_experiment_id(target.experiment_id)
            info.trace_metadata = {key: mapped(value) for key, value in info.trace_metadata.items()} | {
                TraceMetadataKey.SOURCE_RUN: target.run_id,
                **({TraceMetadataKey.MODEL_ID: target.model_id} if target.model_id else {}),
            }
            info.tags = {key: value for key, value in info.tags.items() if not key.startswith(_OF_A_STORE)}
            client.start_trace(info)
            client.log_spans(target.experiment_id, trace.data.spans)
        if not (token := page.token):
            return


def delete_traces(uri: str, experiment_id: str, run_id: str) -> None:
    """Delete the traces of a run."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    while page := client.search_traces(
        locations=[experiment_id], run_id=run_id, max_results=_BATCH, include_spans=False
    ):
        client.delete_traces(experiment_id, trace_ids=[trace.info.trace_id for trace in page])


# Tags that say where a store keeps a trace.
_OF_A_STORE = ("mlflow.artifactLocation", TraceTagKey.SPANS_LOCATION)


class _Trace:
    """One answer as a trace."""

    def __init__(self, row: QuestionResult, run: TracedRun, known: Known) -> None:
        self._row, self._run, self._known = row, run, known
        self._hex = hashlib.sha256(f"{run.run_id} {row.question.id}".encode()).hexdigest()[:32]
        self.id = f"tr-{self._hex}"
        taken = [times(step) for step in row.steps] or [(time.time_ns(), time.time_ns())]
        self._start, self._end = min(start for start, _ in taken), max(end for _, end in taken)

    def info(self, qualities: Sequence[str]) -> TraceInfo:
        """What lists of traces show."""
        row, run = self._row, self._run
        metadata = {
            TRACE_SCHEMA_VERSION_KEY: str(TRACE_SCHEMA_VERSION),
            TraceMetadataKey.SOURCE_RUN: run.run_id,
            **({TraceMetadataKey.MODEL_ID: run.model_id} if run.model_id else {}),
        }
        marks = [
            Feedback(name=name, value=row.scores[name], source=_SOURCE) for name in qualities if name in row.scores
        ]
        return TraceInfo(
            trace_id=self.id,
            trace_location=TraceLocation.from_experiment_id(run.experiment_id),
            request_time=self._start // 1_000_000,
            state=TraceState.ERROR if row.failure else TraceState.OK,
            request_preview=row.question.question[:_PREVIEW],
            response_preview=row.answer[:_PREVIEW],
            execution_duration=(self._end - self._start) // 1_000_000,
            trace_metadata=metadata,
            tags={TraceTagKey.TRACE_NAME: run.program, QUESTION: row.question.id},
            assessments=self._named([*marks, Expectation(name="answers", value=row.question.answers)]),
        )

    def _named(self, assessments: list[Assessment]) -> list[Assessment]:
        """Assessments with ids of their own, by which those that are logged again take the place of the first."""
        for assessment in assessments:
            digest = hashlib.sha256(f"{self.id} {assessment.name}".encode()).hexdigest()
            assessment.assessment_id = f"a-{digest[:32]}"
        return assessments

    def spans(self) -> list[Span]:
        """The question, and below it each step."""
        row = self._row
        root = self._span(
            0,
            self._run.program,
            SpanType.AGENT,
            (self._start, self._end),
            {"question": row.question.question},
            {"answer": row.answer, "passages": row.passages},
            row.failure,
        )
        return [root, *(self._step(number, step) for number, step in enumerate(row.steps, 1))]

    def _step(self, number: int, step: StepRecord) -> Span:
        outputs: object = step.outputs
        if step.kind == "retrieval":
            outputs = [document(one, self._known(one)).to_dict() for one in step.outputs["passages"]]
        known: dict[str, object] = {"hop.depth": step.depth, "hop.calls": step.calls}
        if step.prompt_tokens is not None and step.calls:
            read, written = step.prompt_tokens, step.completion_tokens or 0
            usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
            known[SpanAttributeKey.CHAT_USAGE] = usage
        kind = TYPES[step.kind]
        return self._span(number, step.step, kind, times(step), step.inputs, outputs, step.failure, known)

    def _span(
        self,
        number: int,
        name: str,
        kind: str,
        times: tuple[int, int],
        inputs: object,
        outputs: object,
        failure: str | None,
        known: Mapping[str, object] | None = None,
    ) -> Span:
        attributes = {
            SpanAttributeKey.REQUEST_ID: self.id,
            SpanAttributeKey.SPAN_TYPE: kind,
            SpanAttributeKey.INPUTS: inputs,
            SpanAttributeKey.OUTPUTS: outputs,
            **(known or {}),
        }
        status = {"code": "STATUS_CODE_ERROR", "message": text_without_secrets(failure)} if failure else _OK
        return Span.from_dict(
            {
                "trace_id": self.id,
                "span_id": _span_id(number),
                "parent_span_id": _span_id(0) if number else None,
                "name": name,
                "start_time_unix_nano": times[0],
                "end_time_unix_nano": times[1],
                "status": status,
                "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in attributes.items()},
                "events": [],
            }
        )


_OK = {"code": "STATUS_CODE_OK", "message": ""}


def _span_id(number: int) -> str:
    """A span's id within its trace, where zero means none."""
    return f"{number + 1:016x}"
