"""How figures are written, in tables above all."""

from collections.abc import Mapping

from hoptimizer.eval.metrics import is_share

COLUMNS = ("em", "f1", "accuracy", "recall", "objective", "passages", "lm_calls", "retrievals")
"""The scores and counts that tables of variants have, in this order, where any variant has them."""

COSTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "usd", "seconds_median", "seconds_p95")
"""What tables of costs have of a question."""

_HEADINGS = {
    "lm_calls": "LM calls",
    "seconds_per_question": "s/question",
    "prompt_tokens": "prompt tokens",
    "cached_tokens": "of them cached",
    "completion_tokens": "completion tokens",
    "usd": "$",
    "seconds_median": "median s",
    "seconds_p95": "95% within s",
}
# Digits behind the point, where it is not two.
_DIGITS = {"objective": 3, "prompt_tokens": 1, "cached_tokens": 1, "completion_tokens": 1, "usd": 6, "seconds_n": 0}


def counted(number: int, noun: str) -> str:
    """A number of things.

    Args:
        number: how many.
        noun: what one of them is called.

    Example:
        >>> from hoptimizer.eval.display.format import counted
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


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


def is_unsought(name: str, searches: float | None, metric: str = "") -> bool:
    """Whether a figure is the recall of a variant that never searched: none, rather than a bad one.

    Args:
        name: the metric or count.
        searches: the variant's ``retrievals``, where they are known.
        metric: what is compared, which always has its figure.
    """
    return name == "recall" != metric and searches == 0


def figure_of(name: str, means: Mapping[str, float]) -> str:
    """One of a variant's figures as text.

    Args:
        name: the metric or count.
        means: all that the variant has.
    """
    return figure(name, None if is_unsought(name, means.get("retrievals")) else means.get(name))


def with_interval(name: str, value: float, low: float, high: float) -> str:
    """A value and its interval as text.

    Args:
        name: the metric or count.
        value: its mean.
        low: lower end of the interval.
        high: upper end of the interval.
    """
    return f"{figure(name, value)} [{figure(name, low)}, {figure(name, high)}]"


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
    return (100, 1) if name == "accuracy" or is_share(name) else (1, _DIGITS.get(name, 2))
