"""``hop study``."""

from pathlib import Path
from typing import Annotated

import typer

from hoptimizer.cli.screen.dry_run import show_dry_study
from hoptimizer.cli.screen.options import DryRun, Json, RunOption, config_of


def study_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study file; its keys are described above.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that win over the file's base.", show_default=False),
    ] = None,
    run: RunOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="ROW",
            help="Only this row: a cell's name, or KEY=VALUE of the grid. May be given several times.",
            show_default=False,
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what the study will cost, by a few questions of each cell, and end.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run a grid of variants, one MLflow run each, and show them as a paper's table.

    A study file is YAML:

    [bold]base[/bold]: a config, as in any config file; all else changes it

    [bold]grid[/bold]: config keys, each with a list of values, all of them combined

    [bold]cells[/bold]: named variants, combined with the grid: each a name, config
    keys with their values, and compile where it differs from the study's

    [bold]seeds[/bold]: every combination is run with each of them

    [bold]split[/bold]: the questions: train, dev (the default) or test

    [bold]compile[/bold]: whether programs are compiled (default: false); keys of the
    grid and of cells that start with compile. hold for that alone, as in
    compile.data.name

    [bold]rows, columns[/bold]: which keys of the grid (and name, for the cells) the
    table has as rows and as columns

    [bold]figures[/bold]: which metrics and counts the table shows

    [bold]plot[/bold]: {x: KEY, y: METRIC}, a curve over a numeric key of the grid

    [bold]choose[/bold]: {grid: keys with values, by: METRIC, split: dev}, values that are
    chosen on dev before the table is made on split

    [bold]baseline[/bold]: the row that the others are tested against

    [bold]at_once[/bold]: cells under way at once (default: 4 for language models that
    are all behind servers, else 1)

    All configs and data are checked before anything is run. The table shows the
    mean over seeds ± standard deviation, or with a single seed the 95% interval of
    the metric over the questions; it is kept with its plots in the study's run, in
    which the runs of the cells are nested.

    With --run, every cell starts from that compiled variant and its config, which
    base changes: what does the variant owe to a setting?

    Give the same command again to continue a study that was interrupted: finished
    cells are not run again, failed ones are. A failed cell does not stop the rest;
    the exit code is then 1.

    Examples:

        hop study configs/study-ircot.yaml

        hop study my-study.yaml data.dev=50 lm=openai/gpt-4o-mini --json

        hop study configs/papers/ircot-systems.yaml --only "IRCoT QA" --only DSP

        hop study configs/papers/ra_isf-ablations.yaml --run 1f2e3d
    """
    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.common.errors import UserError

    for word in overrides or ():
        if "=" not in word:
            raise UserError(f"{word}: one study file is enough; everything else is key=value")
    if dry_run:
        show_dry_study(file, overrides, run, only or (), as_json)
        return
    from hoptimizer.study.cells import load_study

    with working() as report:
        run, config = config_of(run, overrides) if run else (None, None)
        public = config.public() if config else None
        study = load_study(file, overrides or (), run_id=run, variant=public, only=only or ())
        # After the study file's mistakes are said: these take seconds to import.
        from hoptimizer.cli.screen import tables
        from hoptimizer.cli.screen.parts import Parts
        from hoptimizer.study.run import estimate_study, run_study

        if estimate:
            expected = estimate_study(study, report)
    if estimate:
        show(expected.as_dict(), as_json, Parts(expected.sheet()), expected.line)
        return
    with working() as report:
        result = run_study(study, report)
    shown = [Parts(sheet) for sheet in result.sheets]
    show(result.as_dict(), as_json, *shown, tables.open_mlflow(study.config.tracking))
    for outcome in result.failed:
        tell(f"hop: cell {outcome.cell.name!r}, seed {outcome.cell.config.seed}: {outcome.failure}")
    for outcome in (*result.tried, *result.outcomes):
        if outcome.unanswered:
            left = f"{outcome.unanswered} questions got no answer and are left out; the same command asks them again"
            tell(f"hop: cell {outcome.cell.name!r}, seed {outcome.cell.config.seed}: {left}")
    if result.failed:
        raise typer.Exit(1)
