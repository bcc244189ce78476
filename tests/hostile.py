"""What a test needs to hand over a file that was made on purpose, and to see what it does."""

import contextlib
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRET = "sk-canary-7f3a91"
LOCAL = ("127.0.0.1", "localhost")
DEEP, LONG = "[" * 100_000, "9" * 5000
_HEARD = frozenset(
    [
        *("open", "sqlite3.connect", "os.remove", "os.rename", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"),
        *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen"),
        *("socket.connect", "socket.getaddrinfo"),
    ]
)


@dataclass(frozen=True)
class Case:
    """A file that others made.

    Attributes:
        kind: what it is.
        tries: what it tries.
        make: writes it into a place, and gives the function that opens it as users do.
        says: what the one line of the error says; ``None`` where the file does no harm and is read.
        returns: what is read says so; where it is read.
        warns: what the log says; where it is read.
    """

    kind: str
    tries: str
    make: Callable[["Place"], Callable[[], Any]]
    says: str | None = None
    returns: str | None = None
    warns: str | None = None

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.kind}: {self.tries}"


class Place:
    """A folder for what a stranger gives, beside a folder with a secret that is none of the stranger's business.

    Args:
        folder: is made.
        parts: what tests of this module make once: folders of tiny models, a store of runs.
    """

    def __init__(self, folder: Path, parts: Callable[[str], Any]) -> None:
        self.given, self.outside, self.home = (folder / name for name in ("given", "outside", "home"))
        self.ran, self.parts = folder / "ran", parts
        for made in (self.given, self.outside):
            made.mkdir(parents=True)
        (self.outside / "secret.txt").write_text(f"{SECRET}\n")
        self.write("corpus.jsonl", {"id": "1", "title": "Secret", "text": SECRET}, self.outside)
        self.write("questions.jsonl", {"id": "1", "question": SECRET, "answers": [SECRET]}, self.outside)
        self._before = _tree(self.outside)

    def write(self, name: str, content: Any, folder: Path | None = None) -> Path:
        """Write a file: bytes and texts as they are, a ``Path`` as a link to it, anything else as JSON."""
        file = (folder or self.given) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if isinstance(content, Path):
            file.symlink_to(content)
        else:
            text = content if isinstance(content, str | bytes) else json.dumps(content)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def code(self) -> str:
        """Python that would leave a trace."""
        return f"open({str(self.ran)!r}, 'w').close()\n"

    def pickled(self) -> "Payload":
        """An object that would leave a trace where it is unpickled."""
        return Payload(f"touch {self.ran}")

    def wronged(self, events: list[tuple[str, str]], *texts: str) -> list[str]:
        """What a file did that it should not have."""
        outside = str(self.outside.resolve())
        found = [f"{event} {what}" for event, what in events if _is_wrong(event, what, outside)]
        found += ["its code ran"] * self.ran.exists() + ["outside was changed"] * (_tree(self.outside) != self._before)
        return found + [f"the secret is in {text[:300]!r}" for text in texts if SECRET in text]


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self):
        return os.system, (self._command,)


def pickle_of(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls what has a dotted name in a module."""
    words = [b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name)]
    text = argument.encode()
    return b"".join([b"\x80\x04", *words, b"\x93(X", len(text).to_bytes(4, "little"), text, b"tR."])


def pickled(value: Any) -> bytes:
    """A value as a pickle."""
    return pickle.dumps(value)


class _Watch:
    """Hears Python's audit events; a hook can't be taken away again, but it can be deaf."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.heard is not None and event in _HEARD:
            self.heard.append((event, str(args[1] if event == "socket.connect" else args[0])))


_watch = _Watch()


@contextlib.contextmanager
def watched():
    """Within it, a list has what this process opens, starts and calls."""
    _watch.heard = events = []
    try:
        yield events
    finally:
        _watch.heard = None


def _is_wrong(event: str, what: str, outside: str) -> bool:
    if event.startswith("socket"):
        return not any(host in what for host in LOCAL)
    if event.startswith(("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess")):
        return True
    return os.path.realpath(what).startswith(outside)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
