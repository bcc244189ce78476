"""The disk below DSPy's cache: damaged parts are set aside, and what can't be kept is said."""

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def set_damaged_aside(folder: Path) -> None:
    """Rename the parts of a cache that SQLite can't read, so that new ones take their places.

    Args:
        folder: a cache of the ``diskcache`` package, whose parts are folders with a ``cache.db`` each.
    """
    for database in sorted(folder.glob("*/cache.db")):
        part = database.parent
        if part.suffix != ".damaged" and not _is_whole(database):
            aside = part.with_name(f"{part.name}-{database.stat().st_mtime_ns}.damaged")
            part.rename(aside)
            _log.warning(
                "%s: a part of the cached answers is damaged; it is now %s, and a new one is begun", folder, aside.name
            )


def _is_whole(database: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError:
        return False


class CarefulDisk:
    """A disk cache that is no reason to stop: what it can't read it does not have, and what it can't keep is said once.

    Args:
        disk: a cache of the ``diskcache`` package.
        folder: where it is.
    """

    def __init__(self, disk: Any, folder: Path) -> None:  # noqa: ANN401 - of a package without types
        self._disk, self._folder, self._told = disk, folder, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of a package without types
        return getattr(self._disk, name)

    def __contains__(self, key: str) -> bool:
        return key in self._disk

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever was kept
        """What is kept under a key."""
        try:
            return self._disk.get(key, default)
        except sqlite3.DatabaseError as error:
            self._tell("read", error)
            return default

    def set(self, key: str, value: Any) -> bool:  # noqa: ANN401 - whatever is kept
        """Keep a value; false where that failed."""
        try:
            return bool(self._disk.set(key, value))
        except (sqlite3.DatabaseError, OSError) as error:
            self._tell("kept", error)
            return False

    def _tell(self, done: str, error: Exception) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "%s: answers can't be %s (%s): they will be asked for, and paid for, again", self._folder, done, error
            )
