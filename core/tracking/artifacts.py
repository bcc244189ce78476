"""What the active MLflow run keeps of a variant: its config, questions, scores, answers and program."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import dspy
import mlflow
import pandas as pd
from mlflow.data.pandas_dataset import PandasDataset

from hoptimizer.config import Config
from hoptimizer.eval.datasets.dataset import DataSet
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.groups import metrics_by_group
from hoptimizer.eval.runner import Evaluation
from hoptimizer.genai.prompts import register_prompts
from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.lm import is_tuned
from hoptimizer.models.settings import LOCAL
from hoptimizer.models.small.base import SmallModel
from hoptimizer.programs import Ensemble, Program
from hoptimizer.stored import state_to_store
from hoptimizer.tracking.models import as_yaml, config_beside_models, log_model
from hoptimizer.tracking.naming import (
    CONFIG,
    CORPUS,
    FOLDED,
    HEADLINES,
    PREFIX,
    SHARES,
    STATE,
    UNANSWERED,
    logged_names,
    model_name,
    params_of,
    parts_tag,
    predictions_file,
)
from hoptimizer.tracking.server import outage

PART = 2000
"""The most questions in one table: MLflow's page takes 0.3 MB of the browser's memory for each row of a table."""

TABLES = 50
"""How many parts are tables to MLflow, which lists them in a tag of at most 8,000 characters; further ones are JSON."""

DECIMALS = 10
"""How many decimals of a number the table of predictions keeps, which MLflow writes with pandas' default."""

_STEP_SCORES = ("f1", "precision", "recall", "balanced_accuracy", "token_f1", "tag_f1", "passages", "n")


@dataclass(frozen=True)
class Links:
    """What scores are of, besides their run.

    Attributes:
        model_id: the MLflow model that was scored.
        dataset: the questions, as they were logged.
        traces: the ids of traces, by those of their questions.
    """

    model_id: str | None = None
    dataset: PandasDataset | None = None
    traces: Mapping[str, str] = field(default_factory=dict)


NO_LINKS = Links()


def log_config(config: Config, data: DataSet, *, compiled: bool) -> None:
    """Log the resolved config (no secret), the data set, and as parameters what decides on the result.

    Args:
        config: of the run.
        data: the data set.
        compiled: whether an optimizer made its program.
    """
    mlflow.log_params(params_of(config, compiled=compiled))
    mlflow.log_text(as_yaml(config.public()), CONFIG)
    tags = {"program": config.program.name, "data": data.name, "data_digest": data.digest}
    tags["lm"] = config.lm["default"].model
    mlflow.set_tags({PREFIX + name: value for name, value in tags.items()} | {CORPUS: data.corpus.digest})
    if shares := [metric.name for metric in config.objective.own if metric.percent]:
        mlflow.set_tag(SHARES, ",".join(shares))


def log_questions(data: DataSet, split: str, questions: Sequence[Question]) -> PandasDataset:
    """Log the questions of an evaluation or a compile as an MLflow input, to which metrics can refer."""
    frame = pd.DataFrame([{"question": q.question, "answer": q.answers[0]} for q in questions])
    with warnings.catch_warnings():
        # A folder is a source of two kinds to MLflow, which takes the right one.
        warnings.filterwarnings("ignore", message=".*interpreted in multiple ways")
        dataset = mlflow.data.from_pandas(
            frame, source=str(data.folder / split), name=f"{data.name}-{split}", targets="answer"
        )
    mlflow.log_input(dataset, context=split)
    return dataset


def hold_headlines(split: str, questions: Sequence[Question], maximized: str) -> None:
    """Log the headlines that there will be as no number yet, for the page of a run lists metrics in the order in which
    they were first logged, and a compile tells of its search before it has them.

    Args:
        split: the split that will be answered.
        questions: its questions.
        maximized: the name of the metric that is maximized.
    """
    sure = {"em", "f1", "passages", "lm_calls", maximized} | (
        {"recall"} if any(q.passages for q in questions) else set()
    )
    ahead = dict.fromkeys((name for name in (*HEADLINES, maximized) if name in sure), math.nan)
    mlflow.log_metrics(logged_names(ahead, split, maximized))


