"""Files that are there whole or not at all."""

from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write a text in one step: a process that is killed meanwhile leaves the file as it was."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(text.encode())  # bytes: no line ends of the platform's own
    draft.replace(file)
