"""From a folder of documents, and a table of questions if there is one, to a data set's folder."""

import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded, is_within
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.common.stream import EXCEL, TABLES, kind
from hoptimizer.eval.chunking import Chunker, make_chunker
from hoptimizer.eval.datasets.folder import write_folder
from hoptimizer.eval.datasets.pool import PassagePool
from hoptimizer.eval.datasets.reading import Skipped, stop_or_skip
from hoptimizer.eval.datasets.rows import OnProblem
from hoptimizer.eval.datasets.settings import free_data_folder
from hoptimizer.eval.documents.converting import SUFFIXES, Document, read_document
from hoptimizer.eval.documents.questions import read_questions

CHUNK = "200"
"""How documents are divided: whole sentences of at most 200 tokens, and ColBERT reads 256 with the title."""

HEADINGS = "headings"
"""The unit of ``--chunk`` by which what stands under a heading is a passage."""

_LINKS = "links out of the folder"
_UNREADABLE = "folders that cannot be read"
_HIDDEN = (".", "~$")  # the latter are Word's, of documents that are open
# Characters of a document that are divided at once.
_BLOCK = 100_000
_BETWEEN_WORDS: dict[str, Any] = {"expand_tabs": False, "replace_whitespace": False, "break_on_hyphens": False}


@dataclass(frozen=True, slots=True)
class ImportedDocuments:
    """What an import made.

    Attributes:
        folder: the data set's folder.
        splits: questions by split; none where documents were given alone.
        documents: that were read.
        passages: passages of the corpus.
        left_out: what else is in the folder of documents: files by their suffix, links that lead out of it, and folders
            that can't be read.
        skipped: bad documents and rows that were passed over.
        reasons: what was wrong with the first ones, a line each.
        splits_left_out: splits on the hub that have none of our names, or no answers.
    """

    folder: Path
    splits: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    passages: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    reasons: Sequence[str] = ()
    splits_left_out: Sequence[str] = ()


def is_table(name: str) -> bool:
    """Whether a name is that of a file that can hold a table of questions, whether there is one or not; Excel's are not
    read, and reading says so.

    Example:
        >>> from hoptimizer.eval.documents.importing import is_table
        >>> is_table("questions.csv"), is_table("musique")
        (True, False)
    """
    return kind(Path(name)) in (*TABLES, *EXCEL)


def import_documents(
    table: Path | str | Mapping[str, Path | str] | None,
    docs: Path | None,
    out: Path,
    *,
    hub_splits: Path | str | Mapping[str, Path | str] | None = None,
    question: str | None = None,
    answer: str | None = None,
    chunk: str = CHUNK,
    overlap: int = 0,
    sizes: Mapping[str, float] | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Report = in_notebook,
) -> ImportedDocuments:
    """Make a data set's folder from documents and a table of questions, or from one of them alone.

    Args:
        table: CSV, TSV, JSON, JSON lines or parquet with a column of questions and one of answers; one file, to be
            divided at random, or files by split (``dev+test`` for one that is divided among these); or
            ``hub:OWNER/NAME[:CONFIG]``, or ``hub:FOLDER``. ``None`` makes a corpus alone.
        docs: a folder of Markdown, text, HTML, PDF and DOCX files, its folders included.
        out: the folder to make.
        hub_splits: of a data set on the hub: one of its splits, to be divided, or several by ours; all by default.
        question: the column of questions; by default the first one with a usual name.
        answer: likewise, of answers.
        chunk: how documents are divided into passages (:func:`~hoptimizer.eval.chunking.make_chunker`); ``headings``
            makes a passage of what stands under each heading, with the headings in its title, and ``headings:200``
            divides those that are longer.
        overlap: what a passage repeats of the one before it, in the units of ``chunk``.
        sizes: of the splits, as of :func:`~hoptimizer.eval.datasets.importers.import_published`.
        seed: of the division.
        skip_bad: pass over bad documents and rows, and count them; by default the first one is raised.
        progress: hears of the progress; shows it in a notebook by default.

    Raises:
        UserError: a file is missing or bad, a column or a split is not there, or ``out`` isn't free.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.eval import import_documents
        >>> Path("docs").mkdir()
        >>> _ = Path("docs/alma.md").write_text("The ferry Alma was built in 1988.")
        >>> _ = Path("questions.csv").write_text("question,answer\\nWhen built?,1988\\nWhere?,Oslo\\nBy whom?,Bo")
        >>> made = import_documents("questions.csv", Path("docs"), Path("ferry"), sizes={"train": 2, "dev": 1})
        >>> made.splits, made.documents, made.passages
        ({'train': 2, 'dev': 1}, 1, 1)
    """
    if table is None and docs is None:
        raise UserError("hop data import: give a table of questions, a folder of documents with --docs, or both")
    if table is None and (sizes or question or answer):
        raise UserError("--sizes and columns are of questions; give a table of them beside --docs, or leave these out")
    out = free_data_folder(out)
    skipped = Skipped()
    report: OnProblem = skipped if skip_bad else stop_or_skip
    by_heading, chunker = _chunking(chunk, overlap)
    files, left_out = find_documents(docs) if docs else ([], {})
    splits, splits_left_out = (
        ({}, []) if table is None else read_questions(table, hub_splits, report, question, answer, sizes or {}, seed)
    )
    with closing(PassagePool(chunker)) as pool:
        read = 0
        for number, file in enumerate(files, 1):
            progress("documents", number, len(files), file.name)
            try:
                document = read_document(file)
            except UserError as error:
                report(str(error))
                continue
            read += 1
            for title, text in _paragraphs(document, by_heading):
                pool.add(title, text)
        if docs and not len(pool):
            raise UserError(f"{docs}: no document with a text in it; the first: {skipped.reasons[0]}")
        write_folder(out, pool, splits)
        passages = len(pool)
    return ImportedDocuments(
        folder=out,
        splits={split: len(questions) for split, questions in splits.items()},
        documents=read,
        passages=passages,
        left_out=left_out,
        skipped=skipped.count,
        reasons=skipped.reasons,
        splits_left_out=splits_left_out,
    )


