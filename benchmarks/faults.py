"""Is anything lost, paid twice, leaked or run that should not be, whatever fails and whoever sends it?

    python benchmarks/faults.py [--short] [--json] [PART ...]

Each part is a benchmark or a file of tests of its own, which this runs one after another and sums up:

- ``server``: a language model's server that fails on a third of its calls (``lm_faults.py``);
- ``kills``: commands that are ended twice at random moments (``kills.py``);
- ``secrets``: keys and passwords, looked for in all that commands write (``tests/test_secrets.py``);
- ``files``: data sets, variants, models and caches made to do harm (``tests/test_hostile_files.py``);
- ``texts``: passages made to do harm (``tests/test_untrusted_text.py``);
- ``long``: ten thousand questions (``long_run.py``);
- ``many``: the predictions of a hundred thousand questions (``predictions.py``);
- ``fuzz``: strange inputs (``fuzz.py``).

All of it takes two and a half hours on two cores; ``--short`` takes a small share of each. Exits 1 where a part does.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.box import MARKDOWN
from rich.table import Table

from reporting import benchmark_parser, show

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Part:
    """A benchmark, and how to sum it up.

    Attributes:
        name: of its file here.
        short: its arguments for a small share.
        said: its figures in words.
    """

    name: str
    short: Sequence[str]
    said: Callable[[Mapping[str, Any]], str]

    def run(self, short: bool) -> "Outcome":
        """Run it; what it prints for people goes to stderr."""
        begin = time.monotonic()
        command = [sys.executable, str(ROOT / "benchmarks" / self.name), "--json", *(self.short if short else ())]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        figures = json.loads(ended.stdout) if ended.stdout else {}
        said = self.said(figures) if figures else "ended without figures"
        return Outcome(not ended.returncode, said, time.monotonic() - begin, figures)


@dataclass(frozen=True)
class Tests:
    """A file of tests, each of which tries one thing.

    Attributes:
        name: of the file.
        tried: what a test tries, in the plural.
    """

    name: str
    tried: str

    def run(self, short: bool) -> "Outcome":
        """Run them, a small share or not: they are quick."""
        del short
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(ROOT / "tests" / self.name)]
            ended = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
            suite = ElementTree.parse(report).getroot()[0]
        counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        failed = counts["failures"] + counts["errors"]
        said = f"{counts['tests'] - counts['skipped']} {self.tried}, {failed} that did harm"
        return Outcome(not ended.returncode, said, time.monotonic() - begin, counts)


@dataclass(frozen=True)
class Outcome:
    """What a part came to.

    Attributes:
        held: nothing was lost, paid twice, leaked or run.
        said: its figures in words.
        seconds: that it took.
        figures: all of them.
    """

    held: bool
    said: str
    seconds: float
    figures: Mapping[str, Any]


def _server(figures: Mapping[str, Any]) -> str:
    rows = figures["faults"]
    asked, answered, twice = (sum(row[name] for row in rows) for name in ("questions", "answered", "paid_twice"))
    injected = figures["injected"]
    failures = f"{sum(injected.values())} failures of {len(injected)} kinds"
    return f"{failures}, {asked} questions: {asked - answered} lost, {twice} calls paid twice"


def _kills(figures: Mapping[str, Any]) -> str:
    works = {trial["work"] for trial in figures["trials"]}
    return f"{figures['survived']} of {figures['kills']} kills survived, of {len(works)} kinds of work"


def _long(figures: Mapping[str, Any]) -> str:
    growth = ", ".join(f"{name} × {ratio:.2f}" for name, ratio in figures["growth"].items())
    return f"{figures['logged']} of {figures['questions']} questions in the store; after the first 1,000: {growth}"


def _many(figures: Mapping[str, Any]) -> str:
    last = figures["sizes"][-1]
    return f"predictions of {last['questions']} questions in {last['tables']} tables, {last['found'][1]} found"


def _fuzz(figures: Mapping[str, Any]) -> str:
    inputs = sum(one["inputs"] for one in figures["fuzzed"])
    failures = sum(len(one["findings"]) for one in figures["fuzzed"])
    return f"{inputs} inputs to {len(figures['fuzzed'])} targets, {failures} that ended in no clean error"


PARTS: dict[str, Part | Tests] = {
    "server": Part("lm_faults.py", ("--short",), _server),
    "kills": Part("kills.py", ("--trials=1", "eval", "study", "import"), _kills),
    "secrets": Tests("test_secrets.py", "searches of everything that commands write"),
    "files": Tests("test_hostile_files.py", "hostile files and tests of what surrounds them"),
    "texts": Tests("test_untrusted_text.py", "hostile texts"),
    "long": Part("long_run.py", ("--questions=3000",), _long),
    "many": Part("predictions.py", ("--questions=5000",), _many),
    "fuzz": Part("fuzz.py", ("--minutes=0.2",), _fuzz),
}


def main() -> None:
    """Run the parts and print what they came to; exits 1 where one did not hold."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--short", action="store_true", help="a small share of each")
    options = parser.parse_args()
    if strange := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"no part is called {strange[0]!r}; known: {', '.join(PARTS)}")
    outcomes = {name: PARTS[name].run(options.short) for name in options.parts or PARTS}
    table = Table("part", "figures", "held", "time", box=MARKDOWN)
    for name, outcome in outcomes.items():
        table.add_row(name, outcome.said, "yes" if outcome.held else "NO", f"{outcome.seconds / 60:.1f} min")
    show({name: asdict(outcome) for name, outcome in outcomes.items()}, options.json, table)
    sys.exit(int(not all(outcome.held for outcome in outcomes.values())))


if __name__ == "__main__":
    main()
