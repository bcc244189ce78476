"""What a question costs a variant: calls, tokens, price, and the time of those that no cache answered."""

import math
from dataclasses import dataclass

import pandas as pd

from hoptimizer.eval import latency
from hoptimizer.programs.record import COST

FAILURE = "failure"


@dataclass(frozen=True)
class Costs:
    """Means over the questions that were compared.

    Attributes:
        means: ``prompt_tokens``, ``cached_tokens``, ``completion_tokens`` and ``usd``, those that are known of every
            question on which the program did not fail; ``seconds_median`` and ``seconds_p95`` of the questions whose
            calls were not all answered from a cache, where there are any.
        timed: how many such questions there are; ``None`` where it is not known what a cache answered.
    """

    means: dict[str, float]
    timed: int | None

    @property
    def why_untimed(self) -> str:
        """Why there are no seconds; nothing where there are."""
        if self.timed is None:
            return "unknown"
        return "" if self.timed else "all from a cache"


def costs(table: pd.DataFrame) -> Costs:
    """What a run's answers took.

    Args:
        table: its predictions, one row for each question.
    """
    answered = table[table[FAILURE].isna()] if FAILURE in table else table
    means = {
        name: float(answered[name].mean())
        for name in COST
        if name in answered and pd.api.types.is_numeric_dtype(answered[name]) and answered[name].notna().all()
    }
    means = {name: value for name, value in means.items() if math.isfinite(value)}
    if latency.CACHED not in table or latency.SECONDS not in table:
        return Costs(means, None)
    columns = [name for name in (latency.SECONDS, "lm_calls", latency.CACHED) if name in table]
    rows = [dict(zip(columns, row, strict=True)) for row in table[columns].itertuples(index=False)]
    found = latency.summary(rows)
    timed = found.pop("seconds_n", None)
    return Costs(means | found, None if timed is None else int(timed))
