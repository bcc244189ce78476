"""Where hoptimizer keeps what it downloads and computes, and files that are there whole or not at all."""

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """Folder of weights, indexes and caches: ``$HOPTIMIZER_HOME``, else the user's cache folder."""
    return Path(os.environ.get("HOPTIMIZER_HOME") or platformdirs.user_cache_path("hoptimizer"))


def write_whole(file: Path, text: str) -> None:
    """Write a text in one step: a process that is killed meanwhile leaves the file as it was."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(text.encode())  # bytes: no line ends of the platform's own
    draft.replace(file)
