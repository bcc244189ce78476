"""``hop compile, eval, compare, demo``."""

from typing import Annotated

import typer

from hoptimizer.cli.console import show, working
from hoptimizer.cli.dry_run import show_dry_run
from hoptimizer.cli.options import DryRun, Json, Overrides, RunOption, Split, check_data, config_of


def compile_command(
    overrides: Overrides = None,
    run: RunOption = None,
    split: Split = "dev",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compile a program for a data set and keep the variant as an MLflow run.

    The program is scored before and after. Give the same command again to continue one that was interrupted.

    With --run, the compile starts from that variant, with its config; settings given here change it, above all the
    optimizer.

    Examples:

        hop compile data=atlas program=ircot

        hop compile my.yaml lm.default=openai/gpt-4o-mini optimizer.max_bootstrapped_demos=2

        hop compile my.yaml optimizer=miprov2 optimizer.budget.lm_calls=2000

        hop compile --run 1f2e3d optimizer=distill

        hop compile my.yaml --dry-run
    """
    if dry_run:
        show_dry_run(overrides, run, split, as_json, compiles=True)
        return
    with working() as report:
        run, config = config_of(run, overrides)
        # A mistake in the config is said before what takes seconds to import.
        check_data(config)
        from hoptimizer.cli import tables
        from hoptimizer.compiling import compile_variant

        variant = compile_variant(config, split=split, run_id=run, report=report)
    show(variant.as_dict(), as_json, tables.before_and_after(variant))


def eval_command(
    overrides: Overrides = None,
    run: RunOption = None,
    split: Split = "dev",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Score an uncompiled program, or with --run a compiled variant.

    With --run, the config is the variant's; settings given here change it, e.g. the language model it runs on.

    Examples:

        hop eval data=atlas program=rag

        hop eval --run 1f2e3d --split test lm.default=openai/gpt-4o-mini
    """
    if dry_run:
        show_dry_run(overrides, run, split, as_json, compiles=False)
        return
    with working() as report:
        run, config = config_of(run, overrides)
        check_data(config)
        from hoptimizer.cli import tables
        from hoptimizer.variants import evaluate_variant

        variant = evaluate_variant(config, split=split, run_id=run, report=report)
    show(variant.as_dict(), as_json, tables.scores(variant))


def compare_command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]... [KEY=VALUE]...", help="Runs, the baseline first; none: all of the experiment."
        ),
    ] = None,
    split: Split = "dev",
    metric: Annotated[str, typer.Option(help="What the paired differences are of.")] = "f1",
    by: Annotated[str | None, typer.Option(help="Compare groups of questions, too: by type or hops.")] = None,
    as_json: Json = False,
) -> None:
    """Lay variants side by side: means, intervals, and paired differences from the first.

    The table and its plots are logged to MLflow too.

    Examples:

        hop compare data=atlas

        hop compare 1f2e3d 4c5b6a --split test

        hop compare data=atlas --by hops
    """
    from hoptimizer.cli import tables
    from hoptimizer.comparison import compare_variants, log_comparison
    from hoptimizer.config import TrackingSettings
    from hoptimizer.tracking.journal import tell_waiting
    from hoptimizer.tracking.tracker import Tracker

    overrides = [word for word in runs or () if "=" in word]
    run_ids = [word for word in runs or () if "=" not in word]
    with working():
        _, config = config_of(next(iter(run_ids), None), overrides)
        tracker = Tracker(config.tracking.uri, config.experiment)
        tell_waiting(config.tracking.uri)
        run_ids = [tracker.whole_id(start) for start in run_ids]
        comparison = compare_variants(tracker, run_ids, split=split, metric=metric, seed=config.seed, by=by)
        log_comparison(tracker, comparison)
    open_line = tables.open_mlflow(config.tracking or TrackingSettings())
    groups = [tables.groups(comparison)] if by else []
    show(comparison.as_dict(), as_json, tables.comparison(comparison), *groups, open_line)


def demo_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Compile four multi-hop programs for the bundled data set, and compare them. Takes minutes.

    Pulls the embedded models, indexes atlas, scores direct, rag, ircot, ra_isf and efficient_rag, compiles all but the
    first, and scores them again, each in an MLflow run. Compiling ra_isf also fine-tunes a small model for one of its
    steps, and compiling efficient_rag the two that retrieve.

    Example:

        hop demo
    """
    from hoptimizer.cli import tables
    from hoptimizer.config import TrackingSettings
    from hoptimizer.demo import run_demo

    with working() as report:
        result = run_demo(overrides or (), report)
    show(result, as_json, *tables.demo(result), tables.open_mlflow(TrackingSettings()))
