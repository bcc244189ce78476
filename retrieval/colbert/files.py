"""Where the files of a ColBERT checkpoint are."""

from pathlib import Path

from hoptimizer.retrieval.encoders.model_files import local_folder

EMBEDDED = "minilm"
# The weights of a repository in other formats.
_UNUSED = ["*.onnx", "onnx/*", "*.h5", "*.msgpack", "*.ot"]


def checkpoint_files(name: str) -> Path:
    """The folder of a checkpoint that is not the embedded one: a folder, or a hub id (which is downloaded if need be).

    Args:
        name: as the user named it.

    Raises:
        UserError: it can't be had.
    """
    return local_folder(name, "retriever.checkpoint", EMBEDDED, ignore=_UNUSED)
