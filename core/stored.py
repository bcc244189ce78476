"""What is read of a variant, which may be a stranger's: data alone, that reads and contacts nothing by itself."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.plugins import is_code
from hoptimizer.common.strict import LOADER, checked, read_json, read_yaml
from hoptimizer.common.validation import explain
from hoptimizer.models.settings import LOCAL, NO_KEY, PromptFormat
from hoptimizer.upgrade import upgraded_config, upgraded_state

# What DSPy keeps of a predictor. It would take any other key as an attribute of the predictor: its ``config``, for one,
# goes into every call, so that an ``api_base`` there would get the user's key.
_OF_A_STEP = frozenset({"demos", "fields", "lm", "signature", "traces", "train"})
# The keys of a config that name a part, which may be code; and how those end that are of a list.
_PART = re.compile(r"metric|(program|retriever|optimizer)(\.of(\.\d+)?|\.strategy\.\d+)*(\.name)?")
_IN_A_LIST = re.compile(r"\.\d+(\.name)?$")


def read_stored(file: Path, source: str) -> str:
    """The text of one of a variant's files.

    Args:
        file: the file.
        source: where it is from; starts the message of an error.

    Raises:
        UserError: it is no UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: {file.name}: not UTF-8; take the file that the compile wrote") from error


def stored_config(text: str, source: str) -> dict[str, Any]:
    """The config of a variant as plain data, in today's names.

    Args:
        text: its ``config.yaml``.
        source: where that is from; starts the message of an error.

    Raises:
        UserError: it is none, or holds an interpolation: what ``${oc.env:NAME}`` names is read for a user's own files
            and arguments alone, and a variant is logged with its values.

    Example:
        >>> from hoptimizer.stored import stored_config
        >>> stored_config("data: atlas", "variant")
        {'data': 'atlas'}
    """
    try:
        values = read_yaml(text, _without_aliases)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{source}: config.yaml: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        raise UserError(f"{source}: config.yaml: expected a mapping of keys, got {type(values).__name__}")
    for key, value in _leaves(values):
        if isinstance(value, str) and "${" in value:
            raise UserError(
                f"{source}: config.yaml: {key}: an interpolation, which is resolved in files and arguments of your own "
                f"alone; give {key}=VALUE yourself, and take it out there"
            )
    tracking = values.get("tracking")
    if tracking is not None and not isinstance(tracking, Mapping):
        raise UserError(f"{source}: config.yaml: tracking: expected a mapping, got {type(tracking).__name__}")
    return upgraded_config(values)


