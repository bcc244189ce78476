"""The files of a retriever's model: where they are found, and which of them decide on its vectors."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from hoptimizer.common.errors import UserError
from hoptimizer.models.weights.store import resolve

# None of it can hold code.
SAFE_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
_SAFETENSORS, _PICKLED = "*.safetensors", "pytorch_model*.bin"


def local_folder(
    name: str, key: str, embedded: str, allow: list[str] | None = None, ignore: list[str] | None = None
) -> Path:
    """The folder of a model that a user named: a folder, a name of the weights store, or a hub id (which is downloaded
    if need be).

    Args:
        name: as the user gave it.
        key: the config's key that gives it, for messages.
        embedded: a name that is always at hand, for messages.
        allow: patterns of the files to download; all by default.
        ignore: patterns of files not to download.

    Raises:
        UserError: it can't be had.
    """
    where = resolve(name)
    if Path(where).is_dir():
        return Path(where).resolve()
    try:
        return Path(snapshot_download(where, allow_patterns=allow, ignore_patterns=ignore))
    except HFValidationError as error:
        raise UserError(
            f"{key}: {name!r} is no folder and no hub id: give {embedded!r}, OWNER/NAME or a folder"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{key}: {name!r} is no folder here and the hub did not give it "
            f"({type(error).__name__}): check the name and the network, or use {embedded!r}"
        ) from error


def model_folder(name: str, key: str, embedded: str) -> Path:
    """The folder of a model of transformers, with its pickled weights where there are no safetensors.

    Arguments and errors are those of :func:`local_folder`.
    """
    folder = local_folder(name, key, embedded, allow=SAFE_FILES)
    if any(folder.rglob(_SAFETENSORS)):
        return folder
    return local_folder(name, key, embedded, allow=[*SAFE_FILES, _PICKLED])


def are_pickled(folder: Path) -> bool:
    """Whether a folder has weights, but none as safetensors. PyTorch's restricted unpickler reads them, which makes
    tensors and runs nothing."""
    return any(folder.glob(_PICKLED)) and not any(folder.glob(_SAFETENSORS))


def weights_of(folder: Path) -> str:
    """The pattern of the files of a folder that its weights are read from."""
    return _PICKLED if are_pickled(folder) else _SAFETENSORS


def digest_of(folder: Path, patterns: Iterable[str]) -> str:
    """SHA-256 over the files of a folder that match the patterns, names included.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.retrieval.encoders.model_files import digest_of
        >>> _ = Path("config.json").write_text("{}")
        >>> before = digest_of(Path(), ["*.json"])
        >>> _ = Path("config.json").write_text("{ }")
        >>> digest_of(Path(), ["*.json"]) == before
        False
    """
    sha = hashlib.sha256()
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            with file.open("rb") as opened:
                sha.update(file.name.encode())
                sha.update(hashlib.file_digest(opened, "sha256").digest())
    return sha.hexdigest()
