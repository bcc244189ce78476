"""The passages of a data set that is being imported: what paragraphs become, on disk, for a corpus of any size."""

import hashlib
import html
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.text import sentences
from hoptimizer.retrieval.passage import Passage

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -65536;
CREATE TABLE passages (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE paragraphs (hash BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, passages INTEGER NOT NULL) WITHOUT ROWID;
"""
_BY_TITLE = "CREATE INDEX IF NOT EXISTS by_title ON passages (folded(title))"


Chunker = Callable[[str], list[str]]
"""Divides a text into the texts of passages, in order and without overlap."""


class Pool(Protocol):
    """What a published item hands its paragraphs to."""

    def __call__(self, title: str, text: str) -> str | None:
        """Take a paragraph into the corpus and give its id; ``None`` where it has no text."""

    def titled(self, title: str) -> list[Passage]:
        """The passages of a page, by its title in any case."""


class PassagePool:
    """The paragraphs of all questions, and what else is to be searched: each distinct title and text once.

    They lie in a database that the system removes; ``TMPDIR`` says where.

    Args:
        chunk: divides a text into those of passages; by default each paragraph is one passage.

    Example:
        >>> from hoptimizer.eval.datasets.pool import PassagePool
        >>> pool = PassagePool()
        >>> pool("Rhine", "The Rhine flows through Basel.") == pool("Rhine", "The  Rhine flows through Basel.")
        True
        >>> [passage.title for passage in pool]
        ['Rhine']
    """

    def __init__(self, chunk: Chunker | None = None) -> None:
        self._chunk = chunk
        self._size = 0
        self._database = sqlite3.connect("")  # a file of its own, without a name
        self._database.create_function("folded", 1, str.casefold, deterministic=True)
        self._database.executescript(_TABLES)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Passage]:
        rows = self._database.execute("SELECT id, title, text FROM passages ORDER BY number")
        return (Passage(*row) for row in rows)

    def __call__(self, title: str, text: str) -> str | None:
        """As :meth:`add`."""
        return self.add(title, text)

    def add(self, title: str, text: str, id: str | None = None) -> str | None:
        """Take a paragraph in and give its id; ``None`` where it has no text.

        Args:
            title: of the paragraph; the same title with another text is another paragraph.
            text: white space is made single and HTML entities are resolved, as in the title.
            id: its id, unless the paragraph is there already; by default made of the title and a hash.

        Raises:
            UserError: ``id`` is another paragraph's, or the disk is full.
        """
        title, text = plain(title), plain(text)
        if not text:
            return None
        hashed = hashlib.blake2b(f"{title}\n{text}".encode(), digest_size=16).digest()
        try:
            known = self._database.execute("SELECT id FROM paragraphs WHERE hash = ?", [hashed]).fetchone()
            return str(known[0]) if known else self._insert(hashed, id or self._free_id(title, text), title, text)
        except sqlite3.OperationalError as error:
            raise UserError(f"passages cannot be kept ({error}); make room, or set TMPDIR to another folder") from error

    def _insert(self, hashed: bytes, id: str, title: str, text: str) -> str:
        texts = [chunk for chunk in self._chunk(text) if chunk] if self._chunk else [text]
        ids = [id] if len(texts) == 1 else [f"{id}#{number}" for number in range(1, len(texts) + 1)]
        taken = "INSERT OR IGNORE INTO paragraphs VALUES (?, ?, ?)"
        if not self._database.execute(taken, [hashed, id, len(texts)]).rowcount:
            raise UserError(f"passage id {id!r} stands for two different texts; make ids unique")
        for one, chunk in zip(ids, texts, strict=True):
            added = "INSERT OR IGNORE INTO passages (id, title, text) VALUES (?, ?, ?)"
            if not self._database.execute(added, [one, title, chunk]).rowcount:
                raise UserError(f"passage id {one!r} stands for two different texts; make ids unique")
        self._size += len(texts)
        return id

    def _free_id(self, title: str, text: str) -> str:
        id = passage_id(title, text)
        taken = self._database.execute("SELECT 1 FROM paragraphs WHERE id = ?", [id]).fetchone()
        return passage_id(title, text, 32) if taken else id  # a short hash is not enough for millions without titles

    def titled(self, title: str) -> list[Passage]:
        """The passages of a page, in order.

        Args:
            title: of the page, in any case.
        """
        self._database.execute(_BY_TITLE)
        query = "SELECT id, title, text FROM passages WHERE folded(title) = ? ORDER BY number"
        return [Passage(*row) for row in self._database.execute(query, [plain(title).casefold()])]

    def parts(self, id: str) -> list[Passage]:
        """The passages that a paragraph has become: one, unless it was divided.

        Args:
            id: of the paragraph, as :meth:`add` gives it, or of a passage.
        """
        found = self._database.execute("SELECT passages FROM paragraphs WHERE id = ?", [id]).fetchone()
        count = found[0] if found else 1
        ids = [id] if count == 1 else [f"{id}#{number}" for number in range(1, count + 1)]
        query = "SELECT id, title, text FROM passages WHERE id = ?"
        return [Passage(*row) for one in ids for row in self._database.execute(query, [one])]

    def close(self) -> None:
        """Remove the database."""
        self._database.close()


def plain(text: str) -> str:
    """A text with single spaces and without HTML entities, which HotpotQA's titles carry."""
    return " ".join(html.unescape(text).split())


def passage_id(title: str, text: str, digits: int = 8) -> str:
    """A readable id that depends on nothing but the passage: words of the title and a hash."""
    slug = unicodedata.normalize("NFKD", title).casefold()
    slug = "".join(character for character in slug if not unicodedata.combining(character))
    slug = re.sub(r"[\W_]+", "-", slug).strip("-")[:48].rstrip("-")
    return f"{slug or 'passage'}-{hashlib.sha256((title + chr(10) + text).encode()).hexdigest()[:digits]}"


def make_chunker(text: str) -> Chunker:
    """What divides texts as a line says.

    Args:
        text: ``words:100`` (as DPR divides Wikipedia; Karpukhin et al., 2020, section 4.1), ``sentences:3``, or
            ``tokens:128`` of the embedded checkpoint's tokenizer; ``tokens:128:CHECKPOINT`` takes another one's.

    Raises:
        UserError: it is written otherwise, or the checkpoint has no tokenizer that can be used.

    Example:
        >>> from hoptimizer.eval.datasets.pool import make_chunker
        >>> make_chunker("words:2")("one two three")
        ['one two', 'three']
    """
    unit, _, rest = text.partition(":")
    size, _, checkpoint = rest.partition(":")
    if unit not in (*_UNITS, "tokens"):
        hint = nearest(unit, [*_UNITS, "tokens"])
        raise UserError(f"--chunk {text!r}: expected UNIT:SIZE, such as words:100; {hint}")
    if not (size.isascii() and size.isdigit() and int(size)) or (checkpoint and unit != "tokens"):
        raise UserError(f"--chunk {text!r}: expected a whole number after {unit!r}, such as {unit}:100")
    if unit == "tokens":
        return _by_tokens(int(size), checkpoint or "minilm")
    return partial(_UNITS[unit], int(size))


def _by_words(size: int, text: str) -> list[str]:
    return [" ".join(part) for part in _parts(text.split(), size)]


def _by_sentences(size: int, text: str) -> list[str]:
    return [" ".join(part) for part in _parts(sentences(text), size)]


def _parts(units: list[str], size: int) -> list[list[str]]:
    return [units[start : start + size] for start in range(0, len(units), size)]


_UNITS: dict[str, Callable[[int, str], list[str]]] = {
    "words": _by_words,
    "sentences": _by_sentences,
}


def _by_tokens(size: int, checkpoint: str) -> Chunker:
    from transformers import AutoTokenizer  # imported here: seconds that other chunks do not need

    from hoptimizer.retrieval.encoders.model_files import SAFE_FILES, local_folder

    base = "all-minilm-l6-v2" if checkpoint == "minilm" else checkpoint
    folder = local_folder(base, "--chunk", "minilm", allow=SAFE_FILES)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"--chunk: {checkpoint!r} has no tokenizer that can be read ({error}); take another") from error
    if not tokenizer.is_fast:
        raise UserError(f"--chunk: the tokenizer of {checkpoint!r} does not say where tokens stand; take another")

    def chunk(text: str) -> list[str]:
        places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        starts = [start for start, _ in places["offset_mapping"]]
        # A word stays whole: where it would be cut, it goes to the next chunk, unless it is longer than one.
        cuts, first = [0], 0
        while first + size < len(starts):
            last = first + size
            while last > first and " " not in text[starts[last] - 1 : starts[last] + 1]:
                last -= 1
            first = last if last > first else first + size
            cuts.append(starts[first])
        return [text[start:end].strip() for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]

    return chunk
