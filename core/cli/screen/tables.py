"""Results as tables for people."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hoptimizer.cli.screen.parts import Parts
from hoptimizer.common.urls import without_secrets
from hoptimizer.eval import load
from hoptimizer.eval.display.format import COLUMNS, COSTS, change, figure, figure_of, heading
from hoptimizer.eval.display.sheet import Sheet
from hoptimizer.eval.showing import failures
from hoptimizer.tracking.naming import CANDIDATE
from hoptimizer.tracking.settings import TrackingSettings
from hoptimizer.tracking.sync import DeliveredRun
from hoptimizer.variants import Variant

RUN = "run"
_FIGURES = (*COLUMNS, "seconds_per_question")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        # A run's id is there to be copied.
        whole = number == 0 or column == RUN
        table.add_column(heading(column), justify="left" if number == 0 else "right", no_wrap=whole)
    return table


def _present(*rows: dict[str, float], metric: str = "") -> list[str]:
    """The figures that any row has, first what is maximized where that is a metric of the user's."""
    return [name for name in dict.fromkeys([metric, *_FIGURES]) if any(name in row for row in rows)]


def _own_metric(variant: Variant) -> str:
    name = variant.config.objective.name
    return "" if name in _FIGURES else name


def _cells(metrics: dict[str, float], names: list[str]) -> list[str]:
    return [figure_of(name, metrics) for name in names]


def _caption(variant: Variant) -> str:
    """What the figures leave out, and what they are."""
    metrics, objective = variant.after.metrics, variant.config.objective
    unjudged = sum(scored.metrics.get("judge_failures", 0) for scored in (variant.before, variant.after) if scored)
    parts = [
        failures(variant.after),
        f"{metrics['parse_failures']:.0f} outputs could not be parsed",
    ]
    if unanswered := sum(scored.metrics.get("unanswered", 0) for scored in (variant.before, variant.after) if scored):
        parts.insert(0, f"{unanswered:.0f} questions got no answer from a server and are left out")
    parts += [f"{unjudged:.0f} answers got no verdict"] if unjudged else []
    parts += [] if objective.is_metric else [f"objective: {objective.label}"]
    if spent := variant.costs.get("spent"):
        parts.append(_spent(spent, variant.costs.get("estimate")))
    if unscored := variant.costs.get("unscored"):
        parts.append(f"where {sum(unscored.values()):.0f} runs could not be scored and counted 0")
    return ", ".join(parts)


def _spent(spent: Mapping[str, float], estimate: Mapping[str, float] | None) -> str:
    """What a compile took."""
    text = f"compiling took {spent['calls']:,.0f} calls"
    text += f" (estimated {estimate['calls']:,.0f})" if estimate else ""
    text += f", ${spent['usd']:.2f}" if "usd" in spent else ""
    return f"{text} and {spent['seconds'] / 60:.1f} minutes"


def scores(variant: Variant) -> RenderableType:
    """Scores of one variant, and what a question costs."""
    return _scored(variant, {variant.config.program.name: variant.after.metrics})


def before_and_after(variant: Variant) -> RenderableType:
    """Scores of a compiled variant and of what it was compiled from, and what a question costs."""
    if variant.before is None:
        return scores(variant)
    program = variant.config.program.name
    rows = {f"{program}, before compiling": variant.before.metrics, f"{program}, compiled": variant.after.metrics}
    lines = [variant.gain] if variant.gain else []
    return Group(_scored(variant, rows), Text(), *map(Text, [*lines, f"Next: {_next(variant)}"]))


def _next(variant: Variant) -> str:
    """The command to give next: it scores the variant on questions that chose nothing of it, or asks it one's own."""
    default = TrackingSettings().uri
    uri = without_secrets(variant.config.tracking.uri)
    where = "" if uri == default else f" tracking.uri={uri}"
    if variant.split == "test" or "test" not in load(variant.config.data).splits:
        return f'hop ask "QUESTION" --run {variant.run_id[:8]}{where}'
    return f"hop eval --run {variant.run_id[:8]} --split test{where}"


