"""Progress in a notebook: a bar for each stage, below the cell whose work it shows."""

import html
import sys
import time
from typing import Any

from hoptimizer.common.terminal import printable

_PAUSE = 0.2  # seconds between two updates of a bar

# By the cell's number and the stage: where the bar is shown, and when it was last drawn.
_bars: dict[tuple[int, str], tuple[Any, float]] = {}


def notebook_progress(stage: str, done: int, total: int, remark: str) -> None:
    """Show progress below the cell of a notebook that is under way; elsewhere it goes nowhere.

    Args:
        stage: what is under way.
        done: how much of it is done.
        total: how much there is; 0 where that is not known.
        remark: stands beside the bar.

    Example:
        >>> from hoptimizer.notebook import notebook_progress
        >>> notebook_progress("rag on dev", 1, 10, "f1 0.500")  # no notebook: nothing is shown
    """
    shell = _shell()
    if shell is None:
        return
    key, now = (shell.execution_count, stage), time.monotonic()
    for old in [old for old in _bars if old[0] != key[0]]:
        del _bars[old]
    display, drawn = sys.modules["IPython"].display, HTML(_bar(stage, done, total, remark))
    if key not in _bars:
        _bars[key] = display.display(drawn, display_id=True), now
    elif done == total or now - _bars[key][1] >= _PAUSE:
        _bars[key][0].update(drawn)
        _bars[key] = _bars[key][0], now


class HTML:
    """HTML that a notebook shows.

    Args:
        text: the HTML; whatever comes from data is escaped in it.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def _shell() -> Any:  # noqa: ANN401 - IPython's
    """The shell of the notebook that runs this; ``None`` in a terminal or a script. IPython is there if it runs it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(shell, "kernel") else None


def _bar(stage: str, done: int, total: int, remark: str) -> str:
    stage, remark = (html.escape(printable(text)) for text in (stage, remark))
    reached = f'value="{done}" max="{total}"' if total else ""
    count = f"{done}/{total}" if total else ""
    return f"<div>{stage} <progress {reached}></progress> {count} {remark}</div>"
