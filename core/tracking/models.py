"""The MLflow model of a variant: logged with all that it needs, found by its run, and registered by a name."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import yaml
from mlflow.entities import LoggedModel, LoggedModelInput, LoggedModelOutput, LoggedModelStatus, Metric, Run
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.utils.file_utils import local_file_uri_to_path

from hoptimizer.common.errors import UserError
from hoptimizer.common.urls import line_without_secrets, without_secrets
from hoptimizer.compiled import NOT_ASKED
from hoptimizer.config import Config
from hoptimizer.genai.prompts import LINKED, copy_prompts
from hoptimizer.programs import Program
from hoptimizer.stored import state_to_store
from hoptimizer.tracking.holding import located
from hoptimizer.tracking.naming import STARTED_FROM, VARIANT, model_name, params_of
from hoptimizer.tracking.server import outage

# Where an MLflow model keeps its variant, below the model's own folder.
IN_MODEL = "artifacts"

_CODE = Path(__file__).parents[1] / "mlflow_model.py"
_MLMODEL = "MLmodel"
_TYPE = "multi-hop question answering"
# MLflow gives a model all metrics of its run that were logged for its step; the headlines are given to it one by one.
_NO_STEP = -1
_STEPS = "program.steps."


def log_model(
    config: Config,
    program: Program,
    folders: Mapping[str, Path],
    prompts: Sequence[str] = (),
    *,
    compiled: bool = True,
) -> str:
    """Log a program as an MLflow model: from code, with its config, state and models beside it; nothing is pickled.

    Args:
        config: what it was made from; what decides on its results becomes the model's parameters.
        program: the program.
        folders: its fine-tuned models, by their place in the variant.
        prompts: URIs of its prompts in the registry.
        compiled: whether an optimizer made it.

    Returns:
        the model's id.
    """
    with tempfile.TemporaryDirectory() as staging:
        folder = Path(staging) / VARIANT
        folder.mkdir()
        for place, source in folders.items():
            shutil.copytree(source, folder / place)
        (folder / "config.yaml").write_text(as_yaml(config_beside_models(config)), encoding="utf-8")
        (folder / "program.json").write_text(json.dumps(state_to_store(program.dump_state())), encoding="utf-8")
        logged = mlflow.pyfunc.log_model(
            name=model_name(config, compiled=compiled),
            python_model=str(_CODE),
            artifacts={VARIANT: str(folder)},
            pip_requirements=[f"hoptimizer=={version('hoptimizer')}"],
            params=params_of(config, compiled=compiled),
            model_type=_TYPE,
            prompts=list(prompts) or None,
            step=_NO_STEP,
        )
    return str(logged.model_id)


def config_beside_models(config: Config) -> dict[str, Any]:
    """A kept program's config as plain data: wherever its small models came from, they lie beside it."""
    public = config.public()
    public["program"]["steps"] = {}
    return public


