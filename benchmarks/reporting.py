"""How every benchmark reads its arguments, ends on a user's mistake, and prints what it measured."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType

from hoptimizer.common.errors import UserError

# Of a table that does not go to a terminal: as wide as the widest one.
_WIDTH = 140


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a benchmark's docstring, and which knows ``--json``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def demo_parser(doc: str | None) -> argparse.ArgumentParser:
    """Like :func:`benchmark_parser`, for a benchmark of one of the demo's programs with a changed config."""
    from hoptimizer.demo import SETTINGS  # brings nearly everything, which other benchmarks do without

    parser = benchmark_parser(doc)
    parser.add_argument("--program", default="rag", choices=SETTINGS, help="(default: rag)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes the demo's config")
    return parser


@contextlib.contextmanager
def user_mistakes() -> Iterator[None]:
    """Within it, a user's mistake ends the benchmark with one line on stderr and exit code 2, as it ends ``hop``."""
    try:
        yield
    except UserError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        sys.exit(2)


def show(figures: Mapping[str, Any], as_json: bool, *parts: RenderableType) -> None:
    """Print what was measured.

    Args:
        figures: everything, as plain data.
        as_json: whether to print the figures, as one JSON object.
        parts: tables and sentences for people.
    """
    if as_json:
        sys.stdout.write(json.dumps(figures, ensure_ascii=False) + "\n")
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    for part in parts:
        console.print(part, highlight=False)


def percent(mean: float, low: float, high: float) -> str:
    """A share and its interval as text, in percent."""
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def load() -> float:
    """The machine's load over the last minute, beside which times mean little where it is high."""
    return os.getloadavg()[0]
