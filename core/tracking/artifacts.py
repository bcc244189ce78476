"""What the active MLflow run keeps of a variant: its config, questions, scores, answers and program."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import dspy
import mlflow
import pandas as pd
import yaml

from hoptimizer.config import Config
from hoptimizer.eval.datasets.dataset import DataSet
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.groups import metrics_by_group
from hoptimizer.eval.runner import Evaluation
from hoptimizer.models.lm import is_local, is_tuned
from hoptimizer.models.settings import LOCAL
from hoptimizer.models.small.base import SmallModel
from hoptimizer.programs import Ensemble, Program
from hoptimizer.stored import state_to_store

PREFIX = "hop."
VARIANT = "variant"
UNANSWERED = "unanswered"
"""The column of predictions that marks questions without a result."""

CONFIG = f"{VARIANT}/config.yaml"
STATE = f"{VARIANT}/program.json"
PREDICTIONS = "predictions"
PART = 2000
"""The most questions in one table: MLflow's page takes 0.3 MB of the browser's memory for each row of a table."""

TABLES = 50
"""How many parts are tables to MLflow, which lists them in a tag of at most 8,000 characters; further ones are JSON."""

DECIMALS = 10
"""How many decimals of a number the table of predictions keeps, which MLflow writes with pandas' default."""

# Where an MLflow model keeps its variant, below the model's own folder.
IN_MODEL = "artifacts"

_CODE = Path(__file__).parents[1] / "mlflow_model.py"
_STEP_SCORES = ("f1", "precision", "recall", "balanced_accuracy", "token_f1", "tag_f1", "passages", "n")


def predictions_file(split: str, moment: str, part: int = 1) -> str:
    """The table of answers on a split, ``before`` or ``after`` compiling, or a further part of it."""
    return f"{PREDICTIONS}/{split}-{moment}{f'-{part}' if part > 1 else ''}.json"


def parts_tag(split: str, moment: str) -> str:
    """The tag that says in how many parts a table of answers is kept, where it is more than one."""
    return f"{PREFIX}{PREDICTIONS}/{split}-{moment}"


def log_config(config: Config, data: DataSet) -> None:
    """Log the resolved config (no secret), the data set, and as parameters what decides on the result."""
    deciding = flatten(config.deciding)
    mlflow.log_params({key: str(value)[:500] for key, value in deciding.items() if value is not None})
    mlflow.log_text(_yaml(config.public()), CONFIG)
    tags = {"program": config.program.name, "data": data.name, "data_digest": data.digest}
    tags["lm"] = config.lm["default"].model
    mlflow.set_tags({PREFIX + name: value for name, value in tags.items()})


def log_questions(data: DataSet, split: str, questions: Sequence[Question]) -> None:
    """Log the questions of an evaluation or a compile as an MLflow input."""
    frame = pd.DataFrame([{"question": q.question, "answer": q.answers[0]} for q in questions])
    with warnings.catch_warnings():
        # A folder is a source of two kinds to MLflow, which takes the right one.
        warnings.filterwarnings("ignore", message=".*interpreted in multiple ways")
        dataset = mlflow.data.from_pandas(
            frame, source=str(data.folder / split), name=f"{data.name}-{split}", targets="answer"
        )
    mlflow.log_input(dataset, context=split)


def log_evaluation(evaluation: Evaluation, split: str, moment: str) -> None:
    """Log scores as metrics and answers as a table.

    Args:
        evaluation: what to log.
        split: the split that was answered.
        moment: ``before`` or ``after`` compiling; metrics are called ``dev/f1`` and ``dev/before/f1``, those of groups
            of questions ``dev/f1/type/bridge`` and ``dev/f1/hops/2``.
    """
    prefix = f"{split}/" if moment == "after" else f"{split}/{moment}/"
    metrics = evaluation.metrics | metrics_by_group(evaluation.rows)
    mlflow.log_metrics({prefix + name: value for name, value in metrics.items()})
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


def log_variant(config: Config, program: Program, work: Path) -> dict[str, dict[str, float]]:
    """Log a compiled program: its state, what it learned from, and, as an MLflow model, all that it needs to answer.

    The run itself has config and state; weights are in the model alone.

    Args:
        config: what it was made from.
        program: the compiled program.
        work: the folder of the compile, whose examples are kept.

    Returns:
        how well its small models do on dev, by the step.
    """
    small = small_models(program)
    steps = {
        step: {name: model.card.scores[name] for name in _STEP_SCORES if name in model.card.scores}
        for step, model in small.items()
    }
    mlflow.log_metrics(
        {f"steps/{step}/{name}": score for step, scores in steps.items() for name, score in scores.items()}
    )
    for file in work.rglob("*.jsonl"):
        mlflow.log_artifact(str(file), str(PurePosixPath("examples") / file.parent.relative_to(work).as_posix()))
    mlflow.log_text(json.dumps(state_to_store(program.dump_state()), ensure_ascii=False, indent=1), STATE)
    folders = {f"steps/{step}": model.folder for step, model in small.items()}
    folders |= {f"lm/{Path(lm.model).name}": Path(lm.model.removeprefix(LOCAL)) for lm in tuned_lms(program)}
    _log_model(config, program, folders)
    return steps


def _log_model(config: Config, program: Program, models: Mapping[str, Path]) -> None:
    """Log a program as an MLflow model: from code, with its config, state and models beside it; nothing is pickled."""
    public = config.public()
    public["program"]["steps"] = {}  # wherever they came from, they lie beside it
    with tempfile.TemporaryDirectory() as staging:
        folder = Path(staging) / VARIANT
        folder.mkdir()
        for place, source in models.items():
            shutil.copytree(source, folder / place)
        (folder / "config.yaml").write_text(_yaml(public), encoding="utf-8")
        (folder / "program.json").write_text(json.dumps(state_to_store(program.dump_state())), encoding="utf-8")
        mlflow.pyfunc.log_model(
            name="program",
            python_model=str(_CODE),
            artifacts={VARIANT: str(folder)},
            pip_requirements=[f"hoptimizer=={version('hoptimizer')}"],
        )


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


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