def find_documents(folder: Path) -> tuple[list[Path], dict[str, int]]:
    """The documents of a folder and the folders in it, in order; and how much else there is, by its kind.

    Hidden files and folders are passed over. Links that lead out of the folder are not followed, and counted; so are
    folders that can't be read.

    Args:
        folder: of documents.

    Raises:
        UserError: there is no such folder, or no document in it.
    """
    folder = expanded(folder)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {what}; give a folder of documents")
    files: list[Path] = []
    others: Counter[str] = Counter()
    for path in sorted(_visible(folder, others)):
        if path.is_symlink() and not is_within(folder, path.absolute()):
            others[_LINKS] += 1
        elif path.is_file() and path.suffix.lower() in SUFFIXES:
            files.append(path)
        elif path.is_file():
            others[path.suffix.lower() or path.name] += 1
    if not files:
        there = f", found {', '.join(f'{kind} {count}' for kind, count in others.items())}" if others else ""
        raise UserError(f"{folder}: no documents in it; expected files that end in {', '.join(SUFFIXES)}{there}")
    return files, dict(others)


def _visible(folder: Path, others: Counter[str]) -> Iterator[Path]:
    """What is in a folder and the folders in it, but what is hidden; folders that can't be read are counted."""

    def count(_: OSError) -> None:
        others[_UNREADABLE] += 1

    for place, folders, names in os.walk(folder, onerror=count):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        yield from (Path(place, name) for name in (*folders, *names) if not name.startswith(_HIDDEN))


def _chunking(chunk: str, overlap: int) -> tuple[bool, Chunker | None]:
    """Whether passages end at headings, and what divides them further."""
    unit, _, rest = chunk.partition(":")
    if unit != HEADINGS:
        return False, make_chunker(chunk, overlap)
    if not rest and overlap:
        raise UserError("--overlap needs a size to divide by: write --chunk headings:200, or leave it out")
    return True, make_chunker(rest, overlap) if rest else None


def _paragraphs(document: Document, by_heading: bool) -> Iterator[tuple[str, str]]:
    """The titles and texts that a document's passages are made of."""
    if by_heading:
        for section in document.sections:
            title = ": ".join(dict.fromkeys([document.title, *section.headings]))
            yield from ((title, block) for block in _blocks(section.text.split("\n")))
        return
    lines: list[str] = []
    above: tuple[str, ...] = ()
    for section in document.sections:
        first, *others = section.text.split("\n")
        same = takewhile(lambda pair: pair[0] == pair[1], zip(above, section.headings, strict=False))
        begun = section.headings[len(list(same)) :]
        lines += [": ".join([*begun, first]), *others]
        above = section.headings
    yield from ((document.title, block) for block in _blocks(lines))


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    """Lines joined, as many as can be divided at once. A line that ends without a mark becomes a sentence."""
    block: list[str] = []
    length = 0
    for line in filter(None, lines):
        sentence = line if line[-1] in ".!?:;,…\"'”)" else f"{line}."
        for part in textwrap.wrap(sentence, _BLOCK, **_BETWEEN_WORDS) if len(sentence) > _BLOCK else [sentence]:
            if block and length + len(part) > _BLOCK:
                yield " ".join(block)
                block, length = [], 0
            block.append(part)
            length += len(part)
    if block:
        yield " ".join(block)
