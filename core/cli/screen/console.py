"""What commands print: results on stdout, everything else on stderr."""

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from hoptimizer.common.progress import Report
from hoptimizer.common.terminal import printable

STAGES_SHOWN = 12
# Columns of what goes to a file or a pipe.
WIDTH = 160


class TextConsole(Console):
    """A console for texts of whatever origin: passages and answers neither style what is shown nor steer the terminal.

    Args:
        file: where it writes; stdout by default. What is no terminal has no width, so that tables there are wide.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        wide = not (file or sys.stdout).isatty() and "COLUMNS" not in os.environ
        super().__init__(file=file, width=WIDTH if wide else None, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As of rich, with what may be shown alone."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


@contextlib.contextmanager
def working() -> Iterator[Report]:
    """Show progress on stderr while a command works, and what hoptimizer logs: what is used, what was dropped.

    What libraries print meanwhile goes to stderr too, so that stdout holds the result alone. Where stderr is no
    terminal, each stage is told once, when it starts.

    Yields:
        a function to report progress with.
    """
    console = TextConsole(file=sys.stderr)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    stages: dict[str, Any] = {}

    def report(stage: str, done: int, total: int, remark: str) -> None:
        if stage not in stages:
            stages[stage] = progress.add_task(stage, total=total or None, remark="")
            _keep_to_the_screen(progress)
            if not console.is_terminal:
                console.print(stage, highlight=False)
        progress.update(stages[stage], completed=done, total=total or None, remark=remark)

    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr), progress, _logged():
        warnings.simplefilter("ignore")
        yield report


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Show the lines that hoptimizer's own modules log."""
    logger = logging.getLogger("hoptimizer")
    handler = logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _keep_to_the_screen(progress: Progress) -> None:
    """Show the first stage, which may span all others, and the latest ones."""
    for task in progress.tasks[1 : 1 - STAGES_SHOWN]:
        progress.update(task.id, visible=False)


def tell(line: str) -> None:
    """Print a line on stderr, such as what a command uses."""
    sys.stderr.write(f"{printable(line)}\n")


def show(result: dict[str, Any], as_json: bool, *tables: RenderableType) -> None:
    """Print a command's result: one JSON object, or tables for people."""
    if as_json:
        text = json.dumps(result, ensure_ascii=False)
        # Halves of a character, of which names of files can consist, are written as JSON escapes them.
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
        return
    console = TextConsole()
    for table in tables:
        console.print(table)
