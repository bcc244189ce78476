"""``hop compile, eval, demo``."""

from hoptimizer.cli.screen.console import show, working
from hoptimizer.cli.screen.dry_run import show_dry_run
from hoptimizer.cli.screen.options import DryRun, Json, Overrides, RunOption, Split, check_parts, config_of


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
        run, config = config_of(run, overrides, [split])
        # A mistake in the config is said before what takes seconds to import.
        check_parts(config, compiles=True)
        from hoptimizer.cli.screen import tables
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
        run, config = config_of(run, overrides, [split])
        check_parts(config)
        from hoptimizer.cli.screen import tables
        from hoptimizer.variants import evaluate_variant

        variant = evaluate_variant(config, split=split, run_id=run, report=report)
    show(variant.as_dict(), as_json, tables.scores(variant))


def demo_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Compile four multi-hop programs for the bundled data set, and compare them. Takes minutes.

    Pulls the embedded models, indexes atlas, scores direct, rag, ircot, ra_isf and efficient_rag, compiles all but the
    first, and scores them again, each in an MLflow run. Compiling ra_isf also fine-tunes a small model for one of its
    steps, and compiling efficient_rag the two that retrieve.

    Example:

        hop demo
    """
    from hoptimizer.cli.screen import tables
    from hoptimizer.demo import run_demo

    with working() as report:
        result = run_demo(overrides or (), report)
    show(result, as_json, *tables.demo(result), tables.after_demo(result))
