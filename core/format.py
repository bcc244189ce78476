"""How figures are written in tables."""

PERCENT = ("em", "f1", "recall")

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
    scale, digits = (100, 1) if name in PERCENT else (1, 2)
    spread = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * value:.{digits}f}{spread}"
