"""From a published data set's files to a data set's folder."""

import hashlib
import html
import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoptimizer.common.errors import UserError, unknown
from hoptimizer.common.paths import expanded, free_folder
from hoptimizer.common.plugins import Registry, subclass_of
from hoptimizer.eval.datasets.folder import SPLITS, write_folder
from hoptimizer.eval.datasets.published_formats import (
    FORMATS,
    Aliases,
    Decomposition,
    Published,
    WikiItem,
    with_aliases,
)
from hoptimizer.eval.datasets.question import AnyText, Question, Record, Text
from hoptimizer.eval.datasets.rows import DataRow, own_file, read_rows, require
from hoptimizer.retrieval.passage import Passage

IMPORTERS: Registry[type[Published]] = Registry(
    "published format",
    "hoptimizer.importers",
    FORMATS,
    subclass_of(Published),
    "a subclass of hoptimizer.eval.datasets.published_formats.Published",
)
"""The formats that can be imported: ours, entry points of ``hoptimizer.importers``, and dotted paths."""

ALIASES_FILE = "id_aliases.json"
"""The published file of 2WikiMultihopQA's answer aliases, which is read where it lies beside the questions."""

DEFAULT_SIZES: Mapping[str, float] = {"train": 0.8, "dev": 0.1, "test": 0.1}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        folder: the data set's folder.
        splits: questions by split.
        passages: passages of the corpus.
        unanswerable: items left out because the published file marks them as having no answer.
        decomposed: questions with hops.
    """

    folder: Path
    splits: dict[str, int]
    passages: int
    unanswerable: int
    decomposed: int


class ExtraPassage(Record):
    """A row of an extra corpus file."""

    id: Text | None = None
    title: AnyText = ""
    text: Text


class PassagePool:
    """The pooled paragraphs of all questions, each distinct title and text once."""

    def __init__(self) -> None:
        self.passages: dict[str, Passage] = {}
        self._ids: dict[tuple[str, str], str] = {}

    def add(self, title: str, text: str, id: str | None = None) -> str | None:
        """Take a paragraph in and give its id; ``None`` where it has no text.

        Args:
            title: of the paragraph; the same title with another text is another passage.
            text: white space is made single and HTML entities are resolved, as in the title.
            id: its id, unless the paragraph is there already; by default made of the title and a hash.

        Raises:
            UserError: ``id`` is another paragraph's.
        """
        # HotpotQA's titles carry HTML entities.
        title, text = (" ".join(html.unescape(words).split()) for words in (title, text))
        if not text:
            return None
        if (title, text) not in self._ids:
            id = id or passage_id(title, text)
            if id in self.passages:
                raise UserError(f"passage id {id!r} stands for two different texts; make ids unique")
            self._ids[title, text] = id
            self.passages[id] = Passage(id, title, text)
        return self._ids[title, text]


def passage_id(title: str, text: str) -> str:
    """A readable id that depends on nothing but the passage: words of the title and a short hash."""
    plain = unicodedata.normalize("NFKD", title).casefold()
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    slug = re.sub(r"[\W_]+", "-", plain).strip("-")[:48].rstrip("-")
    return f"{slug or 'passage'}-{hashlib.sha256((title + chr(10) + text).encode()).hexdigest()[:8]}"


def parse_sizes(text: str) -> dict[str, float]:
    """Sizes of the splits from a line such as ``train=0.8,dev=0.2`` or ``train=400,dev=60,test=40``.

    Raises:
        UserError: it is written otherwise; numbers are judged when they are used.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(size) for name, size in pairs}
    except ValueError:
        raise UserError(f"split {text!r} is not understood; write it as train=0.8,dev=0.1,test=0.1") from None


