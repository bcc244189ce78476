"""The folder of what hoptimizer downloads and computes, the paths that users give, and writing files whole."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from hoptimizer.common.errors import UserError

# Seconds after which it is said that a lock is waited for.
_SOON = 3.0
_log = logging.getLogger(__name__)


def home() -> Path:
    """Folder of weights, indexes and caches: ``$HOPTIMIZER_HOME``, else the user's cache folder. It is made where it is
    missing.

    Raises:
        UserError: it is a file, or can't be made.
    """
    folder = expanded(os.environ.get("HOPTIMIZER_HOME") or platformdirs.user_cache_path("hoptimizer"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise UserError(
            f"{folder}: can't be the folder of weights and caches ({error.strerror}): "
            "set HOPTIMIZER_HOME to a folder of yours"
        ) from error
    return folder


def expanded(path: str | Path) -> Path:
    """A path that a user gave, the home folder in place of its ``~``. Whether something is there can be asked of it.

    Args:
        path: of a file or a folder, there or not.

    Raises:
        UserError: it can't be a path here: a name in it is too long, or nobody is called so after the ``~``.

    Example:
        >>> from hoptimizer.common.paths import expanded
        >>> expanded("x" * 300)
        Traceback (most recent call last):
        hoptimizer.common.errors.UserError: xxx...: no path (File name too long); correct it
    """
    try:
        found = Path(path).expanduser()
        found.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: of ~, ValueError: of NUL
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: no path ({reason}); correct it") from error
    return found


def free_folder(out: Path) -> Path:
    """The folder ``out``, if nothing there could be lost.

    Raises:
        UserError: it is a file, or a folder with something in it, or is not named.
    """
    out = expanded(out)
    if not out.name:
        raise UserError(f"{out}: expected the name of a folder to make, such as {out / 'made'}")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: exists already; choose another folder or remove this one first")
    return out


def is_within(folder: Path, name: str | Path) -> bool:
    """Whether a name that a file gives, or a path, leads to a place within a folder, links followed.

    Args:
        folder: the folder.
        name: a path, relative to the folder unless it is absolute.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.common.paths import is_within
        >>> [is_within(Path("model"), name) for name in ("part-1.safetensors", "../secret", "/etc/passwd")]
        [True, False, False]
    """
    root = folder.resolve()
    try:
        return (root / name).resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):  # links in a circle, a zero byte
        return False


def check_links(folder: Path, root: Path | None = None) -> None:
    """Make sure that no link in a folder leads out of it.

    Args:
        folder: the folder, which may be anybody's.
        root: the folder that links may not lead out of, where that is a larger one.

    Raises:
        UserError: one does.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not is_within(root or folder, path.absolute()):
            raise UserError(f"{path}: a link that leads out of {root or folder}; put the file itself there")


@contextlib.contextmanager
def locked(file: Path, work: str) -> Iterator[None]:
    """Within it, no other process is; that one is waited for is said, where it takes longer than a moment.

    Args:
        file: the lock.
        work: what is done within it, for that line.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.common.paths import locked
        >>> with locked(Path("atlas.lock"), "the index of atlas"):
        ...     Path("atlas.lock").exists()
        True
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=_SOON)
    except Timeout:
        _log.warning("another process is at work on %s: waiting for it", work)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """An empty folder beside another, in which that one is made, to take its name in one step.

    What a process that was killed left there goes first, so whoever makes the folder has to hold a lock on it.

    Args:
        folder: the folder that is to be made.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hoptimizer.common.paths import draft_of
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with draft_of(Path(place) / "index") as draft:
        ...         _ = draft.joinpath("words").write_text("cat")
        ...         _ = draft.replace(Path(place) / "index")
        ...     [path.name for path in Path(place).rglob("*")]
        ['index', 'words']
    """
    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_whole(file: Path, text: str) -> None:
    """Write a text file in one step: a process that is killed meanwhile leaves the file as it was."""
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(text.encode())  # as bytes, so that no platform changes the line ends
    draft.replace(file)
