"""Of the supporting passages that retrieving once misses, how many does a variant find?

Retrieving once brings as many passages as the variant collects at most (``program.max_passages``, 15).

    hop eval --run ID data=DIR --split test
    python benchmarks/missed_passages.py RUN [RUN ...] [--split test] [--tracking sqlite:///mlflow.db]

RUN scored a variant on a data set, or compiled it. The intervals are bootstrapped over questions (95%).
"""

import argparse
import sys

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from hoptimizer import Workbench, make_config
from hoptimizer.tracking.tracker import Tracker

_PASSAGES = 15


def row(run_id: str, split: str, uri: str) -> list[str]:
    """What one run found."""
    tracker = Tracker(uri, "benchmarks")
    config = make_config(tracker.config_values(run_id))
    predictions = tracker.predictions(run_id, split)
    if predictions is None:
        raise SystemExit(f"run {run_id}: not scored on {split}; give it to `hop eval --run {run_id} --split {split}`")
    table = predictions.table
    most = getattr(config.program, "max_passages", _PASSAGES)
    found = Workbench(config).retriever.search(table["question"].tolist(), most)
    missed, recovered, once, collected = [], [], [], []
    for supporting, passages, results in zip(table["supporting"], table["collected"], found, strict=True):
        gold, ids = set(supporting), {passage.id for passage in results}
        missed.append(len(gold - ids))
        recovered.append(len((gold - ids) & set(passages)))
        once.append(len(gold & ids) / len(gold))
        collected.append(len(passages))
    low, high = interval(recovered, missed)
    return [
        f"{config.data.name} {run_id[:8]}",
        str(len(table)),
        f"{100 * sum(once) / len(once):.1f}",
        f"{100 * table['recall'].mean():.1f}",
        f"{sum(collected) / len(collected):.2f}",
        f"{sum(recovered)} of {sum(missed)}",
        f"{100 * sum(recovered) / max(1, sum(missed)):.0f}% [{100 * low:.0f}, {100 * high:.0f}]",
    ]


def interval(recovered: list[int], missed: list[int]) -> tuple[float, float]:
    """Of the share of all that was missed; questions where something was missed are resampled."""
    pairs = np.array([pair for pair in zip(recovered, missed, strict=True) if pair[1]])
    if len(pairs) < 2:
        return 0.0, 1.0
    found = stats.bootstrap(
        tuple(pairs.T),
        lambda some, all, axis: some.sum(axis) / all.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--split", default="test")
    parser.add_argument("--tracking", default="sqlite:///mlflow.db")
    arguments = parser.parse_args()
    table = Table(
        "data and run", "n", f"recall, once, {_PASSAGES}", "recall, variant", "passages", "of the missed", "share"
    )
    for run_id in arguments.runs:
        table.add_row(*row(run_id, arguments.split, arguments.tracking))
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
