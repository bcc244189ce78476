"""The passages of a data set that is being imported: what paragraphs become, on disk, for a corpus of any size."""

import hashlib
import re
import sqlite3
import unicodedata
from collections.abc import Iterator
from typing import Protocol

from hoptimizer.common.errors import UserError
from hoptimizer.eval.chunking import Chunker
from hoptimizer.retrieval.passage import Passage

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -65536;
CREATE TABLE passages (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE paragraphs (hash BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, passages INTEGER NOT NULL) WITHOUT ROWID;
"""
_BY_TITLE = "CREATE INDEX IF NOT EXISTS by_title ON passages (folded(title))"


class Pool(Protocol):
    """What a published item hands its paragraphs to."""

    def __call__(self, title: str, text: str) -> str | None:
        """Take a paragraph into the corpus and give its id; ``None`` where it has no text."""

    def titled(self, title: str) -> list[Passage]:
        """The passages of a page, by its title in any case."""

    def paragraphs(self, title: str) -> dict[str, str]:
        """The texts of a page's paragraphs by their ids, by its title in any case."""


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
            text: white space is made single, as in the title.
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

    def paragraphs(self, title: str) -> dict[str, str]:
        """The texts of a page's paragraphs by their ids, in order, each divided or not.

        Args:
            title: of the page, in any case.
        """
        texts: dict[str, str] = {}
        for passage in self.titled(title):
            whole = self._database.execute("SELECT 1 FROM paragraphs WHERE id = ?", [passage.id]).fetchone()
            id = passage.id if whole else passage.id.rpartition("#")[0]
            texts[id] = f"{texts.get(id, '')} {passage.text}".strip()
        return texts

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
    """A text with single spaces."""
    return " ".join(text.split())


def passage_id(title: str, text: str, digits: int = 8) -> str:
    """A readable id that depends on nothing but the passage: words of the title and a hash."""
    slug = unicodedata.normalize("NFKD", title).casefold()
    slug = "".join(character for character in slug if not unicodedata.combining(character))
    slug = re.sub(r"[\W_]+", "-", slug).strip("-")[:48].rstrip("-")
    return f"{slug or 'passage'}-{hashlib.sha256((title + chr(10) + text).encode()).hexdigest()[:digits]}"
