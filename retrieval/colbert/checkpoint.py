"""ColBERT checkpoints: the embedded one, a folder, or one from the hub."""

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import draft_of, home
from hoptimizer.models.engine.loading import loading
from hoptimizer.models.folder import check_model
from hoptimizer.models.weights.store import resolve
from hoptimizer.retrieval.colbert.files import EMBEDDED, checkpoint_files
from hoptimizer.retrieval.encoders.model_files import digest_of
from hoptimizer.retrieval.encoders.sentence_modules import MODULES, SETTINGS, Module, read_modules
from hoptimizer.retrieval.index_folder import BrokenIndexError, FileDigests, file_digests

BASE = "all-minilm-l6-v2"
_ASSET = Path(__file__).parents[1] / "assets" / "minilm-colbert.safetensors"
# The files of a checkpoint that decide on its vectors.
_DECIDING = ("config.json", "artifact.metadata", "tokenizer*", "vocab.txt", "*.safetensors", "*.bin")
_COPIED = ("config.json", "tokenizer.json", "vocab.txt")
_WRITTEN = "files.json"
_log = logging.getLogger(__name__)

# colbert-ai fills queries up with the tokenizer's mask token, and gives the padding token a vector of zeros. With one
# token for both, a query is its own words alone, as in the training, and several times faster to search with.
_TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "model_max_length": 512,
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[PAD]",
}

# As many dimensions as the encoder has: 128, ColBERT's choice for BERT, cost several points of recall here.
DIM = 384

# What colbert-ai reads from a checkpoint's artifact.metadata. Multi-hop questions and the sentences of a chain of
# thought are longer than the 32 tokens of its default, and shorter ones cost no more for it, since queries are not
# filled up. A colon marks queries and passages: the encoder knows it, while an unused token, ColBERT's choice, disturbs
# its neighbours and would take more than our data to learn.
_METADATA: dict[str, str | int | bool] = {
    "query_token_id": ":",
    "doc_token_id": ":",
    "query_token": "[Q]",
    "doc_token": "[D]",
    "dim": DIM,
    "doc_maxlen": 256,
    "query_maxlen": 128,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
    "similarity": "cosine",
    "interaction": "colbert",
}


@dataclass(frozen=True)
class Checkpoint:
    """A ColBERT checkpoint on this machine.

    Attributes:
        name: as the user named it.
        folder: where its files are.
        digest: SHA-256 over its weights, tokenizer and settings.
        modules: of a checkpoint in PyLate's layout, its encoder and its projections; none in colbert-ai's.
    """

    name: str
    folder: Path
    digest: str
    modules: tuple[Module, ...] = ()


def find_checkpoint(name: str) -> Checkpoint:
    """The checkpoint that ``name`` stands for: ``minilm``, a folder, or a hub id (which is downloaded if need be).

    Raises:
        UserError: it can't be had, is no ColBERT checkpoint, or needs code of its own.
    """
    if name == EMBEDDED:
        return _embedded()
    return load_checkpoint(checkpoint_files(name), name)


def load_checkpoint(folder: Path, name: str | None = None) -> Checkpoint:
    """The checkpoint in a folder.

    Args:
        folder: holds weights, config, tokenizer and colbert-ai's ``artifact.metadata``, or PyLate's ``modules.json``.
        name: as the user named it; the folder by default.

    Raises:
        UserError: it is no ColBERT checkpoint, or needs code of its own.
    """
    name = name or str(folder)
    # Some have the files of both.
    if (folder / MODULES).is_file() and not (folder / "artifact.metadata").is_file():
        return _of_pylate(folder, name)
    _check(name, folder)
    return Checkpoint(name, folder, digest_of(folder, _DECIDING))


def _of_pylate(folder: Path, name: str) -> Checkpoint:
    check_model(folder)
    # PyLate passes over what makes one vector of a text.
    modules = tuple(module for module in read_modules(folder) if module.kind in ("Transformer", "Dense"))
    if len(modules) < 2:
        raise UserError(
            f"retriever.checkpoint: {name!r} has no projection of its tokens, so it is no ColBERT checkpoint; take one "
            "such as 'lightonai/GTE-ModernColBERT-v1', or retriever=dense"
        )
    sha = hashlib.sha256(digest_of(folder, [SETTINGS]).encode())
    for module in modules:
        sha.update(digest_of(module.folder, (*_DECIDING, "sentence_bert_config.json", "*.model")).encode())
    return Checkpoint(name, folder, sha.hexdigest(), modules)


