"""A disk that takes no more, whichever library found that out."""

import errno
import os

from hoptimizer.common.errors import causes

# SQLite has words of its own.
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")
_UNWRITABLE = (os.strerror(errno.EROFS), "attempt to write a readonly database")


def disk_failure(error: BaseException) -> str | None:
    """What a user is told where the disk is the reason of an error; ``None`` where it is not.

    Libraries wrap what the system says in errors of their own, so the words count, and not the types.

    Args:
        error: any; what it rose from is looked at, too.

    Example:
        >>> from hoptimizer.common.disk import disk_failure
        >>> disk_failure(OSError(28, "No space left on device", "/data/mlflow.db"))
        "no space is left on the disk ([Errno 28] No space left on device: '/data/mlflow.db')"
        >>> disk_failure(ValueError("bad"))
    """
    lines = sorted(
        (" ".join(str(reason).split()) for reason in causes(error)), key=len
    )  # the innermost is the shortest
    for line in lines:
        if any(word in line for word in _FULL):
            return f"no space is left on the disk ({line})"
        if any(word in line for word in _UNWRITABLE):
            return f"the disk can't be written to ({line})"
    return None
