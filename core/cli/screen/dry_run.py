"""What ``--dry-run`` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hoptimizer.cli.screen.console import show, working
from hoptimizer.cli.screen.options import check_parts, config_of

if TYPE_CHECKING:
    from hoptimizer.config import Config


def show_dry_run(
    overrides: Sequence[str] | None, run: str | None, split: str, as_json: bool, *, compiles: bool
) -> None:
    """Print what an evaluation or a compile would do.

    Args:
        overrides: what the user typed.
        run: the start of the id of the compiled variant.
        split: the questions that are scored.
        as_json: whether to print JSON.
        compiles: whether the command compiles.
    """
    with working():
        run, config = config_of(run, overrides, [split])
        check_parts(config, asks=False)
        from hoptimizer.study.dry_run import dry_run

        found = dry_run(config, split=split, run_id=run, compiles=compiles)
    models = Table("model", "is asked for", box=None, header_style="bold", pad_edge=False)
    for asked in found.asked:
        models.add_row(asked.model, ", ".join(asked.roles))
    show(found.as_dict(), as_json, _yaml(config), models, Text(f"\n{found.line}"))


def show_dry_study(
    file: Path, overrides: Sequence[str] | None, run: str | None, only: Sequence[str], as_json: bool
) -> None:
    """Print what a study would do.

    Args:
        file: the study file.
        overrides: what the user typed besides.
        run: the start of the id of the compiled variant that every cell starts from.
        only: the rows to which the study is limited.
        as_json: whether to print JSON.
    """
    with working():
        run, config = config_of(run, overrides) if run else (None, None)
        from hoptimizer.study.cells import load_study

        public = config.public() if config else None
        study = load_study(file, overrides or (), run_id=run, variant=public, only=only)
        from hoptimizer.cli.screen.parts import Parts
        from hoptimizer.study.dry_run import dry_study

        expected = dry_study(study)
    models = Table("cell", "models", box=None, header_style="bold", pad_edge=False)
    cells = {cell.title: cell for cell in (*study.sources.values(), *study.candidates, *study.cells)}
    for title, cell in cells.items():
        models.add_row(title, ", ".join(f"{role} {lm.shown}" for role, lm in cell.config.lm.items()))
    configs = {title: cell.config.public() for title, cell in cells.items()}
    shown = [Text("# the first cell"), _yaml(study.config), models, Text(), Parts(expected.sheet())]
    show(expected.as_dict() | {"configs": configs}, as_json, *shown, Text(expected.line))


def _yaml(config: "Config") -> RenderableType:
    """A config as a config file has it, without secrets."""
    from hoptimizer.tracking.models import as_yaml  # brings MLflow

    return Text(as_yaml(config.public()))