def as_yaml(values: Mapping[str, Any]) -> str:
    """Plain data as a YAML file, in its order."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def model_of(client: mlflow.MlflowClient, run: Run) -> LoggedModel | None:
    """The MLflow model that a run logged; of several, which a compile that was killed leaves, the last whole one."""
    models = [client.get_logged_model(output.model_id) for output in run.outputs.model_outputs]
    ready = [model for model in models if model.status == LoggedModelStatus.READY]
    return max(ready, key=lambda model: model.creation_timestamp, default=None)


def models_of(client: mlflow.MlflowClient, run: Run) -> list[LoggedModel]:
    """The MLflow models of a run that were not deleted; one whose run ended while it was logged is not whole."""
    models = []
    for output in run.outputs.model_outputs:
        try:
            models.append(client.get_logged_model(output.model_id))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    return models


def link_model(client: mlflow.MlflowClient, run_id: str, model: LoggedModel) -> str:
    """Link a run to the model that it scores.

    Args:
        client: of the store.
        run_id: the run.
        model: the model.

    Returns:
        the model's id.
    """
    client.log_inputs(run_id, models=[LoggedModelInput(model.model_id)])
    return str(model.model_id)


def answers_as(model: LoggedModel, params: Mapping[str, str]) -> bool:
    """Whether a model answers as a run did that has its program: with the same language models and the same retriever.

    Args:
        model: of the run that has the program.
        params: those of the run.
    """
    # The small models of a kept program lie beside it: its config names none, unless the user does.
    its, wanted = ({key: value for key, value in one.items() if _answers(key)} for one in (model.params, params))
    return its == wanted and not any(key.startswith(_STEPS) for key in params)


def _answers(key: str) -> bool:
    section, _, rest = key.partition(".")
    if section == "lm":
        return rest.partition(".")[0] not in NOT_ASKED
    return section in ("program", "retriever") and not key.startswith(_STEPS)


def copy_model(source: mlflow.MlflowClient, model: LoggedModel, client: mlflow.MlflowClient, target: Run) -> str:
    """Log a model of a local store in another, in the steps of which each is done once: create, link, upload, finish.

    Args:
        source: the client of the store that has it.
        model: the model.
        client: that of the other store.
        target: the run there that gets it.

    Returns:
        the id of the copy.
    """
    info = target.info
    made = client.search_logged_models([info.experiment_id], f"source_run_id = '{info.run_id}'")
    tags = {name: value for name, value in model.tags.items() if name != LINKED}
    copy = next((one for one in made if one.name == model.name), None) or client.create_logged_model(
        info.experiment_id, model.name, info.run_id, tags, model.params, model.model_type
    )
    if copy.model_id not in {output.model_id for output in target.outputs.model_outputs}:
        client.log_outputs(info.run_id, [LoggedModelOutput(copy.model_id, step=0)])
    folder = local_folder(model.artifact_location)
    client.log_model_artifacts(copy.model_id, str(folder))
    own = Model.load(str(folder))
    own.artifact_path, own.run_id = copy.artifact_location, info.run_id
    own.model_uuid = own.model_id = copy.model_id
    with tempfile.TemporaryDirectory() as staging:
        own.save(str(Path(staging) / _MLMODEL))
        client.log_model_artifact(copy.model_id, str(Path(staging) / _MLMODEL))
    scores = [
        Metric(m.key, m.value, m.timestamp, m.step, copy.model_id, m.dataset_name, m.dataset_digest, info.run_id)
        for m in model.metrics or ()
        if m.run_id == model.source_run_id
    ]
    client.log_batch(info.run_id, scores)
    copy_prompts(source, client, model, copy.model_id)
    client.finalize_logged_model(copy.model_id, LoggedModelStatus.READY)
    return str(copy.model_id)


def local_folder(uri: str) -> Path:
    """The folder of a store of this machine."""
    return Path(local_file_uri_to_path(uri))


@dataclass(frozen=True)
class RegisteredVariant:
    """A version of a model in MLflow's registry.

    Attributes:
        name: of the registered model.
        version: its version.
        run_id: the run that has the variant.
        model_id: the MLflow model.

    Example:
        >>> from hoptimizer import RegisteredVariant
        >>> RegisteredVariant("capitals", "1", "1f2e3d", "m-4c5b6a").uri
        'models:/capitals/1'
    """

    name: str
    version: str
    run_id: str
    model_id: str

    @property
    def uri(self) -> str:
        """What :func:`mlflow.pyfunc.load_model` takes."""
        return f"models:/{self.name}/{self.version}"

    def as_dict(self) -> dict[str, Any]:
        """What ``hop register --json`` prints."""
        return {**asdict(self), "uri": self.uri}


def register_variant(tracking_uri: str, run_id: str, name: str | None = None) -> RegisteredVariant:
    """Register the MLflow model of a variant by a name, as its next version.

    Args:
        tracking_uri: the store that has the run; the registry is its own.
        run_id: the run of a compile, or of an evaluation of an uncompiled program.
        name: what the registry calls it; by default as the MLflow model is called.

    Raises:
        UserError: the run has no model, or the registry refuses the name.
        Unreachable: the store's server gives no answer.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import compile_variant, load_config, register_variant
        >>> words = ["data=atlas", "data.train=4", "data.dev=1", "program=direct", "lm.default.max_tokens=8"]
        >>> store = f"sqlite:///{Path.cwd()}/mlflow.db"
        >>> config = load_config(None, [*words, "optimizer=labeled_few_shot", f"tracking.uri={store}"])
        >>> variant = compile_variant(config, score_before=False)
        >>> register_variant(store, variant.run_id, "capitals").uri
        'models:/capitals/1'
    """
    client = mlflow.MlflowClient(tracking_uri=located(tracking_uri))
    try:
        run = client.get_run(run_id)
        model = model_of(client, run)
        if model is None:
            raise UserError(_without_model(run))
        name = model.name if name is None else name
        made = _next_version(client, name, model, run_id)
    except MlflowException as error:
        if unreachable := outage(tracking_uri, error):
            raise unreachable from error
        reason = line_without_secrets(error)
        raise UserError(
            f"--name {name!r}: the registry of {without_secrets(tracking_uri)} refuses: {reason}"
        ) from error
    return RegisteredVariant(name, str(made.version), run_id, model.model_id)


def _without_model(run: Run) -> str:
    """Why a run has no model to register, and which one has."""
    if start := run.data.tags.get(STARTED_FROM):
        return f"run {run.info.run_id} has no model to register: it scored that of run {start}; register that one"
    return f"run {run.info.run_id} has no model to register; give a run that `hop compile` or `hop eval` made"


def _next_version(client: mlflow.MlflowClient, name: str, model: LoggedModel, run_id: str) -> Any:  # noqa: ANN401 - MLflow's
    """The version of the registered model that is this MLflow model: the one there is, or the next."""
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        # A version of a prompt's name would be taken for one of the prompt.
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or client.get_prompt(name):
            raise
    found = client.search_model_versions(f"run_id = '{run_id}'")  # a name with an apostrophe is no part of a filter
    same = next((one for one in found if one.name == name and one.source == model.artifact_location), None)
    return same or client.create_model_version(name, model.artifact_location, run_id, model_id=model.model_id)
