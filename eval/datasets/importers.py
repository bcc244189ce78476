"""From a published data set's files to a data set's folder."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded
from hoptimizer.common.plugins import Registry, subclass_of
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.eval.chunking import make_chunker
from hoptimizer.eval.datasets import hub
from hoptimizer.eval.datasets.folder import SPLITS, write_folder
from hoptimizer.eval.datasets.hotpotqa import Aliases, FullwikiItem, HotpotItem, WikiItem
from hoptimizer.eval.datasets.iirc import IircItem, find_articles, pool_articles
from hoptimizer.eval.datasets.open_domain import NqItem, TriviaItem
from hoptimizer.eval.datasets.pool import PassagePool
from hoptimizer.eval.datasets.published_formats import (
    Decomposition,
    MusiqueItem,
    Published,
    StrategyItem,
    without_entities,
)
from hoptimizer.eval.datasets.question import AnyText, Question, Record, Text
from hoptimizer.eval.datasets.reading import SEEN, PublishedReader, Skipped, Source, stop_or_skip
from hoptimizer.eval.datasets.rows import DataRow, OnProblem, fail, own_file, read_rows, require
from hoptimizer.eval.datasets.settings import free_data_folder
from hoptimizer.eval.splits import check_splits, divided, named_splits

FORMATS: dict[str, type[Published]] = {
    "hotpotqa": HotpotItem,
    "fullwiki": FullwikiItem,
    "2wikimultihopqa": WikiItem,
    "musique": MusiqueItem,
    "iirc": IircItem,
    "strategyqa": StrategyItem,
    "nq": NqItem,
    "triviaqa": TriviaItem,
}
"""Our formats, by the names that ``hop data import`` knows."""

IMPORTERS: Registry[type[Published]] = Registry(
    "published format",
    "hoptimizer.importers",
    FORMATS,
    subclass_of("hoptimizer.eval.datasets.published_formats:Published"),
    "a subclass of hoptimizer.eval.datasets.published_formats.Published",
)
"""The formats that can be imported: ours, entry points of ``hoptimizer.importers``, and dotted paths."""

ALIASES_FILE = "id_aliases.json"
"""The published file of 2WikiMultihopQA's answer aliases, which is read where it lies beside the questions."""

CONTEXTS = "contexts"
"""Stands in the place of a split for a file of whose items the paragraphs alone are taken."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        folder: the data set's folder.
        splits: questions by split.
        passages: passages of the corpus.
        unanswerable: items that the published file marks as having no answer.
        decomposed: questions with hops.
        contexts: items without annotations, whose paragraphs were taken into the corpus.
        skipped: bad items that were passed over.
        reasons: what was wrong with the first ones, a line each.
        splits_left_out: splits on the hub that have none of our names.
    """

    folder: Path
    splits: dict[str, int]
    passages: int
    unanswerable: int
    decomposed: int
    contexts: int = 0
    skipped: int = 0
    reasons: Sequence[str] = ()
    splits_left_out: Sequence[str] = ()


class ExtraPassage(Record):
    """A row of an extra corpus file. Its text may be a list of sentences, as HotpotQA's paragraphs of Wikipedia are."""

    id: Annotated[Text | None, BeforeValidator(lambda id: str(id) if isinstance(id, int) else id)] = None
    title: Annotated[AnyText, BeforeValidator(without_entities)] = ""
    text: Annotated[
        Text,
        BeforeValidator(lambda text: without_entities("".join(map(str, text)) if isinstance(text, list) else text)),
    ]


