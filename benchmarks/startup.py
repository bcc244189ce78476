"""How long commands take before they do what they are for, and what they hold: beside the imports below them.

    python benchmarks/startup.py [--rounds 5] [--json]

Each is a process of its own, in turn with the others, in an empty folder with a home of its own, which has the user's
models alone and is warm: a round that is not counted leaves what commands keep for the next time. The last rows are
what the others can't do without: Python itself, and libraries.
"""

import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from processes import measured, own_home, serving
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.eval import mean
from hoptimizer.eval.datasets.dataset import load as load_data
from hoptimizer.eval.datasets.dataset import locate
from reporting import benchmark_parser, load, show, user_mistakes

HOP = ("-m", "hoptimizer.cli")
RAG = ("data=atlas", "program=rag", "retriever=bm25")
MB = 1e6


@dataclass(frozen=True)
class Start:
    """A command that is timed.

    Attributes:
        name: in the table.
        words: Python's arguments; ``{question}`` stands for a question of each round's own, ``{first}`` for that of the
            round that is not counted, ``{url}`` for a server's address.
        aim: seconds that it may take on two idle cores, where there is an aim.
        code: its exit code.
    """

    name: str
    words: tuple[str, ...]
    aim: float | None = None
    code: int = 0


STARTS = (
    Start("import hoptimizer", ("-c", "import hoptimizer"), 0.05),
    Start("hop --help", (*HOP, "--help"), 0.3),
    Start("a wrong key", (*HOP, "eval", *RAG, "retriever.kk=3"), 1, code=2),
    Start(
        "hop ask, a new question of a local model",
        (*HOP, "ask", "{question}", *RAG, "lm=local/smollm2-135m-instruct"),
        4,
    ),
    Start(
        "hop ask, a question asked before",
        (*HOP, "ask", "{first}", *RAG, "lm=local/smollm2-135m-instruct"),
    ),
    Start(
        "hop ask, of a server that takes no time",
        (
            *(*HOP, "ask", "{question}", *RAG),
            *("lm=openai/scripted", "lm.default.api_base={url}", "lm.default.api_key=none"),
        ),
    ),
    Start("python", ("-c", "")),
    Start("import torch", ("-c", "import torch")),
    Start("import dspy", ("-c", "import dspy")),
    Start("import mlflow", ("-c", "import mlflow")),
)


@dataclass(frozen=True)
class Taken:
    """What a command took.

    Attributes:
        name: of the command.
        seconds: by the clock, the mean of all rounds with its 95% interval.
        peak: of the resident set in bytes, the most of any round.
        aim: as the command's.
    """

    name: str
    seconds: tuple[float, float, float]
    peak: int
    aim: float | None


def measure(rounds: int) -> list[Taken]:
    """What each command takes."""
    seconds: dict[str, list[float]] = defaultdict(list)
    peaks: dict[str, int] = defaultdict(int)
    questions = [one.question for one in load_data("atlas").split("dev", rounds + 1)]
    with (
        tempfile.TemporaryDirectory() as place,
        serving("scripted_server.py", str(locate("atlas") / "dev.jsonl"), "--seconds", "0") as url,
    ):
        folder = Path(place)
        home = own_home(folder)
        for number in range(rounds + 1):
            for start in STARTS:
                given = {"question": questions[number], "first": questions[0], "url": url}
                words = [word.format(**given) for word in start.words]
                took, usage = measured(words, folder, home, start.name, start.code)
                if number:  # the first round warms the home
                    seconds[start.name].append(took)
                    peaks[start.name] = max(peaks[start.name], usage.peak)
            sys.stderr.write(f"round {number} of {rounds}\n")
    taken = []
    for start in STARTS:
        each = mean(seconds[start.name])
        taken.append(Taken(start.name, (each.mean, each.low, each.high), peaks[start.name], start.aim))
    return taken


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    options = parser.parse_args()
    with user_mistakes():
        taken = measure(options.rounds)
    title = f"{options.rounds} rounds, load {load():.1f}"
    table = Table("", "seconds", "aim", "in ratio to it", "peak", title=title, box=MARKDOWN)
    for one in taken:
        middle, low, high = one.seconds
        aim, ratio = (f"{one.aim:g}", f"{middle / one.aim:.2f}") if one.aim else ("–", "–")
        table.add_row(one.name, f"{middle:.2f} [{low:.2f}, {high:.2f}]", aim, ratio, f"{one.peak / MB:.0f} MB")
    show({"load": load(), "rounds": options.rounds, "starts": [asdict(one) for one in taken]}, options.json, table)


if __name__ == "__main__":
    main()
