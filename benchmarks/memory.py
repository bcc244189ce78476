"""The most memory that the demo and a compile by fine-tuning take.

    python benchmarks/memory.py [--data FOLDER] [--json] [demo] [compile]

Each command runs in a process of its own, in an empty folder with a home of its own, and the system says what its peak
was (the resident set, mapped files included). FOLDER is a data set for `configs/finetune.yaml`, as `hop data import
2wikimultihopqa` writes it; the compile needs it.

The compile learns from few questions, because its peak does not grow with their number: a pass of the training has at
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
CONFIG = Path(__file__).parents[1] / "configs" / "finetune.yaml"
TRAIN_QUESTIONS = 24
# The demo may take so much beside the language model's weights, the compile with everything.
DEMO_LIMIT = 3 * GB
COMPILE_LIMIT = 8 * GB


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
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="demo, compile or both (default)")
    parser.add_argument("--data", type=Path, help="the data set that the compile learns from")
    options = parser.parse_args()
    commands = options.commands or ["demo", "compile"]
    if strange := sorted(set(commands) - {"demo", "compile"}):
        parser.error(f"there is no command {strange[0]!r} here; known: demo, compile")
    if "compile" in commands and options.data is None:
        parser.error("the compile needs --data; or name demo alone")
    peaks = []
    with user_mistakes():
        weights = sum(file.stat().st_size for file in Path(resolve(MODEL)).glob("*.safetensors"))
        if "demo" in commands:
            peaks.append(run("demo", ["demo"], weights + DEMO_LIMIT))
        if "compile" in commands:
            data = [f"data={options.data.resolve()}", f"data.train={TRAIN_QUESTIONS}"]
            peaks.append(run("compile", ["compile", str(CONFIG), *data], COMPILE_LIMIT))
    table = Table("", "peak", "limit", "ratio", "time", box=MARKDOWN)
    for peak in peaks:
        sizes = (f"{peak.bytes / GB:.2f} GB", f"{peak.limit / GB:.2f} GB", f"{peak.ratio:.2f}")
        table.add_row(peak.name, *sizes, f"{peak.seconds:.0f} s")
    figures = {"weights": weights, "peaks": [asdict(peak) | {"ratio": peak.ratio} for peak in peaks]}
    show(figures, options.json, table, f"The language model's weights are {weights / GB:.2f} GB of either peak.")
    sys.exit(int(any(peak.ratio > 1 for peak in peaks)))


if __name__ == "__main__":
    main()
