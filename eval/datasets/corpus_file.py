"""The corpus file of a data set: read and checked passage by passage, and kept on disk where it is large."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from hoptimizer.eval.datasets.question import AnyText, Record, Text
from hoptimizer.eval.datasets.rows import OnProblem, fail, is_new, parse, read_rows
from hoptimizer.retrieval.index_folder import file_digest
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.stored_corpus import find_corpus, keep_corpus

IN_MEMORY = 50_000
"""A corpus of more passages stays on disk."""


class PassageRow(Record):
    """A row of a corpus file."""

    id: Text
    title: AnyText = ""
    text: Text


def read_corpus(path: Path, name: str, report: OnProblem = fail) -> Corpus:
    """The passages of a corpus file, in its order.

    More than ``IN_MEMORY`` of them are not held in memory: they are written into the cache's folder ``corpora`` when
    the file is first read, in a form that is mapped from then on. It is named after the file's digest, so that a file
    that changed is read anew.

    Args:
        path: the file, in one of the formats of :func:`hoptimizer.eval.datasets.rows.read_rows`.
        name: what messages call the corpus.
        report: called with each problem; by default the first one is raised.

    Raises:
        UserError: a problem was found, and ``report`` is the default; or the cache's folder can't be written.
    """
    if not path.is_file():
        report(f"{path}: no such file; correct the path")
        return Corpus([], name)
    passages = _Passages(path, report)
    try:
        digest = file_digest(path)
    except OSError:  # reading the rows says why
        return Corpus(list(passages), name)
    key = f"{digest[:32]}{path.suffix.replace('.', '-')}"
    if (kept := find_corpus(key, name)) is not None:
        return kept
    rows = iter(passages)
    first = list(islice(rows, IN_MEMORY + 1))
    if len(first) <= IN_MEMORY:
        return Corpus(first, name)

    def sound() -> bool:
        return not passages.problems and file_digest(path) == digest

    return keep_corpus(key, chain(first, rows), name, sound)


class _Passages:
    """The passages of a file that are sound and whose id is new; how many problems the others had."""

    def __init__(self, path: Path, report: OnProblem) -> None:
        self.problems = 0
        self._path, self._report = path, report

    def __iter__(self) -> Iterator[Passage]:
        ids: dict[str, str] = {}
        for row in read_rows(self._path, self._tell):
            entry = parse(PassageRow, row, self._tell)
            if entry and is_new(entry.id, row, ids, self._tell):
                yield Passage(entry.id, entry.title, entry.text)
        if not ids:
            self._tell(f"{self._path}: no passages in it; add rows with the fields id, title and text")

    def _tell(self, problem: str) -> None:
        self.problems += 1
        self._report(problem)
