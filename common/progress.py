"""How long-running work reports its progress."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

Report = Callable[[str, int, int, str], None]
"""Called with the stage, how much of it is done, how much there is (0 where that is not known), and a remark."""

Progress = Callable[[int, int], None]
"""Called with how much of one stage is done, and how much there is."""


def silent(stage: str, done: int, total: int, remark: str) -> None:
    """A report that goes nowhere."""


def in_notebook(stage: str, done: int, total: int, remark: str) -> None:
    """A report that shows a progress bar for each stage in a Jupyter notebook, and nothing anywhere else."""
    if kernel := _kernel():
        _shown.report(kernel, stage, done, total, remark)


def _kernel() -> Any:  # noqa: ANN401 - IPython's shell, which need not be installed
    """The shell of the notebook that this process runs, or ``None`` in any other process."""
    shell = IPython.get_ipython() if (IPython := sys.modules.get("IPython")) else None
    return shell if hasattr(shell, "kernel") else None


class _Bars:
    """The bars of one cell of a notebook; the next cell has bars of its own."""

    def __init__(self) -> None:
        self._cell: object = None
        self._bars: dict[str, Any] = {}

    def report(self, kernel: Any, stage: str, done: int, total: int, remark: str) -> None:  # noqa: ANN401 - as above
        """Tell of a stage: a line when it starts, and a bar as soon as it is known how much there is to do."""
        if self._cell != kernel.execution_count:
            self._cell, self._bars = kernel.execution_count, {}
        if not total:
            if stage not in self._bars:
                sys.stderr.write(f"{stage}\n")
            self._bars.setdefault(stage, None)
            return
        bar = self._bars.get(stage)
        if bar is None and stage in self._bars and done >= total:  # it was shown to its end
            return
        bar = bar or self._bar(stage, total)
        bar.total, bar.n = total, done
        bar.set_postfix_str(remark)  # draws it
        if done >= total:
            bar.close()
            bar = None
        self._bars[stage] = bar

    def _bar(self, stage: str, total: int) -> Any:  # noqa: ANN401 - a bar of tqdm's
        with warnings.catch_warnings():  # without ipywidgets the bar is one of text
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
        return tqdm(desc=stage, total=total, disable=False)


_shown = _Bars()
