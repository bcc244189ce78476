"""``hop compare, report``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoptimizer.cli.screen.console import show, tell, working
from hoptimizer.cli.screen.options import Json, Split, is_config, read_overrides, store_uri

if TYPE_CHECKING:
    from hoptimizer.config import Config
    from hoptimizer.tracking.tracker import Tracker

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]... [KEY=VALUE]...", help="Runs, the baseline first; none: all of the experiment."),
]
Metric = Annotated[str, typer.Option("--metric", help="What the paired differences are of.")]
By = Annotated[str | None, typer.Option("--by", help="Compare groups of questions, too: by type or hops.")]

# Sections of a config that name the experiment and the seed.
_NEEDED = ("data", "tracking", "seed")


def compare_command(
    runs: Runs = None,
    split: Split = "dev",
    metric: Metric = "f1",
    by: By = None,
    as_json: Json = False,
) -> None:
    """Lay variants side by side: means, intervals, paired differences from the first, and what a question costs.

    Runs are matched by the questions that they answered. Without runs, all of the experiment are taken that have scores
    of the metric and answered the questions of the latest one, but not the compiles that others started from. † marks a
    difference that is more than chance, corrected for the number of variants. The table and its plots are logged to
    MLflow too, where that may be written to.

    Examples:

        hop compare data=atlas

        hop compare 1f2e3d 4c5b6a --split test

        hop compare data=atlas --by hops
    """
    from hoptimizer.common.errors import UserError
    from hoptimizer.common.urls import line_without_secrets

    with working():
        tracker, config, run_ids = _chosen(runs)
        from hoptimizer.cli.screen import tables
        from hoptimizer.cli.screen.parts import Parts
        from hoptimizer.comparison import compare_variants, log_comparison
        from hoptimizer.comparison.sheets import comparison_sheets

        comparison = compare_variants(tracker, run_ids, split=split, metric=metric, seed=config.seed, by=by)
    shown = [Parts(sheet) for sheet in comparison_sheets(comparison)]
    show(comparison.as_dict(), as_json, *shown, tables.open_mlflow(config.tracking))
    try:
        with working():
            log_comparison(tracker, comparison)
    except (UserError, OSError) as error:  # an account that may only read, a full disk
        tell(f"warning: the comparison is not kept in MLflow: {line_without_secrets(error)}")


def report_command(
    runs: Runs = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; one that is there is replaced.")] = Path(
        "report.html"
    ),
    split: Split = "dev",
    metric: Metric = "f1",
    by: By = None,
    as_json: Json = False,
) -> None:
    """Write a comparison as one HTML page that needs no server.

    The page has what was compared, the scores with their intervals, plots, what a question costs, where the variants
    disagree, and ten questions with the steps of each. Runs are chosen as by hop compare.

    Examples:

        hop report data=atlas

        hop report 1f2e3d 4c5b6a --split test --out report.html
    """
    with working():
        tracker, config, run_ids = _chosen(runs)
        from hoptimizer.eval.display.format import counted
        from hoptimizer.report.page import write_report

        compared = write_report(tracker, run_ids, out, split=split, metric=metric, seed=config.seed, by=by)
    n = len(compared.questions)
    line = f"{out}: {counted(len(compared.variants), 'variant')} on {counted(n, 'question')} of {split}"
    shown = {"path": str(out), "split": split, "metric": metric, "n": n, "runs": [v.run_id for v in compared.variants]}
    show(shown, as_json, line)


def _chosen(runs: Sequence[str] | None) -> "tuple[Tracker, Config, list[str]]":
    """The store that a command's words name, the config that they say, and the ids of the runs."""
    from hoptimizer.common.errors import UserError
    from hoptimizer.config import Config
    from hoptimizer.tracking.settings import is_empty

    overrides = [word for word in runs or () if is_config(word)]
    run_ids = [word for word in runs or () if not is_config(word)]
    if run_ids and (files := [word for word in overrides if "=" not in word]):
        raise UserError(f"{files[0]}: runs have configs of their own; give the file or the runs")
    idle = [word for word in overrides if "=" in word and _section(word) in Config.model_fields.keys() - set(_NEEDED)]
    if idle:
        raise UserError(f"{idle[0]}: does not choose among runs; {', '.join(_NEEDED)} and ids of runs do")
    config = _config_of(run_ids[0], overrides) if run_ids else read_overrides(overrides)
    if is_empty(config.tracking.uri):
        raise UserError(f"{config.tracking.uri}: holds no run yet: make one with `hop compile` or `hop eval`")
    from hoptimizer.tracking.journal import tell_waiting
    from hoptimizer.tracking.tracker import Tracker

    tracker = Tracker(config.tracking.uri, config.experiment)
    tell_waiting(config.tracking.uri)
    return tracker, config, [tracker.whole_id(start) for start in run_ids]


def _section(word: str) -> str:
    """The section of a config that a word sets."""
    return word.lstrip("+~").partition("=")[0].partition(".")[0]


def _config_of(start: str, overrides: Sequence[str]) -> "Config":
    """What a command's words say over the experiment and the seed of a run.

    A comparison reads what runs have logged: none of the parts that a run's config names is asked for, so that code of
    the user's among them need not be named again.

    Args:
        start: of the run's id.
        overrides: the words.

    Raises:
        UserError: there is no such run, or a word is wrong.
    """
    from hoptimizer.stored import kept_in
    from hoptimizer.tracking.settings import UnknownRun, is_empty

    uri = store_uri(overrides)
    if is_empty(uri):
        raise UnknownRun(start, uri)
    from hoptimizer.tracking.journal import find_run

    found, run_id = find_run(uri, start)
    kept = kept_in(found.config_values(run_id), uri)
    config: Config = read_overrides(overrides, {key: kept[key] for key in _NEEDED if key in kept})
    return config
