"""Indexes on disk: what each one was built from, built whole or not at all, and checked before it serves."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home, is_within, locked
from hoptimizer.retrieval.passage import Corpus

Kind = Literal["exact", "plaid", "dense", "ivf", "bm25"]
Loaded = TypeVar("Loaded")

_MANIFEST = "manifest.json"
# The manifest, without files, of an index that is being built.
_WANTED = "wanted.json"
# Of a file larger than this, samples are read before it serves; reading gigabytes takes longer than asking a question.
_LARGE = 32 << 20
# So many samples, spread evenly from the first byte to the last, each of so many bytes.
_SAMPLES, _SAMPLE = 64, 64 << 10
_log = logging.getLogger(__name__)


class IndexSource(Protocol):
    """What an index is made with besides the corpus: a model, or a way to take texts apart."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def digest(self) -> str:
        """SHA-256 of everything in it that decides on the index."""


class FileDigests(BaseModel):
    """What files a folder consists of.

    Attributes:
        files: SHA-256 of every file, by its path in the folder.
        samples: SHA-256 of the size and of samples of every large file.
    """

    model_config = ConfigDict(extra="forbid")

    files: dict[str, str]
    samples: dict[str, str] = {}

    def check(self, folder: Path, *, whole: bool = False) -> None:
        """Compare the files of a folder with these.

        Args:
            folder: where they are.
            whole: whether large files are read as a whole, and not in samples.

        Raises:
            BrokenIndexError: a file is missing or changed.
        """
        for name, digest in self.files.items():
            file, sampled = folder / name, None if whole else self.samples.get(name)
            if not is_within(folder, name):
                raise BrokenIndexError(f"{name!r:.60} is no file of it")
            if not file.is_file():
                raise BrokenIndexError(f"{name} is missing")
            if (_sample_digest(file) != sampled) if sampled else (file_digest(file) != digest):
                raise BrokenIndexError(f"{name} is truncated or damaged")


class Manifest(FileDigests):
    """What an index was built from and what it consists of.

    Attributes:
        corpus: name of the corpus.
        corpus_digest: SHA-256 of its passages.
        passages: how many there are.
        checkpoint: what it was made with, as the user named it.
        checkpoint_digest: SHA-256 of that.
        kind: ``exact`` or ``plaid`` for ColBERT, ``dense`` or ``ivf`` for one vector a passage, or ``bm25``.
        settings: settings that the index was built with.
        files: as for every folder; none while it is built.
    """

    corpus: str
    corpus_digest: str
    passages: int
    checkpoint: str
    checkpoint_digest: str
    kind: Kind
    settings: dict[str, int]
    files: dict[str, str] = {}


class BrokenIndexError(Exception):
    """An index on disk is not what its manifest says; the message says how."""


def index_folder(corpus: Corpus, source: IndexSource, kind: Kind) -> Path:
    """The folder of a corpus' index; its name holds corpus and source, so that a change of either gives another."""
    return home() / "indexes" / f"{corpus.digest[:16]}-{source.digest[:16]}-{kind}"


def draft_folder(folder: Path) -> Path:
    """Where the index of a folder is made."""
    return folder.with_name(f".{folder.name}.part")


def new_manifest(corpus: Corpus, source: IndexSource, kind: Kind, settings: dict[str, int]) -> Manifest:
    """What the manifest of an index must say, without ``files``."""
    return Manifest(
        corpus=corpus.name,
        corpus_digest=corpus.digest,
        passages=len(corpus),
        checkpoint=source.name,
        checkpoint_digest=source.digest,
        kind=kind,
        settings=settings,
    )


