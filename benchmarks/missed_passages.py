"""Of the supporting passages that retrieving once misses, how many does a variant find?

Retrieving once brings as many passages as the variant collects at most (``program.max_passages``, 15).

    hop eval --run ID data=DIR --split test
    python benchmarks/missed_passages.py RUN [RUN ...] [--split test] [--tracking sqlite:///mlflow.db] [--json]

RUN is a run that scored a variant on a data set, or compiled it. The intervals are bootstrapped over questions (95%).
"""

from typing import Any

import numpy as np
from rich.table import Table
from scipy import stats

from hoptimizer import UserError, Workbench, make_config
from hoptimizer.tracking.tracker import Tracker
from reporting import benchmark_parser, show, user_mistakes

_PASSAGES = 15


def measure(run_id: str, split: str, uri: str) -> dict[str, Any]:
    """What one run found.

    Raises:
        UserError: the run was not scored on that split.
    """
    tracker = Tracker(uri, "benchmarks")
    run_id = tracker.whole_id(run_id)
    config = make_config(tracker.config_values(run_id))
    predictions = tracker.predictions(run_id, split)
    if predictions is None:
        raise UserError(f"run {run_id}: not scored on {split}; give it to `hop eval --run {run_id} --split {split}`")
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
    return {
        "data": config.data.name,
        "run_id": run_id,
        "n": len(table),
        "recall_once": sum(once) / len(once),
        "recall": float(table["recall"].mean()),
        "passages": sum(collected) / len(collected),
        "missed": sum(missed),
        "recovered": sum(recovered),
        "share": [sum(recovered) / max(1, sum(missed)), *interval(recovered, missed)],
    }


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


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the MLflow run of a scored variant")
    parser.add_argument("--split", default="test", help="the questions (default: test)")
    parser.add_argument("--tracking", default="sqlite:///mlflow.db", help="where the runs are kept")
    options = parser.parse_args()
    with user_mistakes():
        rows = [measure(run_id, options.split, options.tracking) for run_id in options.runs]
    heads = ("data and run", "n", f"recall, once, {_PASSAGES}", "recall, variant", "passages", "of the missed", "share")
    table = Table(*heads)
    for row in rows:
        share, low, high = row["share"]
        table.add_row(
            f"{row['data']} {row['run_id'][:8]}",
            str(row["n"]),
            f"{100 * row['recall_once']:.1f}",
            f"{100 * row['recall']:.1f}",
            f"{row['passages']:.2f}",
            f"{row['recovered']} of {row['missed']}",
            f"{100 * share:.0f}% [{100 * low:.0f}, {100 * high:.0f}]",
        )
    show({"split": options.split, "rows": rows}, options.json, table)


if __name__ == "__main__":
    main()
