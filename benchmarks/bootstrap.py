"""How long bootstrapping demonstrations takes, against DSPy's own loop on the same questions.

    python benchmarks/bootstrap.py [--seeds 7 8 9] [--json]

A stand-in for a hosted model answers over HTTP (``benchmarks/scripted_server.py``): every call takes 100 ms, any number
at once, and what it says is scripted: one question in four, drawn by a seed, is answered right.
``dspy.BootstrapFewShot`` and ``bootstrap_few_shot`` with 16 workers start from the same program, train split and
teacher, each with an empty cache, one right after the other. Fails where their demonstrations differ.

The ratio has a ceiling that the draw sets: 16 questions at once take as long as the longest of them, and 17 as long as
two. Where every question is one call, as ``rag``'s, it is 16 if DSPy needs 16 questions, and 8.5 if it needs 17.
"""

import contextlib
import io
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import dspy
from processes import serving
from rich.table import Table

from hoptimizer import Workbench, make_config
from hoptimizer.eval.datasets.dataset import locate
from hoptimizer.models import build_adapter, build_lm
from hoptimizer.models.usage import UsageMeter
from hoptimizer.optimizers import CompileContext
from hoptimizer.optimizers.candidates import CandidateRecorder, SearchContext
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.prompt.few_shot import BootstrapFewShot
from hoptimizer.programs import Program
from reporting import benchmark_parser, load, show

WORKERS = 16
DEMOS = (4, 8)
PROGRAMS = ("rag", "ircot")


def scripted_server(seed: int) -> AbstractContextManager[str]:
    """The URL of a server that answers the questions of atlas' train split."""
    return serving("scripted_server.py", str(locate("atlas") / "train.jsonl"), "--seed", str(seed))


def by_dspy(optimizer: BootstrapFewShot, context: CompileContext) -> Program:
    """What the optimizer compiles, compiled by DSPy alone."""
    examples = annotate(
        context.trainset,
        context.corpus,
        context.program.retriever,
        distractors=optimizer.distractors,
        seed=context.seed,
    )
    Random(context.seed).shuffle(examples)
    stock = dspy.BootstrapFewShot(
        metric=context.objective,
        metric_threshold=optimizer.metric_threshold,
        max_bootstrapped_demos=optimizer.max_bootstrapped_demos,
        max_labeled_demos=optimizer.max_labeled_demos,
    )
    return stock.compile(context.program, teacher=context.program.deepcopy(), trainset=examples)


def by_us(optimizer: BootstrapFewShot, context: CompileContext) -> Program:
    """What the optimizer compiles, without the estimate of a compile's cost that goes before it."""
    recorder = CandidateRecorder(UsageMeter(lambda _: False), [], context.objective.worst, context.listener)
    return optimizer.search(SearchContext(**vars(context), recorder=recorder))


def timed(url: str, bench: Workbench, search: Callable[[CompileContext], Program]) -> tuple[dict[str, Any], float, int]:
    """The demonstrations of each step, the seconds of a compile with an empty cache, and its calls."""
    config = bench.config
    context = CompileContext(
        program=bench.program(),
        trainset=bench.data.split("train"),
        devset=[],
        corpus=bench.data.corpus,
        objective=config.objective,
        teacher_lm=None,
        seed=config.seed,
        workers=WORKERS,
        folder=Path(),
    )
    lm = build_lm(config.lm["default"])
    with tempfile.TemporaryDirectory() as folder, dspy.context(lm=lm, adapter=build_adapter()):
        dspy.configure_cache(disk_cache_dir=folder)
        before = _calls(url)
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            compiled = search(context)
        seconds = time.perf_counter() - start
    demos = {name: compiled.dump_state()[name]["demos"] for name, _ in compiled.named_predictors()}
    return demos, seconds, _calls(url) - before


def _calls(url: str) -> int:
    with urllib.request.urlopen(f"{url}/calls") as reply:
        return json.load(reply)["calls"]


def measure(seed: int) -> list[dict[str, Any]]:
    """A row for each program and number of demonstrations."""
    rows = []
    with scripted_server(seed) as url:
        for name in PROGRAMS:
            lms = {"default": {"model": "openai/scripted", "api_base": f"{url}/v1"}}
            config = {"data": "atlas", "program": name, "retriever": "bm25", "lm": lms, "seed": seed}
            bench = Workbench(make_config(config))
            _warm_up(url, bench)
            rows += [_compare(url, bench, demos) for demos in DEMOS]
    return rows


def _warm_up(url: str, bench: Workbench) -> None:
    """Have everything made that is made at the first call."""
    optimizer = BootstrapFewShot(max_bootstrapped_demos=1)
    timed(url, bench, lambda context: by_us(optimizer, context))


def _compare(url: str, bench: Workbench, demos: int) -> dict[str, Any]:
    optimizer = BootstrapFewShot(max_bootstrapped_demos=demos)
    expected, stock_seconds, stock_calls = timed(url, bench, lambda context: by_dspy(optimizer, context))
    found, seconds, calls = timed(url, bench, lambda context: by_us(optimizer, context))
    return {
        "program": bench.config.program.name,
        "demos": demos,
        "seed": bench.config.seed,
        "stock_seconds": stock_seconds,
        "seconds": seconds,
        "ratio": stock_seconds / seconds,
        "stock_calls": stock_calls,
        "calls": calls,
        "same": found == expected,
    }


def main() -> None:
    """Print the table; fails where demonstrations differ."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], help="of the script and of the compile")
    options = parser.parse_args()
    rows = [row for seed in options.seeds for row in measure(seed)]
    show({"workers": WORKERS, "load": load(), "rows": rows}, options.json, _table(rows))
    if not all(row["same"] for row in rows):
        sys.exit("the demonstrations differ from DSPy's")


def _table(rows: list[dict[str, Any]]) -> Table:
    title = f"scripted server, 100 ms per call, {WORKERS} workers; atlas, bm25; load {load():.1f}"
    heads = ("program", "demos", "seed", "DSPy, s", "ours, s", "ratio", "DSPy's calls", "our calls", "same demos")
    table = Table(*heads, title=title, box=None)
    for row in rows:
        times = (f"{row[key]:.2f}" for key in ("stock_seconds", "seconds", "ratio"))
        plain = (str(row[key]) for key in ("stock_calls", "calls"))
        same = "yes" if row["same"] else "NO"
        table.add_row(row["program"], str(row["demos"]), str(row["seed"]), *times, *plain, same)
    return table


if __name__ == "__main__":
    main()
