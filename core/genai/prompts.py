"""The prompts of a compiled program in MLflow's prompt registry: instructions and demonstrations as they are sent."""

import json
import logging
from collections.abc import Callable, Iterator

import dspy
import mlflow
from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import PromptVersion
from mlflow.exceptions import MlflowException

from hoptimizer.common.urls import line_without_secrets
from hoptimizer.models import build_adapter
from hoptimizer.programs import Ensemble, Program

LINKED = "mlflow.linkedPrompts"
"""The tag in which MLflow keeps the prompts of a model or a run."""

_log = logging.getLogger(__name__)


def step_prompts(program: Program) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The messages of each step that a language model takes, its inputs as variables of MLflow's.

    Args:
        program: the program, within DSPy's settings of its language model.

    Example:
        >>> import dspy
        >>> from hoptimizer.genai.prompts import step_prompts
        >>> from hoptimizer.programs import Direct
        >>> with dspy.context(lm=dspy.LM("openai/gpt-4o")):
        ...     [(step, messages)] = step_prompts(Direct())
        >>> step, messages[0]["role"], "{{question}}" in messages[-1]["content"]
        ('reader', 'system', True)
    """
    members = program.members if isinstance(program, Ensemble) else [program]
    adapter = build_adapter()
    for number, member in enumerate(members, 1):
        part = f"{number}." if len(members) > 1 else ""
        predictors = dict(member.named_predictors())
        for step, lm in member.language_models().items():
            signature, demos = predictors[step].signature, predictors[step].demos
            inputs = {name: f"{{{{{name}}}}}" for name in signature.input_fields}
            with dspy.context(lm=lm):
                yield f"{part}{step}", adapter.of(lm).format(signature, member.suitable_demos(step, demos), inputs)


def register_prompts(
    client: mlflow.MlflowClient, name: str, program: Program, failed: Callable[[MlflowException], Exception | None]
) -> list[str]:
    """Keep the prompts of a program in the prompt registry, each as the next version of its name if it is new.

    Args:
        client: of the store.
        name: begins the names of the prompts, which end with that of the step.
        program: the program, within DSPy's settings of its language model.
        failed: tells from an error of the store what has to be raised; any other is told in a warning, since the run
            has instructions and demonstrations, too.

    Returns:
        the URIs of the prompts.
    """
    uris = []
    for step, messages in step_prompts(program):
        try:
            version = _same(client, f"{name}.{step}", messages) or client.register_prompt(f"{name}.{step}", messages)
        except MlflowException as error:
            if failure := failed(error):
                raise failure from error
            _log.warning("the prompt registry refuses %s.%s: %s", name, step, line_without_secrets(error))
            continue
        uris.append(str(version.uri))
    return uris


def copy_prompts(source: mlflow.MlflowClient, target: mlflow.MlflowClient, model: LoggedModel, copy: str) -> None:
    """Register the prompts of a model of one store in another, linked to the model's copy and its run.

    Args:
        source: the client of the store that has them.
        target: that of the other one.
        model: the model that they are linked to.
        copy: the id of its copy.
    """
    for linked in json.loads(model.tags.get(LINKED, "[]")):
        found = source.load_prompt(f"prompts:/{linked['name']}/{linked['version']}")
        version = _same(target, found.name, found.template) or target.register_prompt(found.name, found.template)
        target.link_prompt_version_to_model(version.name, str(version.version), copy)
        target.link_prompt_version_to_run(target.get_logged_model(copy).source_run_id, version)


def _same(client: mlflow.MlflowClient, name: str, template: object) -> PromptVersion | None:
    """The latest version of a prompt, where it is this one."""
    found = client.load_prompt(f"prompts:/{name}@latest", allow_missing=True, cache_ttl_seconds=0)
    return found if found is not None and found.template == template else None
