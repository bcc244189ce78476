"""The most memory that the demo, evaluations and compiles by fine-tuning take.

    python benchmarks/memory.py [--data FOLDER] [--json] [demo] [eval] [eval-0.5b] [compile] [compile-0.5b]

Each command runs in a process of its own, in an empty folder with a home of its own, and the system says what its peak
was (the resident set, mapped files included):

- demo: `hop demo`, which may take 3 GB beside its language model's weights
- eval, eval-0.5b: `hop eval` of `ircot` over forty questions of atlas, with SmolLM2-135M and Qwen2.5-Coder-0.5B (aims:
  1.2 and 2.5 GB)
- compile, compile-0.5b: `configs/finetune.yaml`, which trains all weights of SmolLM2-135M, and
  `configs/finetune-0.5b.yaml`, which trains adapters of Qwen2.5-Coder-0.5B, on FOLDER, a data set as `hop data import
  2wikimultihopqa` writes it (aims: 5 and 10 GB)

The compiles learn from few questions, because their peak does not grow with their number: a pass of the training has at
most 2,048 tokens whatever it learns from, AdamW's states are there from the first update on, and the keys and values of
the engine have a limit, which the scoring of all dev questions reaches.

Exits 1 where a limit is exceeded.
"""

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from processes import measured, own_home
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.models.weights.store import resolve
from reporting import benchmark_parser, show, user_mistakes

GB = 1e9
MODEL = "smollm2-135m-instruct"
CONFIGS = Path(__file__).parents[1] / "configs"
TRAIN_QUESTIONS = 24
EVAL = ["eval", "data=atlas", "data.dev=40", "program=ircot"]
# What each command is, and how much it may take; the demo so much beside the language model's weights.
COMMANDS = {
    "demo": (["demo"], 3 * GB),
    "eval": ([*EVAL, f"lm=local/{MODEL}"], 1.2 * GB),
    "eval-0.5b": ([*EVAL, "lm=local/qwen2.5-coder-0.5b-instruct"], 2.5 * GB),
    "compile": (["compile", str(CONFIGS / "finetune.yaml")], 5 * GB),
    "compile-0.5b": (["compile", str(CONFIGS / "finetune-0.5b.yaml")], 10 * GB),
}


@dataclass(frozen=True)
class Peak:
    """What one command took.

    Attributes:
        name: of the command.
        seconds: from start to end.
        bytes: its peak.
        limit: the most that the peak may be, in bytes.
    """

    name: str
    seconds: float
    bytes: float
    limit: float

    @property
    def ratio(self) -> float:
        """The peak over its limit."""
        return self.bytes / self.limit


def run(name: str, arguments: list[str], limit: float) -> Peak:
    """Run `hop` with some arguments, and measure it.

    Raises:
        UserError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = own_home(Path(folder))
        words = ["-m", "hoptimizer.cli", *arguments, "--json"]
        seconds, usage = measured(words, Path(folder), own, f"hop {' '.join(arguments)}")
    return Peak(name, seconds, usage.peak, limit)


def main() -> None:
    """Measure and print; exits 1 where a limit is exceeded."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)} (default: all)")
    parser.add_argument("--data", type=Path, help="the data set that the compiles learn from")
    options = parser.parse_args()
    commands = options.commands or [*COMMANDS]
    if strange := sorted(set(commands) - COMMANDS.keys()):
        parser.error(f"there is no command {strange[0]!r} here; known: {', '.join(COMMANDS)}")
    if options.data is None and (needing := [name for name in commands if name.startswith("compile")]):
        parser.error(f"{needing[0]} needs --data; or name others alone")
    peaks = []
    with user_mistakes():
        weights = sum(file.stat().st_size for file in Path(resolve(MODEL)).glob("*.safetensors"))
        for name in commands:
            words, limit = COMMANDS[name]
            if name.startswith("compile"):
                words = [*words, f"data={options.data.resolve()}", f"data.train={TRAIN_QUESTIONS}"]
            peaks.append(run(name, words, limit + weights if name == "demo" else limit))
    table = Table("", "peak", "limit", "ratio", "time", box=MARKDOWN)
    for peak in peaks:
        sizes = (f"{peak.bytes / GB:.2f} GB", f"{peak.limit / GB:.2f} GB", f"{peak.ratio:.2f}")
        table.add_row(peak.name, *sizes, f"{peak.seconds:.0f} s")
    figures = {"weights": weights, "peaks": [asdict(peak) | {"ratio": peak.ratio} for peak in peaks]}
    show(figures, options.json, table, f"The weights of SmolLM2-135M are {weights / GB:.2f} GB of its peaks.")
    sys.exit(int(any(peak.ratio > 1 for peak in peaks)))


if __name__ == "__main__":
    main()
