"""How long work tells of its progress."""

from collections.abc import Callable

Report = Callable[[str, int, int, str], None]
"""Told about long work: the stage, how much of it is done, of how much (0: not known), and a remark."""


def silent(stage: str, done: int, total: int, remark: str) -> None:
    """A report that goes nowhere."""
