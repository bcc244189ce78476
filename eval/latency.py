"""How long a question takes whose answer has to be worked out."""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

SECONDS = "seconds"
CACHED = "cached_calls"
"""The score of a question that says how many of its calls a cache answered."""


def uncached_seconds(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """The seconds of those questions whose calls were not all answered from a cache.

    A question of which that is not known is left out, too: a call that came from a cache takes next to no time.

    Args:
        rows: the scores and counts of each question.

    Example:
        >>> from hoptimizer.eval.latency import uncached_seconds
        >>> asked = {"seconds": 2.0, "lm_calls": 3.0, "cached_calls": 1.0}
        >>> uncached_seconds([asked, asked | {"cached_calls": 3.0}, {"seconds": 0.1, "lm_calls": 3.0}])
        [2.0]
    """
    return [float(row[SECONDS]) for row in rows if _is_timed(row)]


def summary(seconds: list[float]) -> dict[str, float]:
    """``seconds_n`` of how many questions there are seconds; their median and 95th percentile, where there are any."""
    known = {"seconds_n": float(len(seconds))}
    if seconds:
        import numpy as np  # imported here: a config, which names what is counted, needs none

        known |= {"seconds_median": statistics.median(seconds), "seconds_p95": float(np.percentile(seconds, 95))}
    return known


def _is_timed(row: Mapping[str, Any]) -> bool:
    seconds, calls, cached = (_number(row.get(name)) for name in (SECONDS, "lm_calls", CACHED))
    return not any(map(math.isnan, (seconds, calls, cached))) and (calls == 0 or cached < calls)


def _number(value: Any) -> float:  # noqa: ANN401 - a number, or nothing
    return float(value) if isinstance(value, int | float) else math.nan
