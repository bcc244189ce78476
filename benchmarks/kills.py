"""Kill compiles at random moments: is the program the one of an undisturbed compile?

Every optimizer compiles ``rag`` on a small part of atlas once undisturbed. Then it is killed (SIGKILL) at a random
moment between its first call and its end, each time in an empty folder with a home of its own, and the same command is
given again.

    python benchmarks/kills.py [--kills 2] [--seed 7] [--json] [OPTIMIZER ...]

Exits 1 where a program differs.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlflow
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.common.paths import home
from reporting import benchmark_parser, show

COMMAND = [
    "compile", "data=atlas", "data.train=12", "data.dev=6", "program=rag", "retriever=bm25", "retriever.k=2",
    "lm.reflection.model=local/smollm2-135m-instruct", "lm.reflection.temperature=1.0", "--json",
]  # fmt: skip
DEMOS = ["optimizer.max_bootstrapped_demos=2", "optimizer.max_labeled_demos=2"]
OPTIMIZERS: dict[str, list[str]] = {
    "labeled_few_shot": [],
    "bootstrap_few_shot": DEMOS,
    "bootstrap_random_search": [*DEMOS, "optimizer.num_candidate_programs=2"],
    "bootstrap_optuna": [*DEMOS, "optimizer.num_candidate_programs=4"],
    "knn_few_shot": [],
    "copro": ["optimizer.breadth=3", "optimizer.depth=2"],
    "miprov2": [*DEMOS, "optimizer.num_candidates=3", "optimizer.num_trials=4"],
    "simba": ["optimizer.bsize=4", "optimizer.num_candidates=2", "optimizer.max_steps=2"],
    "gepa": ["optimizer.max_full_evals=3"],
    "infer_rules": [*DEMOS, "optimizer.num_candidates=2"],
    "better_together": ["optimizer.strategy=[bootstrap_few_shot,{name: copro, breadth: 2, depth: 1}]"],
    "ensemble": ["optimizer.of=bootstrap_random_search"],
    "bootstrap_finetune": ["optimizer.epochs=2", "optimizer.batch=4"],
}


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    """The command in a folder, with a home there whose models are the user's."""
    models = folder / "home" / "models"
    if not models.is_symlink():
        models.parent.mkdir(parents=True)
        models.symlink_to(home() / "models")
    return subprocess.Popen(
        [sys.executable, "-m", "hoptimizer.cli", *COMMAND, f"optimizer={name}", *OPTIMIZERS[name]],
        cwd=folder,
        env=os.environ | {"HOPTIMIZER_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_call(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the compile has kept its first call."""
    while process.poll() is None and not any(map(has_call, (folder / "home" / "work").glob("*/calls/*/cache.db"))):
        time.sleep(0.1)


def has_call(calls: Path) -> bool:
    """Whether a file of DSPy's cache holds one."""
    try:
        with closing(sqlite3.connect(f"{calls.as_uri()}?mode=ro", uri=True)) as cache:
            return bool(cache.execute("select count(*) from Cache").fetchone()[0])
    except sqlite3.OperationalError:  # it is just being made
        return False


def program(folder: Path, process: subprocess.Popen[str]) -> tuple[object, float]:
    """The compiled program's state and weights, and how many of its calls the last process computed."""
    out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(err[-2000:])
    run = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(json.loads(out)["run_id"])
    variant = folder / run.info.artifact_uri.removeprefix("file://") / "variant"
    weights = [sha256(path.read_bytes()).hexdigest() for path in sorted(variant.rglob("*.safetensors"))]
    return (json.loads((variant / "program.json").read_bytes()), weights), run.data.metrics.get("computed_lm_calls", 0)


def measure(name: str, kills: int, draw: random.Random) -> list[dict[str, Any]]:
    """A row for each kill of an optimizer's compile."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(Path(folder), name)
        wait_for_call(Path(folder), process)
        begin = time.monotonic()
        whole, calls = program(Path(folder), process)
        seconds = time.monotonic() - begin
    rows = []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            process = start(Path(folder), name)
            wait_for_call(Path(folder), process)
            moment = draw.uniform(0, seconds)
            time.sleep(moment)
            process.kill()
            process.communicate()
            state, rest = program(Path(folder), start(Path(folder), name))
        same = state == whole
        row = {"optimizer": name, "seconds": seconds, "calls": calls, "killed_after": moment, "computed_again": rest}
        rows.append(row | {"same": same})
        sys.stderr.write(f"{name}, killed after {moment:.0f} s: {'the same' if same else 'ANOTHER'} program\n")
    return rows


def main() -> None:
    """Measure and print; exits 1 where a program differs."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "optimizers", nargs="*", metavar="OPTIMIZER", default=list(OPTIMIZERS), help=f"of {', '.join(OPTIMIZERS)}"
    )
    parser.add_argument("--kills", type=int, default=2, help="of each optimizer (default: 2)")
    parser.add_argument("--seed", type=int, default=7, help="of the moments (default: 7)")
    options = parser.parse_args()
    if strange := sorted(set(options.optimizers) - set(OPTIMIZERS)):
        parser.error(f"no optimizer is called {strange[0]!r}; known: {', '.join(OPTIMIZERS)}")
    draw = random.Random(options.seed)
    rows = [row for name in options.optimizers for row in measure(name, options.kills, draw)]
    same = sum(row["same"] for row in rows)
    heads = ("optimizer", "after its first call", "killed after", "computed again", "same program")
    table = Table(*heads, box=MARKDOWN)
    for row in rows:
        table.add_row(
            row["optimizer"],
            f"{row['seconds']:.0f} s, {row['calls']:.0f} calls",
            f"{row['killed_after']:.0f} s",
            f"{row['computed_again']:.0f} calls",
            "yes" if row["same"] else "NO",
        )
    show({"rows": rows, "same": same}, options.json, table, f"{same} of {len(rows)} the same")
    sys.exit(int(same < len(rows)))


if __name__ == "__main__":
    main()
