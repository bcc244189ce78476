"""``hop index``: the retriever's index."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hoptimizer.cli import serve
from hoptimizer.cli.screen.options import Json, Overrides, read_overrides

if TYPE_CHECKING:
    from hoptimizer.workbench import Workbench

app = typer.Typer(name="index", help="The retriever's index over a data set's corpus.", no_args_is_help=True)
app.command("serve")(serve.serve_index_command)


@app.command("build")
def build_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Build the index of a corpus, where there is none yet or the corpus has changed.

    Example:

        hop index build data=atlas retriever.index=plaid
    """
    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.common.errors import UserError

    with working() as report:
        config = read_overrides(overrides, splits=())
        if not config.retriever.indexed_here:
            raise UserError(
                f"retriever: {config.retriever.shown} has an index of its own, so that there is none to build here; an "
                "engine gets a corpus by hop index push"
            )
        bench = _workbench(config, report)
        tell(bench.search_summary())
        retriever = bench.retriever
        result = {"data": bench.data.name, "passages": len(bench.data.corpus), "retriever": retriever.name}
    show(result, as_json, f"{result['retriever']} index of {result['data']}: {result['passages']} passages")


@app.command("push")
def push_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Send a corpus to the search engine of a config: qdrant, next_plaid, opensearch or postgres.

    What the engine has already is not sent again: the same command goes on where it was broken off, and brings changed
    passages up to date. Passages that the corpus lacks stay in the engine.

    Example:

        hop index push data=atlas retriever=postgres retriever.url=postgresql://localhost/wiki retriever.table=passages
    """
    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.retrieval import push_corpus

    with working() as report:
        bench = _workbench(read_overrides(overrides, splits=()), report)
        tell(bench.search_summary())
        settings, corpus = bench.config.retriever, bench.data.corpus
        sent = push_corpus(settings, corpus, progress=lambda done, total: report("sending passages", done, total, ""))
    result = {"data": bench.data.name, "passages": len(corpus), "sent": sent, "retriever": settings.name}
    show(result, as_json, f"{settings.shown}: {len(corpus)} passages of {bench.data.name}, {sent} of them sent now")


@app.command("search")
def search_command(
    query: Annotated[str, typer.Argument(help="What to search for.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Search a corpus.

    Example:

        hop index search "Who painted the Mona Lisa?" data=atlas retriever.k=3
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.common.concurrency import run_async
    from hoptimizer.common.errors import UserError

    if not query.strip():
        raise UserError("query: expected some words, got none")
    with working() as report:
        config = read_overrides(overrides, splits=())
        bench = _workbench(config, report)
        tell(bench.search_summary(config.k))
        found = run_async(bench.retriever.asearch(query, config.k))
    listing = Table("score", "id", "passage", box=None, header_style="bold", pad_edge=False)
    for passage in found:
        listing.add_row("–" if passage.score is None else f"{passage.score:.4g}", passage.id, str(passage))
    rows = [{"id": p.id, "title": p.title, "text": p.text, "score": p.score} for p in found]
    show({"query": query, "passages": rows}, as_json, listing)


@app.command("info")
def info_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Show which index a config has, what it is tied to and how large it is.

    Example:

        hop index info data=atlas
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.retrieval import index_info

    with working() as report:
        bench = _workbench(read_overrides(overrides, splits=()), report)
        tell(bench.search_summary())
        info = index_info(bench.config.retriever, bench.data.corpus)
    listing = Table(box=None, show_header=False, pad_edge=False)
    for key, value in info.items():
        parts = enumerate(value) if key == "of" else ()  # of a hybrid, one for each of its retrievers
        rows = [(f"of.{number}.{name}", said) for number, one in parts for name, said in one.items()]
        for name, said in rows or [(key, value)]:
            listing.add_row(name, str(said))
    show(info, as_json, listing)


def _workbench(config: Any, report: Any) -> "Workbench":  # noqa: ANN401 - a Config and a Report, imported late
    # After the config's mistakes are said: this takes most of a second to import.
    from hoptimizer.workbench import Workbench

    return Workbench(config, report)
