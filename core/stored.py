"""What is read of a variant, which may be a stranger's: data alone, that reads and contacts nothing by itself."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import flat, read_json
from hoptimizer.upgrade import upgraded_config, upgraded_state

# What DSPy keeps of a predictor. It would take any other key as an attribute of the predictor: its ``config``, for one,
# goes into every call, so that an ``api_base`` there would get the user's key.
_OF_A_STEP = frozenset({"demos", "fields", "lm", "signature", "traces", "train"})


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
        values = yaml.safe_load(flat(text))
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
    return upgraded_config(values)


def stored_state(text: str, source: str) -> dict[str, Any]:
    """The state of a variant's program, in today's names.

    Args:
        text: its ``program.json``.
        source: where that is from; starts the message of an error.

    Raises:
        UserError: it is none, or a step in it brings a language model or settings of calls, which are the config's.
    """
    try:
        state = read_json(text)
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


def _check_state(state: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    own = state.get("program") if isinstance(state, dict) else None
    if not isinstance(own, dict) or not (own.get("members") or {"lms", "models"} <= own.keys()):
        raise UserError(f"{place}: no state of a program, which says under program what models its steps have")
    for member in own.get("members") or []:
        _check_state(member, place)
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
