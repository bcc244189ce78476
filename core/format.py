"""How figures are written in tables."""

from hoptimizer.eval.metrics import METRICS

_PERCENT = ("accuracy", *(metric.name for metric in METRICS.values() if metric.percent))

_HEADINGS = {"lm_calls": "LM calls", "seconds_per_question": "s/question"}


def heading(name: str) -> str:
    """A metric's or a count's name at the head of a column."""
    return _HEADINGS.get(name, name)


def figure(name: str, value: float | None, deviation: float | None = None) -> str:
    """A value as text: metrics in percent, counts as they are, nothing as a dash.

    Args:
        name: the metric or count.
        value: its mean.
        deviation: its standard deviation, where there is one.
    """
    if value is None:
        return "–"
    scale, digits = _written(name)
    spread = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * value:.{digits}f}{spread}"


def change(name: str, difference: float, low: float, high: float) -> str:
    """A difference and its interval as text.

    Args:
        name: the metric or count.
        difference: its mean.
        low: lower end of the interval.
        high: upper end of the interval.
    """
    scale, digits = _written(name)
    mean, *ends = (f"{scale * value:+.{digits}f}" for value in (difference, low, high))
    return f"{mean} [{', '.join(ends)}]"


def _written(name: str) -> tuple[int, int]:
    """By what a figure is multiplied, and the digits behind its point."""
    if name == "objective":
        return 1, 3
    return (100, 1) if name in _PERCENT else (1, 2)
