"""The weights store: pinned models under the user's cache folder, verified and in a form that transformers loads."""

import errno
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hoptimizer.common.errors import UserError, closest
from hoptimizer.common.paths import expanded, home, is_within, locked
from hoptimizer.common.strict import read_json
from hoptimizer.models.weights import catalog as pinned
from hoptimizer.models.weights.catalog import PinnedWeights
from hoptimizer.models.weights.sources import DOWNLOAD, SourceError

# Written last into a model's folder: a folder without it is no installed model.
MANIFEST = "weights.json"


class _Manifest(BaseModel):
    """What is known of an installed model's files.

    Attributes:
        pinned: SHA-256 of the files that were fetched.
        sizes: bytes of the files that lie here.
        digests: their SHA-256; the manifests of earlier versions have none.
    """

    pinned: dict[str, str]
    sizes: dict[str, int]
    digests: dict[str, str] | None = None


@dataclass(frozen=True)
class StoredModel:
    """One row of ``hop models list``.

    Attributes:
        name: the model's name in the store.
        licence: SPDX identifier of the weights' licence.
        about: what it is, in one line.
        size: bytes to download.
        sources: where it is fetched from, in the order in which they are tried.
        folder: where it is installed, or ``None``.
    """

    name: str
    licence: str
    about: str
    size: int
    sources: tuple[str, ...]
    folder: Path | None


def table() -> list[StoredModel]:
    """Every model the store knows, installed or not."""
    return [
        StoredModel(w.name, w.licence, w.about, w.size, tuple(source.label for source in w.sources), _installed(w))
        for w in pinned.WEIGHTS.values()
    ]


def resolve(name: str) -> str:
    """What to hand to ``from_pretrained`` for a model that a user named.

    A name of the store gives its folder (pulling it where needed), an existing folder stays itself, anything else is
    taken for an id of the Hugging Face hub.

    Raises:
        UserError: the name is a misspelt one of the store, or a model of the store can't be pulled.
    """
    if (folder := expanded(name)).is_dir():
        return str(folder)
    if pinned.known(name) is not None:
        return str(pull(name))
    if "/" not in name and (near := _nearest(name)):
        raise UserError(f"unknown model {name!r}: did you mean {near!r}? (`hop models list` shows the store's names)")
    return name


def pull(name: str, *, verify: bool = False) -> Path:
    """Make a model of the store available and return its folder, as transformers' ``from_pretrained`` takes it.

    It does nothing where the model is installed already. Several processes may ask at once: one downloads, the others
    wait.

    Args:
        name: the model's name in the store.
        verify: whether the bytes of a model that is installed are looked at, which takes a second per gigabyte; one
            that is damaged is installed anew.

    Raises:
        UserError: no such name, no source within reach, a wrong checksum, or too little disk space.
    """
    entry = pinned.known(name)
    if entry is None:
        near = _nearest(name)
        hint = f"did you mean {near!r}?" if near else f"the store has {', '.join(sorted(pinned.WEIGHTS))}"
        raise UserError(f"unknown model {name!r} in the weights store: {hint}")
    if (folder := _installed(entry)) and not (verify and damage(folder)):
        return folder
    root = _root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{entry.name}.lock", entry.name):
            folder = _installed(entry)
            return _install(entry) if folder is None or (verify and damage(folder)) else folder
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(entry, root) from error
        if isinstance(error, PermissionError):
            raise UserError(f"{root} can't be written: set HOPTIMIZER_HOME to a folder of yours") from error
        raise


def damage(folder: Path) -> str | None:
    """What is wrong with the first file of an installed model that has other bytes than when it was installed.

    Args:
        folder: a model's folder in the store.

    Returns:
        one line, or ``None`` where all is well.
    """
    manifest = _read_manifest(folder)
    if manifest is None:
        return f"{MANIFEST} is missing or damaged; pull again"
    # The manifests of earlier versions have the digests of what was fetched alone. What is pinned is known here: the
    # manifest may have come with the folder.
    entry = pinned.known(folder.name)
    known = entry.files if entry else manifest.pinned
    fetched = {file: digest for file, digest in known.items() if file in manifest.sizes}
    return _wrong_checksum((manifest.digests or {}) | fetched, folder)


def _root() -> Path:
    return home() / "models"


def _nearest(name: str) -> str | None:
    names = [known for w in pinned.WEIGHTS.values() for known in (w.name, *w.aliases)]
    return closest(name, names, score=75)