def _scored(variant: Variant, rows: Mapping[str, dict[str, float]]) -> Group:
    shown = _present(*rows.values(), metric=_own_metric(variant))
    figures, costs = [], []
    for name, metrics in rows.items():
        figures.append([name, *_cells(metrics, shown)])
        timeless = "all from a cache" if metrics.get("seconds_n") == 0 else "unknown"
        missing = {cost: timeless if cost.startswith("seconds") else "unknown" for cost in COSTS}
        costs.append([name, *(figure(cost, metrics[cost]) if cost in metrics else missing[cost] for cost in COSTS)])
    title = f"run {variant.run_id} on {variant.split}, n = {len(variant.after.rows)}"
    return Group(_parts(title, shown, figures, _caption(variant)), Text(), _parts("per question", COSTS, costs))


def _parts(title: str, columns: Sequence[str], rows: list[list[str]], note: str = "") -> Parts:
    """Rows of figures, of which the last one is the variant's where there are several."""
    last = len(rows) - 1
    bold = {(last, column) for column in range(len(columns) + 1)} if last else ()
    return Parts(Sheet(title, ["", *map(heading, columns)], 1, rows, frozenset(bold), note))


def demo(result: dict[str, Any]) -> list[RenderableType]:
    """Variants of the demo, and what compiling did."""
    n = result["variants"][0]["n"]
    shown = [name for name in _present(*(row["metrics"] for row in result["variants"])) if name != "retrievals"]
    table = _table(f"atlas test, n = {n}", "variant", RUN, *shown)
    table.add_row("blind guess", "", *_cells(result["blind_guess"], shown), style="dim")
    for row in result["variants"]:
        name = "  compiled" if row["compiled"] else row["program"]
        table.add_row(name, row["run_id"][:8], *_cells(row["metrics"], shown), style="bold" if row["compiled"] else "")
    gains = _table("what compiling did (paired, 95% interval)", "program", "before", "after", "difference")
    for row in result["comparisons"]:
        low, high = row["interval"]
        gains.add_row(
            f"{row['program']} {row['metric']}",
            figure(row["metric"], row["before"]),
            figure(row["metric"], row["after"]),
            change(row["metric"], row["difference"], low, high),
        )
    seconds = f"{result['seconds']:.0f} seconds, {result['parse_failures']} outputs could not be parsed"
    return [table, Text(), gains, Text(), Text(seconds, style="dim")]


def after_demo(result: dict[str, Any]) -> Table:
    """What can be done with the demo's runs: commands, and before them the one that puts ``hop`` on the path."""
    compiled = [row for row in result["variants"] if row["compiled"]]  # what `--run` takes
    best = max(compiled, key=lambda row: row["metrics"]["f1"])
    table = _table("", "to go on", "")
    table.columns[1].justify = "left"
    activate = Path(sys.prefix) / "bin" / "activate"
    if activate.is_file() and shutil.which("hop") is None:
        shown = activate.relative_to(Path.cwd()) if activate.is_relative_to(Path.cwd()) else activate
        table.add_row(f". {shown}", "puts hop on your path")
    table.add_row(f"hop ask --run {best['run_id'][:8]}", f"asks the best compiled one ({best['program']})")
    table.add_row("hop ui", "shows runs, predictions and plots in MLflow")
    table.add_row("hop compile --help", "compiles for data and a language model of yours")
    return table


def delivered(runs: Sequence[DeliveredRun]) -> RenderableType:
    """The runs that left the journal, without those of candidates."""
    shown = [run for run in runs if run.kind != CANDIDATE]
    if not shown:
        return Text("No runs were delivered.")
    table = _table(
        f"{len(shown)} runs were delivered" if len(shown) > 1 else "1 run was delivered", "name", "kind", RUN
    )
    for run in shown:
        table.add_row(run.name, run.kind, run.run_id)
    return table


def open_mlflow(tracking: TrackingSettings) -> Text:
    """The command that opens the runs in MLflow."""
    uri = without_secrets(tracking.uri)
    command = "hop ui" if uri == without_secrets(TrackingSettings().uri) else f"hop ui tracking.uri={uri}"
    return Text(f"Runs, predictions and plots: {command}", style="cyan")
