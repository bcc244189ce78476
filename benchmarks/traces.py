"""What the traces of an evaluation cost, beside the time of its answers: in a SQLite store.

    python benchmarks/traces.py [--program rag] [--json] [KEY=VALUE ...]

Questions of atlas dev are answered once, with no cache; then traces of a sample and of all of them are logged. The
arguments change the demo's config, such as `data.dev=24` or `lm=openai/gpt-4o-mini`.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from processes import own_store
from rich.table import Table

from hoptimizer import Tracker, Workbench
from hoptimizer.demo import demo_config
from hoptimizer.eval.runner import evaluate
from hoptimizer.genai.choice import Traces, chosen
from hoptimizer.genai.traces import TracedRun, log_traces
from reporting import demo_parser, load, show, user_mistakes

WHICH: tuple[Traces, ...] = ("sample", "all")


def measure(program: str, overrides: list[str]) -> list[dict[str, Any]]:
    """Seconds of the answers, and of logging the traces."""
    bench = Workbench(demo_config(program, ["data.dev=60", "lm.default.cache=false", *overrides]))
    with bench.active():
        evaluation = evaluate(bench.program(), bench.data.split("dev"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tracker = Tracker(experiment="traces", **own_store(Path(folder)))
        for which in WHICH:
            traced = chosen(evaluation.rows, which)
            with tracker.run("eval", which) as run:
                start = time.perf_counter()
                of = TracedRun(tracker.uri, run.info.experiment_id, run.info.run_id, program)
                log_traces(traced, of, bench.data.corpus.__getitem__, "f1")
                seconds = time.perf_counter() - start
            steps = sum(len(row.steps) for row in traced)
            rows.append(
                {
                    "program": program,
                    "traces": which,
                    "n": len(evaluation.rows),
                    "logged": len(traced),
                    "steps": steps,
                    "answers_seconds": evaluation.seconds,
                    "traces_seconds": seconds,
                    "share": seconds / evaluation.seconds,
                }
            )
    return rows


def main() -> None:
    """Print the table."""
    options = demo_parser(__doc__).parse_args()
    with user_mistakes():
        rows = measure(options.program, options.overrides)
    headings = ("traces", "questions", "logged", "steps", "answers", "logging", "share")
    table = Table(*headings, box=None, header_style="bold")
    for row in rows:
        seconds = (f"{row[key]:.2f} s" for key in ("answers_seconds", "traces_seconds"))
        counts = (str(row[key]) for key in ("n", "logged", "steps"))
        table.add_row(row["traces"], *counts, *seconds, f"{100 * row['share']:.1f}%")
    show({"traces": rows, "load": load()}, options.json, table, f"load of the machine: {load():.1f}")


if __name__ == "__main__":
    main()
