"""How long-running work reports its progress."""

from collections.abc import Callable

Report = Callable[[str, int, int, str], None]
"""Called with the stage, how much of it is done, how much there is (0 where that is not known), and a remark."""

Progress = Callable[[int, int], None]
"""Called with how much of one stage is done, and how much there is."""


def silent(stage: str, done: int, total: int, remark: str) -> None:
    """A report that goes nowhere."""
