"""What version 0.1.0 called otherwise, in the configs and states of variants that it logged."""

from collections.abc import Mapping
from typing import Any

from hoptimizer.common.errors import UserError

_STEPS = {"recall": "closed_book"}
LM_NAMES = {"adapter": "prompt_format"}
_RELEVANCE = {True: "passage", False: "none"}
# What IRCoT did before it had options for it.
_PAPERS = {"thoughts": "phrase", "later_k": None, "fill": False}
_OPTIMIZER = {"layouts": "prompt_formats", "layout": "prompt_format"}


def upgraded_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config as plain data, in today's names.

    Args:
        values: what a config file or a run holds, of this version or of 0.1.0.

    Raises:
        UserError: something is given by its old name and by its new one.

    >>> upgraded_config({"data": "atlas", "lm": {"default": {"model": "local/m", "adapter": "plain"}}})["lm"]
    {'default': {'model': 'local/m', 'prompt_format': 'plain'}}
    """
    values = dict(values)
    if _is_logged_by_first(values):
        values |= {"lm": {role: _in_json(one) for role, one in values["lm"].items()}}
        values |= {"program": _in_phrases(values["program"])}
    if isinstance(lm := values.get("lm"), Mapping):
        lm = _renamed(lm, LM_NAMES if "model" in lm else _STEPS, "lm")
        values["lm"] = {
            role: _renamed(one, LM_NAMES, f"lm.{role}") if isinstance(one, Mapping) else one for role, one in lm.items()
        }
    if isinstance(program := values.get("program"), Mapping):
        values["program"] = _program(program)
    if isinstance(optimizer := values.get("optimizer"), Mapping):
        values["optimizer"] = _optimizer(optimizer, "optimizer")
    return values


def _is_logged_by_first(values: Mapping[str, Any]) -> bool:
    """Whether this is the whole config that 0.1.0 logged with a run, which had the adapter of every language model."""
    lm = values.get("lm")
    settings = lm.values() if isinstance(lm, Mapping) else ()
    return isinstance(values.get("program"), Mapping) and any(
        isinstance(one, Mapping) and {"model", "adapter"} <= one.keys() for one in settings
    )


def _in_json(lm: Mapping[str, Any]) -> dict[str, Any]:
    """All local models were asked in JSON by default."""
    local = lm.get("adapter") == "auto" and str(lm.get("model")).startswith("local/")
    return {**lm, "adapter": "json"} if local else dict(lm)


def _in_phrases(program: Mapping[str, Any]) -> dict[str, Any]:
    """Chains of thought ended in "answer is:"."""
    changed = {"reader": "phrase"} if program.get("reader") == "cot" else {}
    return {**program, **changed, **(_PAPERS if program.get("name") == "ircot" else {})}


def _program(section: Mapping[str, Any]) -> dict[str, Any]:
    section = dict(section)
    if isinstance(steps := section.get("steps"), Mapping):
        section["steps"] = _renamed(steps, _STEPS, "program.steps")
    # RA-ISF's relevance was on or off.
    if section.get("name") == "ra_isf" and isinstance(judging := section.get("relevance"), bool):
        section["relevance"] = _RELEVANCE[judging]
    return section


def _optimizer(section: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An optimizer's options, and those of the optimizers that it is made of."""
    section = _renamed(section, _OPTIMIZER, key)
    if section.get("name") == "train_tagger" and "max_tokens" in section:  # one length for both of its models
        tokens = section.pop("max_tokens")
        section = {"labeler_tokens": tokens, "filter_tokens": tokens, **section}
    if isinstance(inner := section.get("of"), Mapping):
        section["of"] = _optimizer(inner, f"{key}.of")
    if isinstance(parts := section.get("strategy"), list | tuple):
        section["strategy"] = [_optimizer(p, f"{key}.strategy") if isinstance(p, Mapping) else p for p in parts]
    return section


def _renamed(section: Mapping[str, Any], names: Mapping[str, str], key: str) -> dict[str, Any]:
    for old, new in names.items():
        if old in section and new in section:
            raise UserError(f"{key}.{old}: is called {key}.{new} now, which is given too; give that one alone")
    return {names.get(name, name): value for name, value in section.items()}


def upgraded_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a program (:meth:`~hoptimizer.programs.Program.dump_state`), in today's names.

    >>> upgraded_state({"recall": {"demos": []}, "program": {"layout": "plain", "models": [], "lms": {}}})
    {'closed_book': {'demos': []}, 'program': {'prompt_format': 'plain', 'models': [], 'lms': {}}}
    """
    own = dict(state["program"])
    if members := own.get("members"):
        return {**state, "program": {**own, "members": [upgraded_state(member) for member in members]}}
    own = {"prompt_format" if name == "layout" else name: value for name, value in own.items()}
    own["lms"] = _by_step(own["lms"])
    own["models"] = sorted(_STEPS.get(step, step) for step in own["models"])
    if neighbours := own.get("neighbours"):
        pool = [[question, _by_step(shown)] for question, shown in neighbours["pool"]]
        own["neighbours"] = {**neighbours, "pool": pool}
    return {**_by_step(state), "program": own}


def _by_step(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_STEPS.get(step, step): value for step, value in values.items()}