def import_published(
    name: str,
    paths: Path | Mapping[str, Path],
    out: Path,
    *,
    corpus: Path | None = None,
    decompositions: Sequence[Path] = (),
    sizes: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Imported:
    """Make a data set's folder from files in a published format. The corpus is the questions' pooled contexts.

    Formats without contexts make a folder without a corpus, for programs that don't search. The answers of
    2WikiMultihopQA get their aliases from the published file ``id_aliases.json``, if it lies beside the questions.

    Args:
        name: of the format, one of :data:`IMPORTERS`.
        paths: one file, to be divided at random, or one file a split (keys ``train``, ``dev``, ``test``).
        out: the folder to make.
        corpus: more passages to search among: JSON or JSON lines, CSV or parquet with ``title``, ``text`` and
            perhaps ``id``.
        decompositions: files of 2WikiMultihopQA's decompositions, for hops and rationales.
        sizes: of the splits when there is one file: shares (up to 1 each, up to 1 together) or numbers of
            questions; 80, 10 and 10 percent by default.
        seed: of the division.

    Raises:
        UserError: an unknown format, a missing or malformed file (the item and field are named), sizes that don't
            fit, or an ``out`` that isn't free.
    """
    item = IMPORTERS.get(name, "hop data import")
    if decompositions and name != "2wikimultihopqa":
        raise UserError(f"decompositions are published beside 2wikimultihopqa, not {name}; leave them out")
    if sizes and not isinstance(paths, Path):
        raise UserError("split sizes divide one file, but there is one a split already; leave the sizes out")
    out = free_folder(out)
    pool = PassagePool()
    if corpus:
        _pool_extra(expanded(corpus), pool)
    paths = expanded(paths) if isinstance(paths, Path) else {split: expanded(path) for split, path in paths.items()}
    files = [paths] if isinstance(paths, Path) else list(paths.values())
    aliases = _read_aliases(files) if issubclass(item, WikiItem) else {}
    reader = _Reader(item, pool, _read_decompositions([expanded(path) for path in decompositions]), aliases)
    if isinstance(paths, Path):
        questions = reader.read(paths)
        splits = divide(questions, sizes or DEFAULT_SIZES, seed)
    else:
        if strange := set(paths) - set(SPLITS):
            raise unknown("split", strange.pop(), SPLITS)
        splits = {split: reader.read(paths[split]) for split in SPLITS if split in paths}
    write_folder(out, pool.passages.values(), splits)
    return Imported(
        folder=out,
        splits={split: len(questions) for split, questions in splits.items()},
        passages=len(pool.passages),
        unanswerable=reader.unanswerable,
        decomposed=sum(bool(question.hops) for questions in splits.values() for question in questions),
    )


class _Reader:
    """Reads files of one format, and sees to it that ids are unique across them."""

    def __init__(
        self,
        item: type[Published],
        pool: PassagePool,
        chains: Mapping[str, Decomposition],
        aliases: Mapping[str, list[str]],
    ) -> None:
        self._item = item
        self._pool = pool
        self._chains = chains
        self._aliases = aliases
        self._places: dict[str, str] = {}
        self.unanswerable = 0

    def read(self, path: Path) -> list[Question]:
        questions = []
        for number, row in enumerate(read_rows(path), 1):
            id = row.fields.get("_id") or row.fields.get("id") or row.fields.get("qid")
            place = f"{path}, item {number}" + (f" ({id})" if id else "")
            item = require(self._item, DataRow(place, row.fields))
            question = item.convert(self._pool.add, self._chains.get(str(id)))
            if question is None:
                self.unanswerable += 1
                continue
            if first := self._places.get(question.id):
                raise UserError(f"{place}: the same id stands at {first} already; remove one of the items")
            self._places[question.id] = place
            if isinstance(item, WikiItem) and (aliases := self._aliases.get(item.answer_id or "")):
                question = question.model_copy(update={"answers": with_aliases(question.answers, aliases)})
            questions.append(question)
        if not questions:
            raise UserError(f"{path}: no questions with an answer in it; give another file")
        return questions


def divide(questions: Sequence[Question], sizes: Mapping[str, float], seed: int) -> dict[str, list[Question]]:
    """Questions drawn at random into splits; those that the sizes leave over are dropped.

    Args:
        questions: all of them.
        sizes: by split, all shares (at most 1, together at most 1) or all numbers of questions.
        seed: of the draw.

    Raises:
        UserError: an unknown split, or sizes that can't be had.
    """
    if strange := set(sizes) - set(SPLITS):
        raise unknown("split", strange.pop(), SPLITS)
    total = sum(sizes.values())
    shares = all(0 < size <= 1 for size in sizes.values())
    if not shares and not all(size >= 1 and size % 1 == 0 for size in sizes.values()):
        raise UserError(f"split sizes {_written(sizes)} must all be shares up to 1 or all be numbers of questions")
    if total > (1 + 1e-9 if shares else len(questions)):
        raise UserError(
            f"split sizes {_written(sizes)} take more than the {len(questions)} questions there are; lower them"
        )
    drawn = random.Random(seed).sample(list(questions), len(questions))
    splits: dict[str, list[Question]] = {}
    start, bound = 0, 0.0
    for split in (name for name in SPLITS if name in sizes):
        bound += sizes[split] * len(questions) if shares else sizes[split]
        splits[split] = drawn[start : round(bound)]  # rounding the bounds, so that shares of 1 leave nobody out
        start = round(bound)
        if not splits[split]:
            raise UserError(
                f"split sizes {_written(sizes)} leave {split!r} of {len(questions)} questions empty; raise it"
            )
    return splits


def _written(sizes: Mapping[str, float]) -> str:
    return ",".join(f"{name}={size:g}" for name, size in sizes.items())


def _pool_extra(path: Path, pool: PassagePool) -> None:
    before = len(pool.passages)
    for row in read_rows(path):
        extra = require(ExtraPassage, row)
        try:
            pool.add(extra.title, extra.text, extra.id)
        except UserError as error:
            raise UserError(f"{row.place}: {error}") from None
    if len(pool.passages) == before:
        raise UserError(f"{path}: no passages in it; give a file of passages with title and text")


def _read_decompositions(paths: Sequence[Path]) -> dict[str, Decomposition]:
    entries = (require(Decomposition, row) for path in paths for row in read_rows(path))
    return {entry.id: entry for entry in entries}


def _read_aliases(files: Sequence[Path]) -> dict[str, list[str]]:
    """The other names of each entity, from the published file beside those of the questions, in their folders."""
    beside = dict.fromkeys(file.parent / ALIASES_FILE for file in files)
    entries = (require(Aliases, row) for path in beside if path.exists() and own_file(path) for row in read_rows(path))
    return {entry.id: entry.names for entry in entries}
