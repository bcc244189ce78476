"""The folder of what hoptimizer downloads and computes, and writing files whole or not at all."""

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """Folder of weights, indexes and caches: ``$HOPTIMIZER_HOME``, else the user's cache folder."""
    return Path(os.environ.get("HOPTIMIZER_HOME") or platformdirs.user_cache_path("hoptimizer"))


def write_whole(file: Path, text: str) -> None:
    """Write a text file in one step: a process that is killed meanwhile leaves the file as it was."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(text.encode())  # as bytes, so that no platform changes the line ends
    draft.replace(file)