def log_evaluation(
    evaluation: Evaluation, split: str, moment: str, links: Links = NO_LINKS, maximized: str = "f1"
) -> None:
    """Log scores as metrics and answers as a table.

    Args:
        evaluation: what to log.
        split: the split that was answered.
        moment: ``before`` or ``after`` compiling. The headlines after it are called ``dev/f1``; all other metrics
            are folded: ``workings/dev/contains``, ``workings/dev/before/f1``, and those of groups of questions
            ``workings/dev/f1/type/bridge`` and ``workings/dev/f1/hops/2``.
        links: the model and the data set that the scores are of, and the traces of answers.
        maximized: the name of the metric that is maximized, which is one of the headlines.
    """
    metrics = evaluation.metrics | metrics_by_group(evaluation.rows)
    if moment == "after":
        named = logged_names(metrics, split, maximized)
        heads = {name: value for name, value in named.items() if not name.startswith(FOLDED)}
        mlflow.log_metrics(heads, model_id=links.model_id, dataset=links.dataset)
        mlflow.log_metrics({name: value for name, value in named.items() if name not in heads})
    else:
        mlflow.log_metrics({f"{FOLDED}{split}/{moment}/{name}": value for name, value in metrics.items()})
    table = [
        {
            "id": row.question.id,
            "question": row.question.question,
            "type": row.question.type,
            "hops": len(row.question.hops) or None,
            "answers": row.question.answers,
            "answer": row.answer,
            "failure": row.failure,
            **({"judge_failure": row.judge_failure} if row.judge_failure else {}),
            **({} if row.is_answered else {UNANSWERED: True}),
            "supporting": row.question.passages,
            "collected": row.passages,
            **({"trace": links.traces.get(row.question.id)} if links.traces else {}),
            **row.scores,
        }
        for row in evaluation.rows
    ]
    _log_parts(pd.DataFrame(table), split, moment)
    steps = {row.question.id: [record.as_dict() for record in row.steps] for row in evaluation.rows}
    mlflow.log_text(json.dumps(steps, ensure_ascii=False), f"steps/{split}-{moment}.json")


def _log_parts(table: pd.DataFrame, split: str, moment: str) -> None:
    parts = [table[start : start + PART] for start in range(0, len(table), PART)]
    for number, part in enumerate(parts, 1):
        file = predictions_file(split, moment, number)
        if number <= TABLES:
            mlflow.log_table(part, file)
        else:
            mlflow.log_text(part.to_json(orient="split", index=False), file)
    if len(parts) > 1:
        mlflow.set_tag(parts_tag(split, moment), str(len(parts)))


def log_variant(
    config: Config, program: Program, work: Path, client: mlflow.MlflowClient
) -> tuple[dict[str, dict[str, float]], str]:
    """Log a compiled program: its state, what it learned from, and, as an MLflow model, all that it needs to answer.

    The run itself has config and state; weights are in the model alone.

    Args:
        config: what it was made from.
        program: the compiled program.
        work: the folder of the compile, whose examples are kept.
        client: of the store, whose registry gets the prompts.

    Returns:
        how well its small models do on dev, by the step; and the id of its MLflow model.
    """
    small = small_models(program)
    steps = {
        step: {name: model.card.scores[name] for name in _STEP_SCORES if name in model.card.scores}
        for step, model in small.items()
    }
    mlflow.log_metrics(
        {f"{FOLDED}steps/{step}/{name}": score for step, scores in steps.items() for name, score in scores.items()}
    )
    for file in work.rglob("*.jsonl"):
        mlflow.log_artifact(str(file), str(PurePosixPath("examples") / file.parent.relative_to(work).as_posix()))
    return steps, log_program(config, program, client, compiled=True)


def log_program(config: Config, program: Program, client: mlflow.MlflowClient, *, compiled: bool) -> str:
    """Log a program: its state and config, and all that it needs to answer as an MLflow model.

    Args:
        config: what it was made from.
        program: the program.
        client: of the store, whose registry gets the prompts of a compiled one; an uncompiled one's are those of its
            signatures.
        compiled: whether an optimizer made it.

    Returns:
        the id of its MLflow model.
    """
    name = model_name(config)
    prompts = register_prompts(client, name, program, partial(outage, client.tracking_uri)) if compiled else []
    mlflow.log_text(json.dumps(state_to_store(program.dump_state()), ensure_ascii=False, indent=1), STATE)
    mlflow.log_text(as_yaml(config_beside_models(config)), CONFIG)
    folders = {f"steps/{step}": model.folder for step, model in small_models(program).items()}
    folders |= {f"lm/{Path(lm.model).name}": Path(lm.model.removeprefix(LOCAL)) for lm in tuned_lms(program)}
    return log_model(config, program, folders, prompts, compiled=compiled)


def small_models(program: Program) -> dict[str, SmallModel]:
    """The small models of a program that lie in folders, by the step."""
    models = {step: model for part in _parts(program) for step, model in part.models.items()}
    return {step: model for step, model in models.items() if isinstance(model, SmallModel)}


def tuned_lms(program: Program) -> list[dspy.LM]:
    """The fine-tuned language models of a program that lie in folders, each once."""
    lms = {lm.model: lm for part in _parts(program) for lm in part.lms.values() if is_tuned(lm)}
    return [lm for lm in lms.values() if is_local(lm)]


def _parts(program: Program) -> list[Program]:
    """The programs that have language models and small models."""
    return program.members if isinstance(program, Ensemble) else [program]
