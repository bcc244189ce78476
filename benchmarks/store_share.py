"""What keeping an evaluation in MLflow takes of it, in a SQLite store, by the number of questions.

    python benchmarks/store_share.py [--json] [N ...]

`rag` answers atlas' questions, each with a number of its own, from a scripted server that takes 100 ms a call, 64 at a
time. All that an evaluation does beside asking and scoring is counted as the store's: the run, its parameters, metrics,
data sets, predictions, and the traces that are kept by default. Data and index are there before.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from growth import lay_out
from processes import own_store, serving
from rich.table import Table

from hoptimizer import Workbench, evaluate_variant, make_config, variants
from reporting import benchmark_parser, load, show, user_mistakes

SIZES = (100, 1_000, 10_000)
WORKERS = 64
LATENCY = 0.1


@contextlib.contextmanager
def asking() -> Iterator[list[float]]:
    """The seconds of each evaluation's questions and scores, without those of its store."""
    seconds: list[float] = []
    inner = variants.score_variant

    def outer(*args: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        start = time.perf_counter()
        try:
            return inner(*args)
        finally:
            seconds.append(time.perf_counter() - start)

    with patch.object(variants, "score_variant", outer):
        yield seconds


def measure(sizes: list[int]) -> list[dict[str, float]]:
    """A row for each number of questions."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        every = lay_out(folder, "numbered", max(sizes), sentences=1)
        with contextlib.chdir(folder), serving("scripted_server.py", str(every), "--seconds", str(LATENCY)) as url:
            server = {"model": "openai/scripted", "api_base": url, "api_key": "none", "cache": False}
            for size in (sizes[0], *sizes):  # the first one loads what is loaded late
                config = make_config(
                    {
                        "data": {"name": str(folder / "numbered"), "test": size},
                        "program": {"name": "rag"},
                        "retriever": "bm25",
                        "lm": {"default": server},
                        "workers": WORKERS,
                        "tracking": own_store(folder),
                    }
                )
                Workbench(config).retriever.search(["What is loaded late?"], 1)
                start = time.perf_counter()
                with asking() as seconds:
                    evaluate_variant(config, split="test")
                whole = time.perf_counter() - start
                rows.append({"questions": size, "seconds": whole, "store": 1 - seconds[0] / whole})
    return rows[1:]


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[*SIZES], metavar="N", help="questions")
    options = parser.parse_args()
    with user_mistakes():
        rows = measure(options.sizes)
    table = Table("questions", "seconds", "of which the store's", box=None, header_style="bold")
    for row in rows:
        table.add_row(f"{row['questions']:,}", f"{row['seconds']:.1f}", f"{100 * row['store']:.1f}%")
    show({"rows": rows, "load": load()}, options.json, table, f"load of the machine: {load():.1f}")


if __name__ == "__main__":
    main()
