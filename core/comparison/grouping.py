"""Variants side by side in groups of questions."""

import math
from collections.abc import Sequence

import pandas as pd

from hoptimizer.common.errors import UserError
from hoptimizer.comparison.result import Compared, Group
from hoptimizer.eval import statistics
from hoptimizer.eval.groups import GROUPINGS


def grouped(by: str, tables: Sequence[pd.DataFrame]) -> pd.Series:
    """What each question is grouped by; of a run of a version that did not keep it, another run says it.

    Raises:
        UserError: there is no such grouping, or no question has a group.
    """
    if by not in GROUPINGS:
        raise UserError(f"--by {by}: expected {' or '.join(GROUPINGS)}")
    column = next((table[by] for table in tables if by in table and table[by].notna().any()), None)
    if column is None:
        raise UserError(f"--by {by}: the runs know no {by} of their questions; annotate the data set and score again")
    return column


def groups_of(variants: Sequence[Compared], metric: str, column: pd.Series, seed: int) -> list[Group]:
    """The metric in each group of questions.

    Args:
        variants: those that are compared, the baseline first.
        metric: what is compared.
        column: what each question is grouped by.
        seed: of the bootstrap.
    """
    groups = []
    for value in [*sorted(column.dropna().unique()), None]:
        chosen = column.isna() if value is None else column == value
        scores = [[score for score, inside in zip(v.scores[metric], chosen, strict=True) if inside] for v in variants]
        if not scores[0]:
            continue
        known = [[score for score in own if not math.isnan(score)] for own in scores]
        pairs = [statistics.known_pairs(scores[0], own) for own in scores[1:]]
        groups.append(
            Group(
                name=f"{value:g}" if isinstance(value, float) else value and str(value),
                n=len(scores[0]),
                estimates=[statistics.mean(own, seed) if own else None for own in known],
                differences=[statistics.compare(*pair, seed) if pair[0] else None for pair in pairs],
            )
        )
    return groups
