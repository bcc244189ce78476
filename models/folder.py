"""The folder of a model, whoever made it: what is looked at before it is loaded."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import check_links, expanded, is_within
from hoptimizer.common.strict import read_json

_SETTINGS = ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
# The files that a model's weights are spread over.
_SHARDS = "*.index.json"
ADAPTER = "adapter_config.json"
# The hub's cache has a folder of links for each version of a model, which lead to the files in a folder beside it.
_VERSIONS, _CACHED = "snapshots", "models--"
# How many parts of a file are looked at, and their bytes.
_PARTS, _PART = 32, 4096


def check_model(folder: Path) -> dict[str, dict[str, Any]]:
    """Make sure that a model's folder names nothing outside it, and that its settings are settings.

    Code that it brings is not looked for: whoever loads it says that none is to be run.

    Args:
        folder: the folder.

    Returns:
        the settings of each of its files.

    Raises:
        UserError: a link or a name in it leads elsewhere, a file is malformed, or it is an adapter of another model.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.models.folder import check_model
        >>> _ = Path("config.json").write_text('{"model_type": "llama"}')
        >>> check_model(Path())
        {'config.json': {'model_type': 'llama'}}
    """
    check_links(folder, _root(folder.absolute()))
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder}: an adapter of another model ({ADAPTER}); merge it into that model first")
    found = {name: read_settings(folder / name) for name in _SETTINGS if (folder / name).is_file()}
    for index in folder.glob(_SHARDS):
        shards = read_settings(index).get("weight_map")
        if not isinstance(shards, dict):
            raise UserError(f"{index}: no weight_map in it; take the folder as it was published")
        for shard in shards.values():
            if not isinstance(shard, str) or Path(shard).is_absolute() or not is_within(folder, Path(shard).parent):
                raise UserError(f"{index}: {shard!r:.60} is no file of the folder; take the folder as it was published")
    for file in _tokenizer_files(found):
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(f"{folder}: tokenizer_config.json: {file!r:.60} is no file of the folder; take it out")
    return found


def fingerprints(names: Iterable[str]) -> str:
    """Tells models that are folders from others of the same name, and from what they were before a training.

    Of each file its size and a few parts count, so that gigabytes take milliseconds.

    Args:
        names: what a user calls the models by; of what is no folder, the name says all.

    Returns:
        hashes in JSON, by name; empty where there are none.

    Raises:
        UserError: a name can't be a path here.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.models.folder import fingerprints
        >>> _ = Path("model.safetensors").write_bytes(bytes(100_000))
        >>> before = fingerprints(["."])
        >>> _ = Path("model.safetensors").write_bytes(bytes(50_000) + b"1" + bytes(49_999))
        >>> fingerprints(["."]) == before, fingerprints(["smollm2-135m-instruct"])
        (False, '')
    """
    known = {name: _fingerprint(folder) for name in names if (folder := expanded(name)).is_dir()}
    return json.dumps(known, sort_keys=True) if known else ""


def _fingerprint(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in [*folder.glob("*"), *folder.glob("*/*")] if path.is_file()):
        size = path.stat().st_size
        found.update(f"{path.relative_to(folder).as_posix()} {size} ".encode())
        with path.open("rb") as file:
            for part in range(_PARTS):
                file.seek(part * size // _PARTS)
                found.update(file.read(_PART))
    return found.hexdigest()


def _root(folder: Path) -> Path:
    """The folder that a model's links may not lead out of."""
    versions, model = [*folder.parents, folder, folder][:2]
    return model if versions.name == _VERSIONS and model.name.startswith(_CACHED) else folder


def _tokenizer_files(found: dict[str, dict[str, Any]]) -> list[Any]:
    """The files of a tokenizer that its settings name."""
    files = found.get("tokenizer_config.json", {}).get("fast_tokenizer_files", [])
    return files if isinstance(files, list) else [files]


def read_settings(file: Path) -> dict[str, Any]:
    """The settings that a file of a model's folder holds.

    Args:
        file: the file, in JSON.

    Raises:
        UserError: it is malformed, or holds something else.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.models.folder import read_settings
        >>> _ = Path("config.json").write_text('{"model_type": "llama"}')
        >>> read_settings(Path("config.json"))
        {'model_type': 'llama'}
    """
    try:
        settings = read_json(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error}); take the file as it was published") from error
    if not isinstance(settings, dict):
        raise UserError(f"{file}: expected a mapping, got {type(settings).__name__}; take the file as it was published")
    return settings