def _installed(entry: PinnedWeights) -> Path | None:
    folder = _root() / entry.name
    manifest = _read_manifest(folder)
    if manifest is None or manifest.pinned != dict(entry.files):
        return None
    # Sizes only: hashing gigabytes at every start would cost more than it finds. `damage` does it.
    complete = all(
        (folder / file).is_file() and (folder / file).stat().st_size == size for file, size in manifest.sizes.items()
    )
    return folder if complete else None


def _read_manifest(folder: Path) -> _Manifest | None:
    """The manifest of a model; ``None`` where there is none, or one that is cut off or names files elsewhere."""
    try:
        manifest = _Manifest.model_validate(read_json((folder / MANIFEST).read_bytes()))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    named = {**manifest.sizes, **(manifest.digests or {})}
    return manifest if all(is_within(folder, file) for file in named) else None


def _no_space(entry: PinnedWeights, root: Path) -> UserError:
    free = shutil.disk_usage(root).free
    return UserError(
        f"not enough disk space for {entry.name} in {root}: {entry.disk / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB "
        "are free; free some, or set HOPTIMIZER_HOME to a folder on another disk"
    )


def _install(entry: PinnedWeights) -> Path:
    root = _root()
    # What an interrupted pull fetched stays here, and the next one continues it.
    staging = root / f".{entry.name}.partial"
    staging.mkdir(exist_ok=True)
    fetched_before = sum(file.stat().st_size for file in staging.rglob("*") if file.is_file())
    if shutil.disk_usage(root).free < entry.disk - fetched_before:
        raise _no_space(entry, root)
    source, ready = _fetch(entry, staging)
    if entry.gguf is not None:
        from hoptimizer.models.weights.gguf import convert

        fetched, ready = ready, staging / "converted"
        shutil.rmtree(ready, ignore_errors=True)
        with _bar(f"Converting {entry.name}", total=None):
            convert(fetched, entry.gguf, ready)
    _write_manifest(entry, ready, source)
    target = root / entry.name
    shutil.rmtree(target, ignore_errors=True)  # an older pin, or a damaged copy
    ready.replace(target)
    shutil.rmtree(staging)
    return target


def _fetch(entry: PinnedWeights, staging: Path) -> tuple[str, Path]:
    """Fetch the files from the first source that has the right ones.

    Returns:
        The source's label, and the folder that the files are in.
    """
    tried = []
    for number, source in enumerate(entry.sources):
        folder = staging / f"source{number}"
        folder.mkdir(exist_ok=True)
        for left in folder.glob(f"{DOWNLOAD}*"):
            shutil.rmtree(left)
        try:
            if not all((folder / file).exists() for file in entry.files) or _wrong_checksum(entry.files, folder):
                with _bar(f"Pulling {entry.name} from {source.label}", total=entry.size) as progress:
                    task = progress.task_ids[0]
                    source.fetch(list(entry.files), folder, partial(progress.advance, task))
                if wrong := _wrong_checksum(entry.files, folder):
                    shutil.rmtree(folder)
                    raise SourceError(wrong)
        except SourceError as error:
            tried.append(f"{source.label} ({error})")
            continue
        return source.label, folder
    if not any(path.is_file() for path in staging.rglob("*")):
        shutil.rmtree(staging)
    raise UserError(
        f"{entry.name} could not be pulled: tried {'; '.join(tried)}; check the network, the proxy and pip's index, or "
        "give a folder with the model instead of its name"
    )


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _wrong_checksum(digests: Mapping[str, str], folder: Path) -> str | None:
    """What is wrong with the first file that has other bytes than these; ``None`` where none has."""
    for file, expected in digests.items():
        if not (folder / file).is_file():
            return f"{file} is missing; pull again"
        actual = _digest(folder / file)
        if actual != expected:
            return (
                f"wrong checksum of {file}: expected SHA-256 {expected}, got {actual}: a broken download or a changed "
                "file; pull again, and if it stays so do not use that source"
            )
    return None


def _write_manifest(entry: PinnedWeights, folder: Path, source: str) -> None:
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    digests = {name: _digest(path) for name, path in files.items()}
    manifest = {"name": entry.name, "licence": entry.licence, "source": source, "pinned": dict(entry.files)}
    text = json.dumps({**manifest, "sizes": sizes, "digests": digests}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Progress]:
    console = Console(file=sys.stderr)  # the present stream: the conversion replaces sys.stderr
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(title, total=total)
        yield progress
