"""PostgreSQL's full-text search."""

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.engines.engine import EngineRetriever, NoAnswer
from hoptimizer.retrieval.engines.settings import PostgresSettings
from hoptimizer.retrieval.passage import Corpus, Passage

try:
    import psycopg
    from psycopg import sql
    from psycopg.rows import dict_row
except ImportError as error:
    raise UserError("retriever.name=postgres: psycopg is missing; pip install 'hoptimizer[postgres]'") from error

# A passage is found by any of the words, not by all of them, as questions have more words than passages share.
_SEARCH = """
SELECT {id}::text AS {id}, {title} AS {title}, {text} AS {text}, ts_rank_cd(document, query) AS " score"
FROM {table},
  LATERAL (SELECT to_tsvector(%(language)s::regconfig, coalesce({title}, '') || ' ' || {text}) AS document) AS d,
  (SELECT replace(plainto_tsquery(%(language)s::regconfig, %(words)s)::text, ' & ', ' | ')::tsquery AS query) AS q
WHERE document @@ query
ORDER BY " score" DESC, {id}
LIMIT %(k)s
"""
_TABLE = "CREATE TABLE {table} ({id} text PRIMARY KEY, {title} text NOT NULL, {text} text NOT NULL)"
_STORE = """
INSERT INTO {table} AS kept ({id}, {title}, {text}) VALUES (%s, %s, %s)
ON CONFLICT ({id}) DO UPDATE SET {title} = excluded.{title}, {text} = excluded.{text}
WHERE (kept.{title}, kept.{text}) IS DISTINCT FROM (excluded.{title}, excluded.{text})
"""
# The server itself ends a search that takes too long; one that says nothing any more is left this much later.
_GRACE = 1.0  # seconds
_AWAY = (psycopg.errors.AdminShutdown, psycopg.errors.CannotConnectNow, psycopg.errors.TooManyConnections)


class PostgresRetriever(EngineRetriever):
    """Searches a table by the words of a query.

    Args:
        settings: which table.
        corpus: a found passage whose id it has is given as that passage.
    """

    name = "postgres"

    def __init__(self, settings: PostgresSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._settings = settings
        self._connection: psycopg.Connection[dict[str, Any]] | None = None
        self._lock = threading.Lock()
        self._table = sql.Identifier(*settings.table.split("."))

    def _statement(self, text: LiteralString) -> "sql.Composed":
        """A statement with the names of the table and its columns."""
        fields = ("id", "title", "text")
        names = {field: sql.Identifier(name) for field, name in zip(fields, self._fields, strict=True)}
        return sql.SQL(text).format(table=self._table, **names)

    def ask(self, queries: Sequence[str], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        found: list[list[tuple[Mapping[str, Any], float]]] = []
        with self._answering() as connection:
            for query in queries:
                words = {"language": self._settings.language, "words": query.replace("\0", " "), "k": k}
                with _ended_after(self._settings.timeout + _GRACE, connection):
                    rows = connection.execute(self._statement(_SEARCH), words).fetchall()
                found.append([(row, float(row[" score"])) for row in rows])
        return found

    def push(self, passages: Sequence[Passage]) -> int:
        rows = [(one.id, one.title, one.text) for one in passages]
        with (
            self._answering() as connection,
            _ended_after(self._settings.timeout + _GRACE, connection),
            connection.transaction(),
            connection.cursor() as cursor,
        ):
            cursor.execute("SET TRANSACTION READ WRITE")
            cursor.execute("SELECT to_regclass(%s) AS found", (self._table.as_string(connection),))
            if cursor.fetchall() == [{"found": None}]:
                cursor.execute(self._statement(_TABLE))
            cursor.executemany(self._statement(_STORE), rows)
            return cursor.rowcount

    @contextmanager
    def _answering(self) -> Iterator["psycopg.Connection[dict[str, Any]]"]:
        """The connection; within it, the driver's errors are those of engines."""
        with self._lock:
            try:
                yield self._connected()
            except psycopg.errors.QueryCanceled as error:
                raise NoAnswer(f"not within {self._settings.timeout:g} s") from error
            except psycopg.Error as error:
                lost, self._connection = self._connection, None
                if lost is not None and (lost.closed or lost.broken):
                    raise NoAnswer(str(error)) from error
                if isinstance(error, _AWAY) or (lost is None and _is_no_refusal(error)):
                    raise NoAnswer(str(error)) from error
                raise self.refused(str(error)) from error

    def _connected(self) -> "psycopg.Connection[dict[str, Any]]":
        if self._connection is None:
            timeout = self._settings.timeout
            self._connection = psycopg.connect(
                self._settings.url,
                autocommit=True,
                row_factory=dict_row,
                connect_timeout=max(2, int(timeout)),
                options=f"-c statement_timeout={int(timeout * 1000)} -c default_transaction_read_only=on",
            )
        return self._connection


def _is_no_refusal(error: psycopg.Error) -> bool:
    """Whether a connection failed for a reason that may pass: the server is not there, or says that it is starting."""
    text = str(error)
    return "FATAL" not in text or "starting up" in text or "shutting down" in text


@contextmanager
def _ended_after(seconds: float, connection: "psycopg.Connection[dict[str, Any]]") -> Iterator[None]:
    """Within it, a connection is cut after a time, as the driver waits for a server without end."""

    def cut() -> None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
