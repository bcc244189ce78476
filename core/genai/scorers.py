"""The metrics and the data sets of this package as MLflow's own evaluation takes them: ``mlflow.genai.evaluate``."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import dspy
import mlflow
from mlflow.dspy.callback import MlflowCallback
from mlflow.entities import Feedback, LiveSpan, SpanType
from mlflow.genai.datasets import EvaluationDataset, create_dataset
from mlflow.genai.scorers import Scorer, scorer

from hoptimizer.answers import plain_answer
from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import DataSet
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.metrics import METRICS, Metric, metric
from hoptimizer.genai.spans import TYPES, document, times
from hoptimizer.retrieval import Passage, Retriever

_INPUTS = ("question", "main")
# The kinds of steps that DSPy's callbacks hear of: its autolog, which MLflow's evaluation turns on, makes their spans.
_HEARD = ("lm", "retrieval")


def scorers(names: Iterable[str] = tuple(METRICS)) -> list[Scorer]:
    """Metrics as scorers of ``mlflow.genai``.

    Args:
        names: as a config gives them; by default all of this package's.

    Returns:
        a scorer for each, of the same name. It takes the outputs of :func:`predictor` and the expectations of
        :func:`evaluation_dataset`, and gives no score where the question lacks the annotation for it.

    Raises:
        UserError: there is no such metric.

    Example:
        >>> from hoptimizer import scorers
        >>> [f1] = scorers(["f1"])
        >>> inputs, expectations = {"question": "Where was Marie Curie born?"}, {"id": "1", "answers": ["Warsaw"]}
        >>> f1(inputs=inputs, outputs={"answer": "Warsaw", "passages": []}, expectations=expectations)[0].value
        1.0
    """
    return [_scorer(name, metric(name)) for name in names]


def _scorer(name: str, measured: Metric) -> Scorer:
    def score(inputs: dict[str, Any], outputs: dict[str, Any], expectations: dict[str, Any]) -> list[Feedback]:
        question = Question.model_validate({**inputs, **expectations})
        passages = [Passage(**passage) for passage in outputs["passages"]]
        value = measured.measure(question, dspy.Prediction(answer=outputs["answer"], passages=passages))
        return [] if value is None else [Feedback(name=name, value=float(value))]

    return scorer(score, name=name, description=measured.description)


def evaluation_dataset(data: DataSet, split: str, *, experiment_id: str | None = None) -> EvaluationDataset:
    """A split of a data set as an evaluation data set of MLflow's, in the store that MLflow is pointed at.

    Args:
        data: the data set.
        split: the split.
        experiment_id: the experiment that it belongs to; by default the active one.

    Returns:
        the data set, called ``NAME-SPLIT`` and the start of the questions' digest. The same questions are there once.

    Raises:
        MlflowException: the store keeps no evaluation data sets.
        UserError: a question is there twice in the same words.

    Example:
        >>> from pathlib import Path
        >>> import mlflow
        >>> from hoptimizer import evaluation_dataset
        >>> from hoptimizer.eval import load
        >>> mlflow.set_tracking_uri(f"sqlite:///{Path.cwd()}/mlflow.db")
        >>> dataset = evaluation_dataset(load("atlas"), "dev", experiment_id="0")
        >>> len(dataset.to_df())
        60
    """
    records = [_record(question) for question in data.split(split)]
    alike = Counter(json.dumps(record["inputs"]) for record in records).most_common(1)
    if alike and alike[0][1] > 1:
        raise UserError(
            f"{data.name}, {split}: {alike[0][0]:.100} is asked twice, and MLflow keeps one of them; drop one"
        )
    digest = hashlib.sha256(json.dumps(records).encode()).hexdigest()[:8]
    name = f"{data.name.replace(chr(39), '')}-{split}-{digest}"  # an apostrophe is no part of a filter
    experiments = [experiment_id] if experiment_id else None
    found = mlflow.genai.search_datasets(experiments, filter_string=f"name = '{name}'", max_results=1)
    dataset = found[0] if found else create_dataset(name, experiment_id)
    return dataset.merge_records(records)


def _record(question: Question) -> dict[str, Any]:
    values = question.model_dump(mode="json", exclude_defaults=True)
    inputs = {name: values.pop(name) for name in _INPUTS if name in values}
    return {"inputs": inputs, "expectations": values}


def predictor(program: dspy.Module) -> Callable[..., dict[str, Any]]:
    """A program as the ``predict_fn`` of ``mlflow.genai.evaluate``.

    Args:
        program: what :func:`hoptimizer.load_variant` gives.

    Returns:
        a function of a question that gives its ``answer``, the ``passages`` it came from and the ``steps``. A call is
        a trace of MLflow's, in which each step is a span, and what was retrieved is there as documents.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> import mlflow
        >>> from hoptimizer import predictor
        >>> from hoptimizer.programs import Direct
        >>> mlflow.tracing.disable()  # or each call is a trace in MLflow's store
        >>> with dspy.context(lm=DummyLM([{"answer": "Warsaw"}])):
        ...     predictor(Direct())(question="Where was Marie Curie born?")["answer"]
        'Warsaw'
        >>> mlflow.tracing.enable()
    """

    # Of a program of hoptimizer's, or of the variant that has it.
    found = getattr(getattr(program, "program", program), "retriever", None)
    retriever = found if isinstance(found, Retriever) else None

    def predict(question: str, main: str | None = None) -> dict[str, Any]:
        prediction = program(question=question, main=main)
        if span := mlflow.get_current_active_span():  # none where tracing is switched off
            _trace_steps(span, prediction, retriever)
        return plain_answer(prediction)

    return mlflow.trace(predict, name="question", span_type=SpanType.AGENT)


def _trace_steps(parent: LiveSpan, prediction: dspy.Prediction, retriever: Retriever | None) -> None:
    kept = {passage.id: passage for passage in prediction.passages}
    autologged = any(isinstance(one, MlflowCallback) for one in dspy.settings.callbacks)
    for step in prediction.steps:
        if autologged and step.kind in _HEARD:
            continue
        start, end = times(step)
        span = mlflow.start_span_no_context(
            step.step, span_type=TYPES[step.kind], parent_span=parent, inputs=step.inputs, start_time_ns=start
        )
        outputs: object = step.outputs
        if step.kind == "retrieval":
            ids = step.outputs["passages"]
            outputs = [document(one, kept.get(one) or (retriever.passage(one) if retriever else None)) for one in ids]
        span.end(outputs=outputs, end_time_ns=end)
