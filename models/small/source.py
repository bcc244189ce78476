"""Where the files of a small model are: in a folder, in a repository of the hub, or among what a tracker keeps."""

from collections.abc import Callable
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded

# The files that are read of a repository; none of them can hold code.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]

Fetch = Callable[[str], Path]
"""Downloads the files that a URI names, and gives their folder."""


def check_source(source: str) -> None:
    """Make sure that a small model may be there, before what reads it is imported.

    Args:
        source: a folder, a hub id, or a URI such as ``runs:/ID/PATH``.

    Raises:
        UserError: it is none of these.
    """
    if not (expanded(source).is_dir() or _is_uri(source) or _is_hub_id(source)):
        raise UserError(
            f"small model {source!r}: no such folder; give a folder that a training finished in, or a hub id"
        )


def source_folder(source: str, fetch: Fetch | None) -> Path:
    """The folder that holds the files of a small model.

    Args:
        source: a folder, a hub id, or with ``fetch`` a URI such as ``runs:/ID/PATH``.
        fetch: downloads a source that has a scheme such as ``runs:`` or ``models:``.

    Raises:
        UserError: it can't be had.
    """
    check_source(source)
    folder = expanded(source)
    if folder.is_dir():
        return folder
    if not _is_uri(source):
        return _from_hub(source)
    if fetch is None:
        raise UserError(f"small model {source!r}: there is no tracker to fetch it from; give a folder or a hub id")
    return fetch(source)


def _is_uri(source: str) -> bool:
    return ":/" in source


def _is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def _from_hub(name: str) -> Path:
    # Imported here: the hub's client takes half a second to import, and folders do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"small model {name!r}: no such folder, and the hub does not give it ({reason}); give a folder that a "
            "training finished in, or a hub id"
        ) from error
