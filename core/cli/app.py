"""The verbs of ``hop``."""

from importlib.metadata import version
from typing import Annotated

import typer

from hoptimizer.cli import ask, compare, data, doctor, index, models, serve, store, study, ui, work

app = typer.Typer(
    name="hop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hoptimizer {version('hoptimizer')}")
        raise typer.Exit


@app.callback()
def hop(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile multi-hop question answering programs, and compare every variant in MLflow."""


app.command("demo")(work.demo_command)
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
app.add_typer(index.app, name="index")
app.command("ask")(ask.ask_command)
app.command("serve")(serve.serve_command)
app.command("compile")(work.compile_command)
app.command("eval")(work.eval_command)
app.command("compare")(compare.compare_command)
app.command("report")(compare.report_command)
app.command("study")(study.study_command)
app.command("register")(store.register_command)
app.command("ui")(ui.ui_command)
app.command("sync")(store.sync_command)
app.command("doctor")(doctor.doctor_command)
