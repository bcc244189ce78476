"""The disk below DSPy's cache: values without code, damaged parts set aside, and what can't be kept is said."""

import contextlib
import io
import logging
import pickle
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diskcache import DEFAULT_SETTINGS, Disk, FanoutCache
from diskcache.core import METADATA, MODE_PICKLE
from dspy.clients.disk_serialization import DeserializationError
from pydantic import BaseModel

from hoptimizer.common.paths import home, is_within

# What the answers of servers are made of, beside plain data.
_ANSWERS = ("litellm.types.", "openai.types.")
# Files of values, as diskcache names them within a part.
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
_PARTS = 16
_TIMEOUT = 10  # seconds
# Of a connection's own, 4 KiB each.
_PAGES = 16
_log = logging.getLogger(__name__)
# What keeps the answers of all work in the place of this machine's disk, if anything does.
_elsewhere: list[Any] = []


class _DataUnpickler(pickle.Unpickler):
    """Reads plain data and models of pydantic.

    DSPy's own takes any name of the modules of answers, ``json.codecs.builtins.exec`` among them.
    """

    def find_class(self, module: str, name: str) -> type[BaseModel]:
        """A class of answers.

        Raises:
            DeserializationError: it is anything else.
        """
        if module.startswith(_ANSWERS) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, BaseModel) and found.__module__ == module:
                return found
        raise DeserializationError(f"{module}.{name} is no part of an answer")


class DataDisk(Disk):
    """Values in a folder that may come from others: data alone, and in files of the folder alone."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:  # noqa: ANN401 - of a package without types
        """A value.

        Raises:
            DeserializationError: it is no plain data, or is to be read elsewhere.
        """
        if filename is not None and not self._is_own(filename):
            raise DeserializationError(f"{filename} is no file of the cache")
        if mode != MODE_PICKLE:
            return super().fetch(mode, filename, value, read)
        content = (Path(self._directory) / filename).read_bytes() if filename else value
        try:
            return _DataUnpickler(io.BytesIO(content)).load()
        except DeserializationError:
            raise
        except Exception as error:  # a pickle that is no pickle makes any
            raise DeserializationError(f"a damaged value: {error}") from error

    def remove(self, file_path: str) -> None:
        """Remove the file of a value."""
        if self._is_own(file_path):
            super().remove(file_path)

    def _is_own(self, filename: str) -> bool:
        return bool(_FILE.fullmatch(filename)) and is_within(Path(self._directory), filename)


def answers_folder() -> Path:
    """Where this machine keeps the answers of language models of all work."""
    return home() / "cache" / "answers"


def keep_elsewhere(disk: Any) -> None:  # noqa: ANN401 - whatever gets and sets values
    """From now on, keep no answer of this process' work on this machine.

    Args:
        disk: keeps them, by ``get(key)`` and ``set(key, value)``, and divides calls among processes by ``claim(call,
            patience)``, which waits, and ``release(call)``.
    """
    _elsewhere[:] = [disk]


def kept_elsewhere() -> Any:  # noqa: ANN401 - as above
    """What keeps the answers of this process' work on another machine; ``None`` where this one does."""
    return _elsewhere[0] if _elsewhere else None


def open_disk(folder: Path, limit: int) -> "CarefulDisk":
    """The disk cache in a folder; its parts that can't be read, or are no parts of a cache, are set aside.

    Args:
        folder: holds the cache, and is made where it is missing.
        limit: in bytes, what the values may take.
    """
    _set_aside(folder, _is_strange, "is no cache of answers")
    # All settings are given, or those that the database has would hold.
    options = DEFAULT_SETTINGS | {"shards": _PARTS, "timeout": _TIMEOUT, "size_limit": limit, "disk": DataDisk}
    # Every thread has a connection to every part. What each of them would keep (up to 32 MB) and map (up to 64 MB) are
    # copies of the same answers; the system caches the file once for all.
    options |= {"sqlite_cache_size": _PAGES, "sqlite_mmap_size": 0}
    try:
        disk = FanoutCache(str(folder), **options)
    except sqlite3.DatabaseError:
        _set_aside(folder, _is_damaged, "is damaged")
        disk = FanoutCache(str(folder), **options)
    return CarefulDisk(disk, folder)


def _set_aside(folder: Path, is_bad: Callable[[Path], bool], reason: str) -> None:
    """Rename the parts of a cache that are bad, so that new ones take their places."""
    for database in sorted(folder.glob("*/cache.db")):
        part = database.parent
        if part.suffix != ".damaged" and is_bad(database):
            aside = part.with_name(f"{part.name}-{database.lstat().st_mtime_ns}.damaged")
            part.rename(aside)
            said = f"a part of the cached answers {reason}; it is now {aside.name}, and a new one is begun"
            _log.warning("%s: %s", folder, said)


def _is_damaged(database: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("SELECT key, raw, mode, filename, value FROM Cache LIMIT 1")
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.DatabaseError as error:
        # Of a full disk, or a process without file descriptors, the database is not to blame.
        return not isinstance(error, sqlite3.OperationalError) or "no such" in str(error)


def _is_strange(database: Path) -> bool:
    """Whether a database lies elsewhere, or has what no cache has: views, or settings that diskcache does not know and
    would set all the same."""
    if not is_within(database.parent.parent, database.absolute()):
        return True
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(database)) as connection:
        if connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchone():
            return True
        known = {*DEFAULT_SETTINGS, *METADATA}
        return any(key not in known for (key,) in connection.execute("SELECT key FROM Settings"))
    return False  # it can't be read, or is empty; which of them, its opening tells


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
        except (sqlite3.DatabaseError, DeserializationError) as error:
            self._tell("read", error)
            return default

    def set(self, key: str, value: Any) -> bool:  # noqa: ANN401 - whatever is kept
        """Keep a value; false where that failed."""
        try:
            if self._disk.set(key, value):
                return True
            self._tell("kept", "another process holds the database")
        except (sqlite3.DatabaseError, OSError) as error:
            self._tell("kept", error)
        return False

    def _tell(self, done: str, error: Exception | str) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "%s: answers can't be %s (%s): they will be asked for, and paid for, again", self._folder, done, error
            )