def kept_in(values: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """A variant's config with the store that it was found in.

    Args:
        values: what :func:`stored_config` gives.
        uri: the store's tracking URI.

    Example:
        >>> from hoptimizer.stored import kept_in
        >>> kept_in({"data": "atlas", "tracking": {"experiment": "one"}}, "sqlite:///mlflow.db")["tracking"]
        {'experiment': 'one', 'uri': 'sqlite:///mlflow.db'}
    """
    return {**values, "tracking": {**(values.get("tracking") or {}), "uri": uri}}


def guarded(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The config that a variant's own and what the user gave over it come to, without what only the user may say.

    Code that it names by a dotted path has to be named by the user, too, or declared by an installed package. Clients
    take a key from the environment where none is given: a server that it names, and not the user, gets none. What
    answers the questions is for the user to say: a Ray cluster is handed the keys.

    Args:
        values: the config as plain data.
        given: what the user gave.

    Raises:
        UserError: it names code that the user does not.

    Example:
        >>> from hoptimizer.stored import guarded
        >>> guarded({"lm": {"default": {"model": "openai/x", "api_base": "http://host/v1"}}}, {})
        {'lm': {'default': {'api_key': 'none', 'model': 'openai/x', 'api_base': 'http://host/v1'}}}
        >>> guarded({"program": {"name": "mine:Own"}}, {"program": {"name": "mine:Own"}})
        {'program': {'name': 'mine:Own'}}
        >>> guarded({"program": {"name": "mine:Own"}}, {})
        Traceback (most recent call last):
        hoptimizer.common.errors.UserError: program.name: mine:Own is code that the variant's config names ...
    """
    known = {name for _, name in _parts(given)}
    for key, name in _parts(values):
        if name not in known and is_code(name):
            listed = _IN_A_LIST.sub("", key)
            remedy = f"{key}={name}" if listed == key else f"{listed}=[...], with it among the others"
            raise UserError(
                f"{key}: {name} is code that the variant's config names and no installed package declares; if you know "
                f"it, name it yourself: {remedy}"
            )
    if "executor" not in given:
        values = {key: value for key, value in values.items() if key != "executor"}
    if not isinstance(lms := values.get("lm"), dict):
        return values
    own = {role: lm for role, lm in (given.get("lm") or {}).items() if isinstance(lm, Mapping)}
    return values | {
        "lm": {
            role: {"api_key": NO_KEY} | lm
            if isinstance(lm, dict) and lm.get("api_base") and "api_base" not in own.get(role, ())
            else lm
            for role, lm in lms.items()
        }
    }


def _parts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a config names as its parts, each after its key."""
    return ((key, value) for key, value in _leaves(values) if isinstance(value, str) and _PART.fullmatch(key))


def stored_state(text: str, source: str) -> dict[str, Any]:
    """The state of a variant's program, in today's names.

    Args:
        text: its ``program.json``.
        source: where that is from; starts the message of an error.

    Raises:
        UserError: it is none, or a step in it brings a language model or settings of calls, which are the config's.
    """
    try:
        state = checked(read_json(text))
    except ValueError as error:
        raise UserError(f"{source}: program.json: not JSON: {error}") from error
    _check_state(state, f"{source}: program.json")
    return upgraded_state(state)


def state_to_store(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a program as a variant keeps it: without language models, which are the config's, or fine-tuned ones
    that the state names.

    Args:
        state: what :meth:`~hoptimizer.programs.Program.dump_state` gives.

    Example:
        >>> from hoptimizer.stored import state_to_store
        >>> state_to_store({"reader": {"demos": [], "lm": {"model": "openai/gpt-4o"}}, "program": {}})
        {'reader': {'demos': [], 'lm': None}, 'program': {}}
    """
    if members := state["program"].get("members"):
        return {"program": {"members": [state_to_store(member) for member in members]}}
    return {name: kept if name == "program" else kept | {"lm": None} for name, kept in state.items()}


class _Field(BaseModel):
    """What DSPy keeps of a field of a signature."""

    prefix: str
    description: str


class _Signature(BaseModel):
    """What DSPy keeps of a signature."""

    instructions: str
    fields: list[_Field]


class _Step(BaseModel):
    """What DSPy keeps of a predictor."""

    signature: _Signature
    demos: list[dict[str, Any]]
    lm: None
    traces: list[Any] = []
    train: list[Any] = []
    fields: dict[str, dict[str, Any]] = {}


class _Neighbours(BaseModel):
    """Demonstrations that depend on the question."""

    k: int = Field(ge=1)
    encoder: str = Field(min_length=1)
    pool: list[tuple[str, dict[str, dict[str, Any]]]]


class _Own(BaseModel):
    """What a program keeps beside its steps; ``layout`` is what version 0.1.0 called the prompt format."""

    model_config = ConfigDict(extra="forbid")

    lms: dict[str, str]
    models: list[str]
    prompt_format: PromptFormat | None = None
    layout: PromptFormat | None = None
    neighbours: _Neighbours | None = None


def _check_state(state: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    own = state.get("program") if isinstance(state, dict) else None
    if isinstance(own, dict) and (members := own.get("members")):
        if not isinstance(members, list):
            raise UserError(f"{place}: program.members: expected a list, got {type(members).__name__}")
        for member in members:
            _check_state(member, place)
        return
    if not isinstance(own, dict) or not {"lms", "models"} <= own.keys():
        raise UserError(f"{place}: no state of a program, which says under program what models its steps have")
    for step, kept in state.items():
        if step == "program":
            continue
        if not isinstance(kept, dict):
            raise UserError(f"{place}: {step}: expected the state of a step, got {type(kept).__name__}")
        if strange := [*sorted(set(kept) - _OF_A_STEP), *(["lm"] if kept.get("lm") else [])]:
            raise UserError(
                f"{place}: {step}.{strange[0]}: language models and settings of calls are those of the variant's "
                "config.yaml, where they are shown before they are used; take it out"
            )
        _validate(_Step, kept, f"{place}: {step}.")
    _validate(_Own, own, f"{place}: program.")
    for step, model in own["lms"].items():
        # The folder that a fine-tuned model has among those of the variant.
        if model.startswith(LOCAL) and Path(name := model.removeprefix(LOCAL)).name != name:
            raise UserError(
                f"{place}: program.lms.{step}: expected a model that lies in the variant, got {model!r}; to use that "
                f"one, give lm.{step}={model}"
            )


def _validate(model: type[BaseModel], values: dict[str, Any], prefix: str) -> None:
    try:
        model.model_validate(values)
    except ValidationError as error:
        line = explain(error, model)
        raise UserError(f"{prefix}{line:.300}; take the state that the compile wrote") from error


def _without_aliases(stream: TextIO) -> Any:  # noqa: ANN401 - any plain data
    """A YAML text as plain data; a few aliases could stand for billions of values."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(stream, LOADER)):
        raise ValueError("an alias, which no variant has; write out what it stands for")
    stream.seek(0)
    return yaml.safe_load(stream)


def _leaves(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any plain data
    """The single values in plain data, each after its dotted key; the keys of mappings are values, too."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield key, name
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _leaves(value, f"{key}.{number}")
    else:
        yield key, values
