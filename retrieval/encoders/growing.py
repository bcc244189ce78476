"""Files that grow as passages are encoded, so that a build that was ended goes on from there."""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hoptimizer.common.paths import write_whole

_STATE = "kept.json"


class GrowingFiles:
    """The files of an index that is being built, and how many passages they surely hold.

    What was written after the last :meth:`keep` is cut off when they are opened again. Where they are not what was
    kept, they begin anew. Once the build is done without an error, nothing is left to go on from.

    Args:
        folder: where the files are.
        names: of the files that stay.
        passing: of those that only the build needs.

    Attributes:
        passages: how many passages the files held when they were opened.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from hoptimizer.retrieval.encoders.growing import GrowingFiles
        >>> with tempfile.TemporaryDirectory() as place:
        ...     try:
        ...         with GrowingFiles(Path(place), ["rows"]) as files:
        ...             files.append(np.arange(3))
        ...             files.keep(3)
        ...             files.append(np.arange(9))
        ...             raise KeyboardInterrupt
        ...     except KeyboardInterrupt:
        ...         pass
        ...     with GrowingFiles(Path(place), ["rows"]) as files:
        ...         files.passages, files.numbers("rows").tolist()
        (3, [0, 1, 2])
    """

    def __init__(self, folder: Path, names: Sequence[str], passing: Sequence[str] = ()) -> None:
        self._state = folder / _STATE
        self._paths = [folder / name for name in (*names, *passing)]
        self._passing = [folder / name for name in passing]
        self.passages, sizes = self._kept()
        self._stack = ExitStack()
        self._files = []
        for path, size in zip(self._paths, sizes, strict=True):
            file = self._stack.enter_context(path.open("r+b" if self.passages else "w+b"))
            file.truncate(size)
            file.seek(size)
            self._files.append(file)

    def _kept(self) -> tuple[int, list[int]]:
        """The passages that were kept, and the size of each file then."""
        anew = 0, [0] * len(self._paths)
        try:
            state: dict[str, Any] = json.loads(self._state.read_bytes())
            sizes = [state["bytes"][path.name] for path in self._paths]
            if all(path.stat().st_size >= size for path, size in zip(self._paths, sizes, strict=True)):
                return state["passages"], sizes
        except (OSError, ValueError, KeyError):  # none was kept, or by a version that wrote other files
            pass
        return anew

    def append(self, *rows: NDArray[Any]) -> None:
        """Append to each of the files its rows."""
        for file, written in zip(self._files, rows, strict=True):
            file.write(written.tobytes())

    def numbers(self, name: str) -> NDArray[np.int64]:
        """All that one of the files holds, which are numbers of 64 bits; memory-mapped."""
        self._flush()
        return np.memmap(self._state.with_name(name), dtype=np.int64, mode="r")

    def keep(self, passages: int) -> None:
        """Have what was written so far, which are so many passages, outlive the process and the machine's power."""
        self._flush()
        for file in self._files:
            os.fsync(file.fileno())
        sizes = {path.name: path.stat().st_size for path in self._paths}
        write_whole(self._state, json.dumps({"passages": passages, "bytes": sizes}))

    def _flush(self) -> None:
        for file in self._files:
            file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is None:
            for path in (self._state, *self._passing):
                path.unlink(missing_ok=True)
