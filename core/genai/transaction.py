"""Many traces in one commit: MLflow makes one for each, which takes a disk longer than all else of a trace."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Protocol

from mlflow.entities import Span, TraceInfo
from mlflow.store.db.db_types import SQLITE
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracing.client import TracingClient
from sqlalchemy.orm import Session, sessionmaker

_WAIT = 20_000  # milliseconds for another process that writes, as MLflow waits


class TraceWriter(Protocol):
    """What writes traces: MLflow's client of a store, or the store."""

    def start_trace(self, trace_info: TraceInfo) -> TraceInfo:
        """Write a trace, but not its spans."""

    def log_spans(self, location: str, spans: list[Span]) -> list[Span]:
        """Write spans of traces of an experiment."""


@contextlib.contextmanager
def one_transaction(client: TracingClient) -> Iterator[TraceWriter]:
    """What is written to a SQLite store within it becomes one commit, all of it or none; other stores are as ever.

    MLflow's store takes its sessions from ``ManagedSessionMaker``. A copy of the store gets another one, whose sessions
    join a transaction that is already open, each as a savepoint of it (SQLAlchemy's manual, "Joining a Session into an
    External Transaction"): where MLflow rolls a session back, because a trace is there already, the others stay.

    Args:
        client: of the store.

    Raises:
        SQLAlchemyError: the store can't be written to.
    """
    store = client.store
    if not isinstance(store, SqlAlchemyStore) or store.db_type != SQLITE:
        yield client
        return
    with store.engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {_WAIT}")
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")  # within a transaction it would do nothing
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # Python's driver begins none for a savepoint
        sessions = sessionmaker(bind=connection, join_transaction_mode="create_savepoint")

        @contextlib.contextmanager
        def managed_session(read_only: bool = True) -> Iterator[Session]:
            with sessions() as session:
                yield session
                session.commit()

        joined = copy.copy(store)
        joined.ManagedSessionMaker = managed_session
        yield joined
        connection.commit()