def import_published(
    name: str,
    paths: Path | Mapping[str, Path | str] | None,
    out: Path,
    *,
    corpus: Path | str | None = None,
    decompositions: Sequence[Path] = (),
    sizes: Mapping[str, float] | None = None,
    seed: int = 0,
    chunk: str | None = None,
    overlap: int = 0,
    unanswerable: str | None = None,
    skip_bad: bool = False,
    progress: Report = in_notebook,
) -> Imported:
    """Make a data set's folder from a published data set. The corpus is the questions' pooled contexts.

    Formats without contexts make a folder without a corpus, for programs that don't search. The answers of
    2WikiMultihopQA get their aliases from the published file ``id_aliases.json``, and IIRC's linked pages are in
    ``context_articles.json``, each beside the questions.

    Args:
        name: of the format, one of :data:`IMPORTERS`; or ``hub:OWNER/NAME[:CONFIG]``, a data set of the hub.
        paths: one file, to be divided at random, or files by split (``train``, ``dev``, ``test``). ``dev+test`` is a
            file that is divided among these, ``contexts`` one of whose items the paragraphs alone are taken, as they
            are of a test file's items without annotations. Of the hub, the names of its splits; all by default.
        out: the folder to make.
        corpus: more passages to search among: JSON or JSON lines, CSV, TSV or parquet with ``title``, ``text`` and
            perhaps ``id``, or a folder of such files, or ``hub:OWNER/NAME[:CONFIG]``, a data set of the hub with
            these columns; of IIRC, its linked pages.
        decompositions: files of 2WikiMultihopQA's decompositions, for hops and rationales.
        sizes: of the splits: shares of their file (up to 1 each, up to 1 together) or numbers of questions. By default
            a file alone is divided into 80, 10 and 10 percent, one among several splits equally, and all is taken of
            one that is a split.
        seed: of the division.
        chunk: how paragraphs are divided into passages (:func:`make_chunker`); by default not at all.
        overlap: what a passage repeats of the one before it, in the units of ``chunk``.
        unanswerable: what answers questions that have no answer; ``None`` leaves them out.
        skip_bad: pass over bad items and count them; by default the first one is raised.
        progress: hears of the progress.

    Raises:
        UserError: an unknown format, a missing or malformed file (the item and field are named), sizes that don't
            fit, an ``out`` that isn't free, or a hub that is out of reach.
    """
    found = hub.open_hub(name) if name.startswith(hub.PREFIX) else None
    format = found.format if found else name
    item = IMPORTERS.get(format, "hop data import")
    if decompositions and format != "2wikimultihopqa":
        raise UserError(f"decompositions are published beside 2wikimultihopqa, not {name}; leave them out")
    if unanswerable is not None and not unanswerable.strip():
        raise UserError("unanswerable: expected the answer of questions that have none, such as unknown; got nothing")
    out = free_data_folder(out)
    sources = _of_hub(found, paths) if found else _of_files(paths, item.under)
    check_splits([splits for splits, _ in sources], sizes or {}, [CONTEXTS])
    files = [source.file for _, source in sources if source.file]
    skipped = Skipped()
    report: OnProblem = skipped if skip_bad else stop_or_skip
    with closing(PassagePool(make_chunker(chunk, overlap) if chunk else None)) as pool:
        if issubclass(item, IircItem) and files:
            pool_articles(expanded(corpus) if corpus else find_articles(files), pool, files, progress)
        elif corpus:
            _pool_extra(str(corpus), pool, report, progress)
        chains = _read_decompositions([expanded(path) for path in decompositions])
        aliases = _read_aliases(files) if issubclass(item, WikiItem) else {}
        reader = PublishedReader(item, pool, report, chains, aliases, unanswerable, progress)
        splits: dict[str, list[Question]] = {}
        for named, source in sources:
            if named == (CONTEXTS,):
                reader.read_contexts(source)
            else:
                questions = reader.read(source, unlabelled=named == ("test",))
                splits |= divided(questions, named, sizes or {}, seed) if questions else {}
        if not splits:
            raise UserError(f"{sources[0][1].name}: no questions with an answer in it; give another file")
        write_folder(out, pool, {split: splits[split] for split in SPLITS if split in splits})
        passages = len(pool)
    return Imported(
        folder=out,
        splits={split: len(splits[split]) for split in SPLITS if split in splits},
        passages=passages,
        unanswerable=reader.without_answer,
        decomposed=sum(bool(question.hops) for questions in splits.values() for question in questions),
        contexts=reader.contexts,
        skipped=skipped.count,
        reasons=skipped.reasons,
        splits_left_out=hub.left_out(found.splits) if found and not paths and len(found.splits) > 1 else (),
    )


# The splits that a source is divided among (none for one that is alone), and the source.
_Sources = list[tuple[tuple[str, ...], Source]]


def _of_files(paths: Path | Mapping[str, Path | str] | None, under: str | None) -> _Sources:
    if not paths:
        raise UserError("hop data import: no file is given; give one, or files by split as train=FILE dev=FILE")
    if isinstance(paths, Path):
        return [((), Source.of(expanded(paths), under))]
    return [(tuple(key.split("+")), Source.of(expanded(path), under)) for key, path in paths.items()]


def _of_hub(found: hub.HubSet, paths: Path | Mapping[str, Path | str] | None) -> _Sources:
    if not paths:
        several = hub.by_our_names(found.name, found.splits) if len(found.splits) > 1 else {}
        paths = several if len(several) > 1 else Path(next(iter(several.values() or found.splits)))
    named = named_splits(found.name, found.splits, paths)
    return [(splits, Source(f"{found.name}, {split}", found.splits[split])) for splits, split in named]


def _pool_extra(corpus: str, pool: PassagePool, report: OnProblem, progress: Report) -> None:
    for row in _extra_rows(corpus, report):
        try:
            extra = require(ExtraPassage, row)
            pool.add(extra.title, extra.text, extra.id)
        except UserError as error:
            place = "" if str(error).startswith(row.place) else f"{row.place}: "
            report(f"{place}{error}")
        if len(pool) % SEEN == 0:
            progress("passages", len(pool), 0, "")
    if not len(pool):
        raise UserError(f"{corpus}: no passages in it; give a file of passages with title and text")


def _extra_rows(corpus: str, report: OnProblem) -> Iterator[DataRow]:
    if corpus.startswith(hub.PREFIX):
        return (row for split in hub.open_table(corpus).values() for row in split(report))
    path = expanded(corpus)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    return (row for file in files for row in read_rows(file, report, damaged=fail))


def _read_decompositions(paths: Sequence[Path]) -> dict[str, Decomposition]:
    entries = (require(Decomposition, row) for path in paths for row in read_rows(path))
    return {entry.id: entry for entry in entries}


def _read_aliases(files: Sequence[Path]) -> dict[str, list[str]]:
    """The other names of each entity, from the published file beside those of the questions, in their folders."""
    beside = dict.fromkeys(file.parent / ALIASES_FILE for file in files)
    entries = (require(Aliases, row) for path in beside if path.exists() and own_file(path) for row in read_rows(path))
    return {entry.id: entry.names for entry in entries}