def _embedded() -> Checkpoint:
    """all-MiniLM-L6-v2 with our adapters merged and our projection, written out once as a colbert-ai checkpoint."""
    sha = hashlib.sha256(_ASSET.read_bytes())
    sha.update(json.dumps([_METADATA, _TOKENIZER], sort_keys=True).encode())
    digest = sha.hexdigest()
    folder = home() / "checkpoints" / f"minilm-{digest[:16]}"
    if not _is_whole(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                _write_embedded(folder)
    return Checkpoint(EMBEDDED, folder, digest)


def _is_whole(folder: Path) -> bool:
    """Whether a folder holds what was written there: a machine that lost its power may have cut files off."""
    try:
        FileDigests.model_validate_json((folder / _WRITTEN).read_bytes()).check(folder)
    except (FileNotFoundError, ValidationError, BrokenIndexError):
        return False
    return True


def _write_embedded(folder: Path) -> None:
    if (folder / _WRITTEN).exists():  # else an earlier version made it
        _log.warning("the copy of %s in %s is not as it was written: making it anew", EMBEDDED, folder)
    shutil.rmtree(folder, ignore_errors=True)
    write_checkpoint(Path(resolve(BASE)), load_file(_ASSET), folder)
    (folder / _WRITTEN).write_text(file_digests(folder).model_dump_json(indent=2) + "\n", encoding="utf-8")


def write_checkpoint(encoder: Path, trained: dict[str, torch.Tensor], folder: Path) -> None:
    """Write a BERT encoder and what was trained on top of it as a ColBERT checkpoint that colbert-ai loads.

    Args:
        encoder: folder of the encoder, in transformers' format.
        trained: ``linear.weight`` ``(dim, hidden)`` and, for each adapted matrix ``NAME`` of the encoder, ``NAME.down``
            ``(rank, in)`` and ``NAME.up`` ``(out, rank)``; ``up @ down`` is added to the matrix (LoRA, Hu et al.,
            2022).
        folder: where to write; must not exist yet.
    """
    weights = {
        name: weight.float()
        for name, weight in load_file(encoder / "model.safetensors").items()
        if not name.endswith("position_ids")  # a buffer, not a weight
    }
    for name in [key.removesuffix(".up") for key in trained if key.endswith(".up")]:
        weights[f"{name}.weight"] += trained[f"{name}.up"].float() @ trained[f"{name}.down"].float()
    weights = {f"bert.{name}": weight.contiguous() for name, weight in weights.items()}
    weights["linear.weight"] = trained["linear.weight"].float().contiguous()

    with draft_of(folder) as draft:
        for name in _COPIED:
            shutil.copyfile(encoder / name, draft / name)
        (draft / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER, indent=2) + "\n", encoding="utf-8")
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        (draft / "artifact.metadata").write_text(json.dumps(_METADATA, indent=2) + "\n", encoding="utf-8")
        draft.replace(folder)


def _check(name: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(f"retriever.checkpoint: {folder} has no config.json: expected a ColBERT checkpoint's folder")
    if "auto_map" in {key for settings in check_model(folder).values() for key in settings}:
        raise UserError(f"retriever.checkpoint: {name!r} needs code of its own, which is never run: take another one")
    # Without a projection of its own, colbert-ai would draw a new random one at every load.
    with loading(name, "a ColBERT checkpoint"):
        has_projection = _has_projection(folder)
    if not has_projection:
        raise UserError(
            f"retriever.checkpoint: {name!r} has no linear.weight, so it is no colbert-ai checkpoint: "
            "take one such as 'colbert-ir/colbertv2.0', or 'minilm'"
        )


def _has_projection(folder: Path) -> bool:
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            if "linear.weight" in weights.keys():  # noqa: SIM118 - safe_open has no __contains__
                return True
    return any(
        "linear.weight" in torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        for file in folder.glob("pytorch_model*.bin")
    )
