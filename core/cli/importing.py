"""``hop data import``: published data sets, and a user's own documents and questions."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoptimizer.cli.screen.options import Json

if TYPE_CHECKING:
    from hoptimizer.eval.datasets.importers import Imported
    from hoptimizer.eval.documents.importing import ImportedDocuments


def import_command(
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    name: Annotated[
        str | None,
        typer.Argument(
            help="The published format (`hop data list`); or hub:OWNER/NAME[:CONFIG], or hub:FOLDER, in a published "
            "format or a table; or a table of questions and answers (or SPLIT=FILE...); or nothing, for the documents "
            "of --docs alone."
        ),
    ] = None,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | SPLIT=FILE...",
            help="One file to divide, or one a split; dev+test=FILE is divided among the two, contexts=FILE gives its "
            "paragraphs alone. Of the hub, its splits stand for files; all by default.",
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Of a published data set: a file or folder of more passages to search among, or "
            "hub:OWNER/NAME[:CONFIG]; of IIRC, its articles."
        ),
    ] = None,
    decompositions: Annotated[
        list[Path] | None, typer.Option(help="2WikiMultihopQA's decompositions, for hops and rationales.")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Of splits, as shares of their file or questions: train=0.8,dev=0.1,test=0.1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the division.")] = 0,
    docs: Annotated[
        Path | None, typer.Option(help="A folder of Markdown, text, HTML, PDF and DOCX files, which are the passages.")
    ] = None,
    question_column: Annotated[str | None, typer.Option(help="The table's column of questions.")] = None,
    answer_column: Annotated[str | None, typer.Option(help="The table's column of answers.")] = None,
    chunk: Annotated[
        str | None,
        typer.Option(
            help="Divide paragraphs: words:100, sentences:3, tokens:128[:CHECKPOINT], or 200 for whole sentences of at "
            "most 200 tokens (the default for documents); documents by headings or headings:200, too."
        ),
    ] = None,
    overlap: Annotated[int, typer.Option(min=0, help="Of a passage with the one before it, in units of --chunk.")] = 0,
    unanswerable: Annotated[
        str | None,
        typer.Option(help="Of a published data set: keep questions without an answer, with this as the right one."),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over bad items and count them.")] = False,
    as_json: Json = False,
) -> None:
    """Make a data set's folder from a published data set, or from your own documents and questions.

    The corpus of a published data set is the pooled contexts of its questions; that of your own is the folder --docs.
    A table is CSV, TSV, JSON, JSON lines or parquet with a column of questions and one of answers.

    Examples:

        hop data import hotpotqa hotpot_dev_distractor_v1.json --out hotpot

        hop data import musique train=musique_ans_train.jsonl dev+test=musique_ans_dev.jsonl --out musique

        hop data import hub:hotpotqa/hotpot_qa:distractor --out hotpot

        hop data import questions.csv --docs handbook --chunk 200 --out my-data
    """
    from hoptimizer.cli.screen.console import show, working
    from hoptimizer.common.errors import UserError
    from hoptimizer.eval.datasets import hub
    from hoptimizer.eval.datasets.importers import FORMATS, import_published
    from hoptimizer.eval.documents.importing import CHUNK, import_documents, is_table
    from hoptimizer.eval.splits import parse_sizes

    words = [word for word in (name, *(paths or [])) if word]
    on_hub = bool(words) and words[0].startswith(hub.PREFIX)
    own = docs or question_column or answer_column or not name or "=" in name or is_table(name)
    own = own or (on_hub and not hub.is_published(words[0]))
    split_sizes = parse_sizes(sizes) if sizes else None
    made: Imported | ImportedDocuments
    if own:
        if name in FORMATS:
            raise UserError(
                f"{name}: of a published data set, passages and columns are known; leave --docs and columns out"
            )
        for option, given in (
            ("--corpus", corpus),
            ("--decompositions", decompositions),
            ("--unanswerable", unanswerable),
        ):
            if given:
                raise UserError(f"{option} is for published data sets; leave it out of an import of your own questions")
        with working() as progress:
            made = import_documents(
                name if on_hub else _files(words),
                docs,
                out,
                hub_splits=_files(words[1:]) if on_hub else None,
                question=question_column,
                answer=answer_column,
                chunk=chunk or CHUNK,
                overlap=overlap,
                sizes=split_sizes,
                seed=seed,
                skip_bad=skip_bad,
                progress=progress,
            )
        lines = _own_lines(made)
    else:
        if overlap and not chunk:
            raise UserError("--overlap needs --chunk, such as --chunk words:100")
        with working() as progress:
            made = import_published(
                words[0],
                _files(words[1:]),
                out,
                corpus=corpus,
                decompositions=decompositions or (),
                sizes=split_sizes,
                seed=seed,
                chunk=chunk,
                overlap=overlap,
                unanswerable=unanswerable,
                skip_bad=skip_bad,
                progress=progress,
            )
        lines = _published_lines(made, unanswerable)
    if made.splits_left_out:
        lines.append(f"splits on the hub that were left out: {', '.join(made.splits_left_out)}")
    if made.skipped:
        lines += [f"{made.skipped} bad items were skipped; the first:", *(f"  {reason}" for reason in made.reasons)]
    show(dataclasses.asdict(made) | {"folder": str(made.folder)}, as_json, *lines)


def _files(words: list[str]) -> Path | Mapping[str, Path | str] | None:
    """One file, or files by split where the words name them so; or splits of the hub, which stand for files."""
    from hoptimizer.common.errors import UserError

    named: dict[str, Path | str] = {split: Path(file) for split, _, file in (w.partition("=") for w in words) if file}
    if not named and len(words) > 1:
        raise UserError(f"{words[1]}: give one file, or one a split as train=FILE dev=FILE")
    if named and len(named) < len(words):
        raise UserError(f"{words}: give each file as SPLIT=FILE, each split once, or one file alone")
    return named or (Path(words[0]) if words else None)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _own_lines(made: "ImportedDocuments") -> list[str]:
    corpus = f"{made.passages} passages of {made.documents} documents"
    if made.splits:
        lines = [f"{made.folder}: {_counted(made.splits)} questions, {corpus}; use it with data={made.folder}"]
    else:
        following = f"hop data synthesize {made.folder} --out DIR"
        lines = [f"{made.folder}: {corpus}, no questions; have some written with: {following}"]
    if made.left_out:
        lines.append(f"left out: {_counted(made.left_out)}")
    return lines


def _published_lines(made: "Imported", unanswerable: str | None) -> list[str]:
    lines = [
        f"{made.folder}: {_counted(made.splits)} questions, {made.passages} passages; use it with data={made.folder}"
    ]
    if made.unanswerable:
        kept = (
            f"kept, with {unanswerable!r} as the right one" if unanswerable else "left out; --unanswerable keeps them"
        )
        lines.append(f"{made.unanswerable} questions have no answer: {kept}")
    if made.contexts:
        lines.append(f"{made.contexts} items are not annotated: their contexts are in the corpus")
    return lines
