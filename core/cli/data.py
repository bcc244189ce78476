"""``hop data``: data sets."""

from pathlib import Path
from typing import Annotated

import typer

from hoptimizer.cli.importing import import_command
from hoptimizer.cli.screen.options import Json
from hoptimizer.cli.synthesize import synthesize_command

app = typer.Typer(name="data", help="List, check, import, synthesize, join and start data sets.", no_args_is_help=True)
app.command("import")(import_command)
app.command("synthesize")(synthesize_command)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the bundled data sets and the published formats that can be imported.

    Example:

        hop data list
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show
    from hoptimizer.eval.datasets.importers import IMPORTERS
    from hoptimizer.eval.datasets.settings import bundled

    listing = Table("name", "how to use it", box=None, header_style="bold", pad_edge=False)
    for name in bundled():
        listing.add_row(name, f"bundled: data={name}")
    for name in IMPORTERS.names:
        listing.add_row(name, f"published: hop data import {name} FILE --out DIR, then data=DIR")
    listing.add_row("hub:OWNER/NAME", "of the hub: hop data import hub:OWNER/NAME --out DIR, then data=DIR")
    show({"bundled": list(bundled()), "published": IMPORTERS.names}, as_json, listing)


@app.command("check")
def check_command(
    path: Annotated[str, typer.Argument(help="A data set's folder, or a bundled set's name.")],
    corpus: Annotated[Path | None, typer.Option(help="A corpus file instead of the folder's own.")] = None,
    checkpoint: Annotated[str, typer.Option(help="The ColBERT checkpoint that is to read the passages.")] = "minilm",
    as_json: Json = False,
) -> None:
    """Validate a data set: figures of each split, and every problem with its file, line and field.

    Exits with code 2 where there is a problem. Warnings are of what spoils scores: passages that are longer than the
    retriever reads, the same question in two splits, answers that no passage holds.

    Example:

        hop data check my-data
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show
    from hoptimizer.eval.datasets.dataset import check

    found = check(path, corpus, checkpoint=checkpoint)
    listing = Table("split", "questions", "types", "passages", "hops", box=None, header_style="bold", pad_edge=False)
    for name, split in found.splits.items():
        types = ", ".join(f"{kind} {count}" for kind, count in split.types.items())
        listing.add_row(name, str(split.questions), types, _mean(split.mean_passages), _mean(split.mean_hops))
    corpus_line = f"corpus: {found.corpus.passages} passages, {found.corpus.mean_words:.0f} words each on average"
    problems = [f"problem: {problem}" for problem in found.problems]
    if found.more_problems:
        problems.append(f"... and {found.more_problems} more")
    warnings = [f"warning: {warning}" for warning in found.warnings]
    show(found.model_dump(), as_json, listing, corpus_line, *problems, *warnings)
    if found.problems:
        raise typer.Exit(2)


def _mean(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


@app.command("join")
def join_command(
    sets: Annotated[
        list[str], typer.Argument(metavar="DATA[=N]...", help="Data sets, each with its number of train questions.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    dev: Annotated[int | None, typer.Option(min=1, help="Dev questions of each, from the first on; all.")] = None,
    test: Annotated[int | None, typer.Option(min=1, help="Test questions of each, from the first on; all.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw of train questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Make one data set of several, to compile one program for all of them.

    Example:

        hop data join 2wiki=40 hotpot=20 atlas=30 --dev 2 --out three --seed 7
    """
    from hoptimizer.cli.screen.console import show
    from hoptimizer.common.errors import UserError
    from hoptimizer.eval.datasets.join import join_folders

    wanted: dict[str, int | None] = {}
    for word in sets:
        name, _, number = word.rpartition("=") if "=" in word else (word, "", "")
        if name in wanted:
            raise UserError(f"{name}: given twice; once is enough")
        if number and not (number.isascii() and number.isdigit() and int(number)):
            raise UserError(f"{word}: expected a data set, or DATA=N with a number of train questions from 1 on")
        wanted[name] = int(number) if number else None
    joined = join_folders(wanted, out, dev=dev, test=test, seed=seed)
    sizes = {split: len(questions) for split, questions in joined.splits.items()}
    shown = ", ".join(f"{split} {size}" for split, size in sizes.items())
    line = f"{out}: {shown} questions, {len(joined.corpus)} passages"
    show({"folder": str(out), "questions": sizes, "passages": len(joined.corpus)}, as_json, line)


@app.command("divide")
def divide_command(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set's folder, or a bundled one.")],
    parts: Annotated[int, typer.Option(min=2, help="How many to make.")],
    out: Annotated[Path, typer.Option(help="The folder that gets them, each in a folder of its own.")],
    as_json: Json = False,
) -> None:
    """Divide a corpus that is too large for one machine: each part is indexed and served by itself.

    Example:

        hop data divide wikipedia --parts 8 --out wikipedia-parts
    """
    from hoptimizer.cli.screen.console import show
    from hoptimizer.eval.datasets.dataset import load
    from hoptimizer.eval.datasets.join import divide

    folders = divide(load(data), parts, out)
    line = f"{out}: {parts} parts; serve each with `hop index serve data={folders[0]} retriever=colbert`"
    show({"parts": [str(folder) for folder in folders]}, as_json, line)


@app.command("new")
def new_command(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")], as_json: Json = False
) -> None:
    """Start a data set: a small valid one, to be replaced by your own questions and passages.

    Example:

        hop data new my-data
    """
    from hoptimizer.cli.screen.console import show
    from hoptimizer.eval.datasets.folder import new

    new(out)
    line = f"{out}: a small example; put your own lines in and run `hop data check {out}`"
    show({"folder": str(out)}, as_json, line)


@app.command("show-labels")
def show_labels_command(
    source: Annotated[str, typer.Argument(help="A data set, or a file of labels that a compile kept.")],
    split: Annotated[str, typer.Option(help="The data set's questions: train, dev or test.")] = "train",
    question: Annotated[str | None, typer.Option(metavar="ID", help="One question alone.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many questions.")] = 3,
    as_json: Json = False,
) -> None:
    """Show what EfficientRAG's models learn from: the queries of each hop, and its passage with the words that count.

    Of a data set these are the labels by its annotations; a file has those of a teacher, too.

    Examples:

        hop data show-labels atlas

        hop data show-labels labels-train.jsonl --question 2hop__482757_12019
    """
    from hoptimizer.cli.screen import answers
    from hoptimizer.cli.screen.console import show
    from hoptimizer.common.errors import UserError
    from hoptimizer.common.paths import expanded
    from hoptimizer.eval.datasets.dataset import load
    from hoptimizer.optimizers.labels.hop_labels import annotated, read_labels

    if (file := expanded(source)).is_file():
        found = read_labels(file)
    else:
        data = load(source)
        found = [annotated(asked, data.corpus) for asked in data.split(split)]
    shown = [one for one in found if question in (None, one.id)][:n]
    if not shown:
        raise UserError(f"{source}: no question {question!r} in it; leave --question out to see some")
    result = {"labels": [one.model_dump() for one in shown]}
    show(result, as_json, *(line for one in shown for line in answers.labels(one)))
