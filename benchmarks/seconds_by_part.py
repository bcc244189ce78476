"""Where the seconds of a command go: the part of the package for which each thread works.

    python benchmarks/seconds_by_part.py [--json] [WORD ...]

WORDs are those of `hop`, such as `compile data=DIR program=ircot` (default: `demo`). The command runs in an empty
folder with a home of its own, which has the user's models alone. py-spy looks at it 50 times a second, and counts each
thread that computes by the innermost of its frames that lies in the package, and by the library whose Python code is
innermost: what it calls of C counts as its own. Seconds are those of threads: two threads at work for a second are two.
The threads of matrix products, which know nothing of Python, count as the one that called them.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from processes import own_home, usage_of
from rich.box import MARKDOWN
from rich.table import Table

import hoptimizer
from reporting import benchmark_parser, load, show, user_mistakes

RATE = 50  # a second
ROOMS = ("common", "eval", "models", "optimizers", "programs", "retrieval", "signatures")
# What is in the folder of the package itself, and in none of the rooms beside it.
CORE = "core"
OWN = "hoptimizer"
IMPORTS = "imports"
ELSEWHERE = "threads of libraries"
_PACKAGES = "site-packages"


@dataclass(frozen=True)
class Part:
    """What one part of the package takes.

    Attributes:
        name: a room, and the folder in it.
        seconds: of all threads together.
        share: of all seconds.
        libraries: whose code runs there, with its share of the part, the largest first.
    """

    name: str
    seconds: float
    share: float
    libraries: list[tuple[str, float]]


@dataclass(frozen=True)
class Frame:
    """A function that a thread is in.

    Attributes:
        function: its name; ``<module>`` while a module is imported.
        file: where its code is.
    """

    function: str
    file: str


class Folders:
    """Which part of the package, or which library, a file belongs to."""

    def __init__(self) -> None:
        found = {room: importlib.util.find_spec(f"{OWN}.{room}") for room in ROOMS}
        self._rooms = {room: Path(spec.origin).parent for room, spec in found.items() if spec and spec.origin}
        self._rooms[CORE] = Path(next(iter(hoptimizer.__path__)))

    def part(self, file: str) -> str | None:
        """The part of the package, or ``None``."""
        for room, folder in self._rooms.items():
            if file.startswith(f"{folder}{os.sep}"):
                inner = Path(file).relative_to(folder).parts
                return f"{room}/{inner[0]}" if len(inner) > 1 else room
        return None

    def library(self, file: str) -> str:
        """The library, or Python itself."""
        if self.part(file):
            return OWN
        parts = Path(file).parts
        return parts[parts.index(_PACKAGES) + 1].removesuffix(".py") if _PACKAGES in parts else "Python"


def stacks(raw: str) -> Iterator[tuple[list[Frame], int]]:
    """What py-spy saw: the frames of a thread, the innermost last, and how often it was there."""
    for line in raw.splitlines():
        text, _, count = line.rpartition(" ")
        frames = []
        for one in text.split(";"):
            function, _, place = one.rpartition(" (")
            frames.append(Frame(function, place.rpartition(":")[0]))
        yield frames, int(count)


def part_of(frames: Sequence[Frame], folders: Folders) -> str:
    """What a thread works for."""
    for frame in reversed(frames):
        if frame.file.startswith("<frozen importlib"):
            return IMPORTS
        if part := folders.part(frame.file):
            return IMPORTS if frame.function == "<module>" else part
    return ELSEWHERE


def by_part(raw: str) -> list[Part]:
    """What each part takes, the largest first."""
    folders = Folders()
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for frames, count in stacks(raw):
        seen[part_of(frames, folders)][folders.library(frames[-1].file)] += count
    whole = sum(libraries.total() for libraries in seen.values())
    return [
        Part(
            name,
            libraries.total() / RATE,
            libraries.total() / whole,
            [(library, count / libraries.total()) for library, count in libraries.most_common()],
        )
        for name, libraries in sorted(seen.items(), key=lambda one: -one[1].total())
    ]


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("words", nargs="*", default=["demo"], metavar="WORD", help="of hop (default: demo)")
    options = parser.parse_args()
    with user_mistakes(), tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        own, raw = own_home(folder), folder / "stacks.txt"
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "hoptimizer.cli", *options.words],
            cwd=folder,
            env=os.environ | {"HOPTIMIZER_HOME": str(own)},
            stdout=subprocess.DEVNULL,
            text=True,
        )
        # Beside the command, not around it: py-spy does not say how a command that it starts has ended.
        spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(process.pid), "--nonblocking"]
        form = ["--rate", str(RATE), "--format", "raw", "--full-filenames", "--output", str(raw)]
        watching = subprocess.Popen([*spy, *form], stdout=subprocess.DEVNULL)
        usage_of(process, f"hop {' '.join(options.words)}")
        seconds = time.monotonic() - begin
        usage_of(watching, "py-spy")
        parts = by_part(raw.read_text(encoding="utf-8"))
    title = f"hop {' '.join(options.words)}: {seconds:.0f} s by the clock, load {load():.1f}"
    table = Table("part", "thread seconds", "share", "whose code runs", title=title, box=MARKDOWN)
    for part in parts:
        libraries = ", ".join(f"{library} {100 * share:.0f}%" for library, share in part.libraries[:3])
        table.add_row(part.name, f"{part.seconds:.1f}", f"{100 * part.share:.1f}%", libraries)
    figures = {"words": options.words, "seconds": seconds, "load": load()}
    show(figures | {"parts": [asdict(part) for part in parts]}, options.json, table)


if __name__ == "__main__":
    main()
