"""``hop models``: the weights store."""

from typing import Annotated

import typer

from hoptimizer.cli.screen.options import Json

app = typer.Typer(name="models", help="The weights store: models that hoptimizer knows by name.", no_args_is_help=True)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the models of the weights store, and which are here.

    Example:

        hop models list
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show
    from hoptimizer.models.weights.store import table

    entries = table()
    listing = Table("model", "licence", "size", "here", "about", box=None, header_style="bold", pad_edge=False)
    for entry in entries:
        listing.add_row(
            entry.name, entry.licence, f"{entry.size / 1e6:.0f} MB", "yes" if entry.folder else "no", entry.about
        )
    rows = [
        {
            "name": entry.name,
            "licence": entry.licence,
            "bytes": entry.size,
            "sources": list(entry.sources),
            "folder": str(entry.folder) if entry.folder else None,
        }
        for entry in entries
    ]
    show({"models": rows}, as_json, listing)


@app.command("pull")
def pull_command(name: Annotated[str, typer.Argument(help="A name of the store.")], as_json: Json = False) -> None:
    """Download a model of the store, verify it and keep it.

    One that is here already is verified; one that is damaged is downloaded again.

    Example:

        hop models pull smollm2-135m-instruct
    """
    from hoptimizer.cli.screen.console import show
    from hoptimizer.models.weights.store import pull

    folder = pull(name, verify=True)
    show({"name": name, "folder": str(folder)}, as_json, f"{name} is in {folder}")
