"""How long a user waits to be told of a mistake: the commands of ``tests/mistakes.py``, each a process of its own.

    python benchmarks/mistake_seconds.py [--rounds 3] [--json]

They run in turn, in a folder and a home of their own, which are warm: a round that is not counted leaves what
commands keep for the next time. No store of runs is there, but for those that name one, and for one command more,
which asks it for a run that it lacks. The aim is a second. The last rows are imports, which a mistake that takes
longer needs.
"""

import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from processes import measured, own_home
from rich.box import MARKDOWN
from rich.table import Table
from rich.text import Text

from reporting import benchmark_parser, load, show, user_mistakes

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from mistakes import MISTAKES, OUTAGES, write_files  # the tests' own

AIM = 1  # second
STORE = "sqlite:///kept.db"
LACKING = ("eval", "--run", "0" * 32, f"tracking.uri={STORE}")
LIMITS = ("import dspy", "import mlflow")


def measure(rounds: int) -> dict[str, float]:
    """The median seconds of each mistake, by its command, and of each limit."""
    mistakes = [*(words for words, _ in MISTAKES), LACKING]
    commands = {" ".join(("hop", *words)): (("-m", "hoptimizer.cli", *words), 2) for words in mistakes}
    commands |= {" ".join(("hop", *words)): (("-m", "hoptimizer.cli", *words), 1) for words, _ in OUTAGES}
    commands |= {line: (("-c", line), 0) for line in LIMITS}
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        home = own_home(folder)
        write_files(folder)
        measured(("-c", f"from hoptimizer import Tracker; Tracker({STORE!r}, 'atlas')"), folder, home, STORE)
        for number in range(rounds + 1):
            for name, (words, code) in commands.items():
                took, _usage = measured(words, folder, home, name, code)
                if number:  # the first round warms the home
                    seconds[name].append(took)
            sys.stderr.write(f"round {number} of {rounds}\n")
    return {name: statistics.median(each) for name, each in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    options = parser.parse_args()
    with user_mistakes():
        seconds = measure(options.rounds)
    limits = {line: seconds.pop(line) for line in LIMITS}
    late = {command: each for command, each in seconds.items() if each > AIM}
    middle = statistics.median(seconds.values())
    title = f"those above {AIM} s, median of {options.rounds} rounds, load {load():.1f}"
    table = Table("", "seconds", title=title, box=MARKDOWN)
    for command, each in (*sorted(late.items(), key=lambda item: -item[1]), *limits.items()):
        table.add_row(Text(command), f"{each:.2f}")
    said = f"{len(seconds) - len(late)} of {len(seconds)} mistakes are said within {AIM} s; median {middle:.2f} s"
    figures = {"load": load(), "rounds": options.rounds, "seconds": seconds, "limits": limits}
    show(figures, options.json, said, table)


if __name__ == "__main__":
    main()
