"""How long a question takes whose answer has to be worked out."""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

SECONDS = "seconds"
CACHED = "cached_calls"
"""The score of a question that says how many of its calls a cache answered."""


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """How long those questions took whose calls were not all answered from a cache.

    A question of which that is not known is left out, too: a call that came from a cache takes next to no time.

    Args:
        rows: the scores and counts of each question.

    Returns:
        ``seconds_n``, how many such questions there are, and their ``seconds_median`` and ``seconds_p95``. Without one,
        ``seconds_n`` is 0 if it is known that a cache answered all calls, and else there is nothing.

    Example:
        >>> from hoptimizer.eval.latency import summary
        >>> asked = {"seconds": 2.0, "lm_calls": 3.0, "cached_calls": 1.0}
        >>> summary([asked, asked | {"cached_calls": 3.0}, {"seconds": 0.1, "lm_calls": 3.0}])
        {'seconds_n': 1.0, 'seconds_median': 2.0, 'seconds_p95': 2.0}
        >>> summary([asked | {"cached_calls": 3.0}]), summary([{"seconds": 0.1, "lm_calls": 3.0}])
        ({'seconds_n': 0.0}, {})
    """
    of_rows = [tuple(_number(row.get(name)) for name in (SECONDS, "lm_calls", CACHED)) for row in rows]
    known = [row for row in of_rows if not any(map(math.isnan, row))]
    timed = [seconds for seconds, calls, cached in known if calls == 0 or cached < calls]
    if not timed:
        return {"seconds_n": 0.0} if len(known) == len(of_rows) else {}
    import numpy as np  # imported here: a config, which names what is counted, needs none

    return {
        "seconds_n": float(len(timed)),
        "seconds_median": statistics.median(timed),
        "seconds_p95": float(np.percentile(timed, 95)),
    }


def _number(value: Any) -> float:  # noqa: ANN401 - a number, or nothing
    return float(value) if isinstance(value, int | float) else math.nan
