"""A corpus on disk: written once in Arrow's format, memory-mapped from then on."""

import bisect
import hashlib
import logging
import operator
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, overload

from pydantic import ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import draft_of, home, locked
from hoptimizer.retrieval.index_folder import BrokenIndexError, FileDigests, file_digests
from hoptimizer.retrieval.passage import Corpus, Passage, digested

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Passages that are written, and mapped, as one batch.
_ROWS = 4096
_VERSION = 1
_MANIFEST, _PASSAGES, _ORDER = "manifest.json", "passages.arrow", "order.npy"
_COLUMNS = ["id", "title", "text"]
_log = logging.getLogger(__name__)


class _Manifest(FileDigests):
    """What a folder holds: the number of its passages, the digest of the corpus, and its files."""

    version: int
    passages: int
    digest: str


class StoredCorpus(Corpus):
    """A corpus whose passages stay on disk; it is used like one in memory.

    An id is found by bisection of the places of all passages in the order of their ids, which lie on disk, too.

    Args:
        folder: written by :func:`write_corpus`.
        name: what messages call the corpus.
        held: an object that lives as long as the corpus.

    Raises:
        BrokenIndexError: a file there is missing, cut off or changed.

    Attributes:
        passages: the passages; each is read when it is asked for.
        name: as given.
    """

    def __init__(self, folder: Path, name: str = "corpus", held: object = None) -> None:
        manifest = _read_manifest(folder)
        manifest.check(folder)
        passages = _MappedPassages(folder / _PASSAGES)
        if len(passages) != manifest.passages:
            raise BrokenIndexError(f"{_PASSAGES} holds other passages than {_MANIFEST} says")
        super().__init__(passages, name)
        self._mapped, self._order = passages, _read_order(folder / _ORDER, len(passages))
        self._digest, self._held = manifest.digest, held

    def __getitem__(self, id: str) -> Passage:
        place = self._place(id)
        if place is None:
            raise KeyError(id)
        return self._mapped[place]

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._place(id) is not None

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every id, title and text in order, as of the same corpus in memory."""
        return self._digest

    def _place(self, id: str) -> int | None:
        at = bisect.bisect_left(self._order, id, key=self._mapped.id)  # UTF-8 sorts like its code points
        if at == len(self._order) or self._mapped.id(self._order[at]) != id:
            return None
        return int(self._order[at])


class _MappedPassages(Sequence[Passage]):
    """The passages of an Arrow file, whose batches all have ``_ROWS`` rows but the last."""

    def __init__(self, file: Path) -> None:
        import pyarrow as pa  # imported here, as below: a fraction of a second that small corpora do not need

        try:
            reader = pa.ipc.open_file(pa.memory_map(str(file)))
            if reader.schema != pa.schema([(name, pa.string()) for name in _COLUMNS]):
                raise BrokenIndexError(f"{file.name} holds no passages")
            self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        except pa.ArrowException as error:
            raise BrokenIndexError(f"{file.name} is no Arrow file") from error
        if any(len(batch) != _ROWS for batch in self._batches[:-1]):
            raise BrokenIndexError(f"{file.name} holds batches of another size")
        self._count = sum(map(len, self._batches))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Passage]:
        for batch in self._batches:
            yield from map(Passage, *(column.to_pylist() for column in batch.columns))

    @overload
    def __getitem__(self, place: int) -> Passage: ...
    @overload
    def __getitem__(self, place: slice) -> list[Passage]: ...
    def __getitem__(self, place: int | slice) -> Passage | list[Passage]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._count))]
        batch, row = divmod(range(self._count)[operator.index(place)], _ROWS)
        return Passage(*(column[row].as_py() for column in self._batches[batch].columns))

    def id(self, place: int) -> str:
        """The id of the passage at a place."""
        batch, row = divmod(int(place), _ROWS)
        found: str = self._batches[batch].column(0)[row].as_py()
        return found


def find_corpus(key: str, name: str) -> StoredCorpus | None:
    """The corpus that was kept under a key, if it is there; that it is damaged is said in one line of the log.

    Args:
        key: a name for a file, which says what the corpus was made of.
        name: what messages call the corpus.
    """
    folder = _folder(key)
    if not folder.is_dir():
        return None
    try:
        return StoredCorpus(folder, name)
    except BrokenIndexError as error:
        _log.warning("the copy of %s in %s is not usable (%s): making it anew", name, folder, error)
        return None


def keep_corpus(
    key: str, passages: Iterable[Passage], name: str, sound: Callable[[], bool] = lambda: True
) -> StoredCorpus:
    """Write passages to disk, whole or not at all, and open them.

    Several processes may do so at once: one writes, the others wait for it.

    Args:
        key: as of :func:`find_corpus`, which finds the corpus from now on.
        passages: with unique ids; consumed once, while they are written.
        name: what messages call the corpus.
        sound: asked when all are written; where they are not, the files go when the corpus does.

    Raises:
        UserError: the cache's folder can't be written.
    """
    folder = _folder(key)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f"{key}.lock"), f"the corpus {name}"):
            with suppress(BrokenIndexError):
                return StoredCorpus(folder, name)  # another process was faster
            with draft_of(folder) as draft:
                write_corpus(draft, passages)
                if not sound():
                    passing = tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True)
                    return StoredCorpus(draft.replace(Path(passing.name) / key), name, held=passing)
                if folder.exists():
                    shutil.rmtree(folder)
                draft.replace(folder)
            return StoredCorpus(folder, name)
    except PermissionError as error:
        raise UserError(
            f"{error.filename or folder} can't be written: set HOPTIMIZER_HOME to a folder of yours"
        ) from error


def write_corpus(folder: Path, passages: Iterable[Passage]) -> None:
    """Write passages into an empty folder, a batch at a time.

    Args:
        folder: where to.
        passages: with unique ids.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    schema = pa.schema([(name, pa.string()) for name in _COLUMNS])
    sha, count, each = hashlib.sha256(), 0, iter(passages)
    with pa.OSFile(str(folder / _PASSAGES), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while rows := list(islice(each, _ROWS)):
            columns = zip(*((p.id, p.title, p.text) for p in rows), strict=True)
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))
            for passage in rows:
                sha.update(digested(passage))
            count += len(rows)
    with pa.memory_map(str(folder / _PASSAGES)) as source:
        ids = pa.ipc.open_file(source).read_all()["id"]
        np.save(folder / _ORDER, compute.sort_indices(ids).to_numpy())
        del ids  # before its file is closed
    manifest = _Manifest(version=_VERSION, passages=count, digest=sha.hexdigest(), **dict(file_digests(folder)))
    (folder / _MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _read_order(file: Path, passages: int) -> "NDArray[np.uint64]":
    """The places of passages in the order of their ids, mapped."""
    import numpy as np

    try:
        order: NDArray[np.uint64] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:  # cut off, or objects, which would be pickles
        raise BrokenIndexError(f"{file.name} holds no numbers") from error
    if order.dtype != np.uint64 or order.shape != (passages,) or order.max(initial=0) >= passages:
        raise BrokenIndexError(f"{file.name} names other passages")
    return order


def _folder(key: str) -> Path:
    return home() / "corpora" / key


def _read_manifest(folder: Path) -> _Manifest:
    try:
        manifest = _Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise BrokenIndexError(f"{_MANIFEST} is missing") from error
    except ValidationError as error:
        raise BrokenIndexError(f"{_MANIFEST} is damaged") from error
    if manifest.version != _VERSION or not {_PASSAGES, _ORDER} <= manifest.files.keys():
        raise BrokenIndexError("written by another version")
    return manifest
