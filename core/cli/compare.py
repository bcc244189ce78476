"""``hop compare, report``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hoptimizer.cli.console import show, working
from hoptimizer.cli.options import Json, Split, config_of

if TYPE_CHECKING:
    from hoptimizer.comparison import Comparison
    from hoptimizer.tracking.settings import TrackingSettings
    from hoptimizer.tracking.tracker import Tracker

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]... [KEY=VALUE]...", help="Runs, the baseline first; none: all of the experiment."),
]
Metric = Annotated[str, typer.Option("--metric", help="What the paired differences are of.")]
By = Annotated[str | None, typer.Option("--by", help="Compare groups of questions, too: by type or hops.")]


def compare_command(
    runs: Runs = None,
    split: Split = "dev",
    metric: Metric = "f1",
    by: By = None,
    as_json: Json = False,
) -> None:
    """Lay variants side by side: means, intervals, paired differences from the first, and what a question costs.

    Runs are matched by the questions that they answered. Without runs, all of the experiment are taken that answered
    those of the latest one, but not the compiles that others started from. † marks a difference that is more than
    chance, corrected for the number of variants. The table and its plots are logged to MLflow too.

    Examples:

        hop compare data=atlas

        hop compare 1f2e3d 4c5b6a --split test

        hop compare data=atlas --by hops
    """
    from hoptimizer.cli import tables
    from hoptimizer.comparison import log_comparison
    from hoptimizer.comparison.sheets import comparison_sheets

    with working():
        tracker, tracking, comparison = _compared(runs, split, metric, by)
        log_comparison(tracker, comparison)
    shown = [tables.sheet(sheet) for sheet in comparison_sheets(comparison)]
    show(comparison.as_dict(), as_json, *shown, tables.open_mlflow(tracking))


def _compared(
    runs: Sequence[str] | None, split: str, metric: str, by: str | None
) -> "tuple[Tracker, TrackingSettings, Comparison]":
    """The comparison that a command's words ask for, and the store that has its runs."""
    from hoptimizer.comparison import compare_variants
    from hoptimizer.tracking.journal import tell_waiting
    from hoptimizer.tracking.tracker import Tracker

    overrides = [word for word in runs or () if "=" in word]
    run_ids = [word for word in runs or () if "=" not in word]
    _, config = config_of(next(iter(run_ids), None), overrides)
    tracker = Tracker(config.tracking.uri, config.experiment)
    tell_waiting(config.tracking.uri)
    whole = [tracker.whole_id(start) for start in run_ids]
    return (
        tracker,
        config.tracking,
        compare_variants(tracker, whole, split=split, metric=metric, seed=config.seed, by=by),
    )