def open_index(folder: Path, wanted: Manifest, build: Callable[[Path], None], load: Callable[[Path], Loaded]) -> Loaded:
    """Load the index that ``wanted`` describes, building it in ``folder`` where it is not there.

    An index that is broken, or was built with other settings, is reported in one line of the log and built anew.
    Several processes may ask at once: one builds, the others say so and wait for it.

    Args:
        folder: the index' folder.
        wanted: the manifest that it must have, without ``files``.
        build: writes the index into the folder it is given. What one that was ended has left there is there again, to
            go on from or to write over.
        load: loads the index of a folder; what it raises as a ``BrokenIndexError`` is wrong with the index.

    Raises:
        UserError: the folder can't be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock"), f"the index of {wanted.corpus}"):
            if folder.exists():
                try:
                    check_index(folder, wanted, whole=False)
                    return load(folder)
                except BrokenIndexError as error:
                    _log.warning("index %s of %s is not usable (%s): building it anew", folder, wanted.corpus, error)
            _build(folder, wanted, build)
            return _load_built(folder, wanted, load)
    except PermissionError as error:
        raise UserError(
            f"{error.filename or folder} can't be written: set HOPTIMIZER_HOME to a folder of yours"
        ) from error


def _load_built(folder: Path, wanted: Manifest, load: Callable[[Path], Loaded]) -> Loaded:
    try:
        return load(folder)
    except BrokenIndexError as error:  # no damage: it would be built so again
        raise UserError(
            f"the index of {wanted.corpus} by {wanted.checkpoint} can't be used as it was built ({error}): its model "
            "may be damaged; get it anew, or take another one"
        ) from error


def check_index(folder: Path, wanted: Manifest, *, whole: bool) -> None:
    """Compare an index with its manifest, and the manifest with what is wanted.

    Args:
        folder: the index' folder.
        wanted: the manifest that it must have, without ``files`` and ``samples``.
        whole: whether to read every byte of it; else large files are read in samples.

    Raises:
        BrokenIndexError: a file is missing or changed, or the index was built from something else.
    """
    manifest = read_manifest(folder)
    if not _agree(manifest, wanted):
        raise BrokenIndexError("built with other settings")
    manifest.check(folder, whole=whole)


def _agree(manifest: Manifest, wanted: Manifest) -> bool:
    """Whether an index is of what is wanted, whatever corpus and checkpoint were called when it was built."""
    names = {"corpus": wanted.corpus, "checkpoint": wanted.checkpoint}
    return manifest.model_copy(update={"files": {}, "samples": {}, **names}) == wanted


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index.

    Raises:
        BrokenIndexError: there is none, or it can't be read.
    """
    try:
        return Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise BrokenIndexError(f"{_MANIFEST} is missing") from error
    except ValidationError as error:
        raise BrokenIndexError(f"{_MANIFEST} is damaged") from error


def _build(folder: Path, wanted: Manifest, build: Callable[[Path], None]) -> None:
    draft = _draft(folder, wanted)
    build(draft)
    (draft / _WANTED).unlink()
    manifest = wanted.model_copy(update=dict(file_digests(draft)))
    (draft / _MANIFEST).write_text(json.dumps(manifest.model_dump(), indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    draft.replace(folder)


def _draft(folder: Path, wanted: Manifest) -> Path:
    """The folder in which an index is made, with what a build of the same one has left there that was ended."""
    draft = draft_folder(folder)
    try:
        begun = Manifest.model_validate_json((draft / _WANTED).read_bytes())
    except (FileNotFoundError, ValidationError):
        begun = None
    if begun is None or not _agree(begun, wanted):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        (draft / _WANTED).write_text(wanted.model_dump_json(), encoding="utf-8")
    return draft


def file_digests(folder: Path) -> FileDigests:
    """What files a folder consists of now."""
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    return FileDigests(
        files={name: file_digest(file) for name, file in files.items()},
        samples={name: _sample_digest(file) for name, file in files.items() if file.stat().st_size > _LARGE},
    )


def _sample_digest(file: Path) -> str:
    size = file.stat().st_size
    sha = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        for number in range(_SAMPLES):
            opened.seek(max(0, size - _SAMPLE) * number // (_SAMPLES - 1))
            sha.update(opened.read(_SAMPLE))
    return sha.hexdigest()


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
