"""Confidence intervals and paired comparisons of per-question scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hoptimizer.common.errors import UserError

RESAMPLES = 10_000
SIGN_FLIPS = 20_000  # the least p is 2 / SIGN_FLIPS, and the correction for many tests multiplies it by their number
LEVEL = 0.95
CHANCE = 0.05
"""A p-value below it is more than chance, in every table."""

# Resampled scores that are held in memory at once: 64 MiB of them.
_HELD = 8_000_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and an interval around it.

    Attributes:
        mean: mean over the questions, or over the seeds.
        low: lower end of the interval.
        high: upper end of the interval.
        n: questions or seeds; the interval of a single one is the score itself and says nothing.

    Example:
        >>> from hoptimizer.eval import Estimate, mean
        >>> mean([1.0, 1.0, 1.0])
        Estimate(mean=1.0, low=1.0, high=1.0, n=3)
    """

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better ``after`` is than ``before`` on the same questions.

    Attributes:
        before: the mean of the first scores.
        after: the mean of the second scores.
        difference: ``after`` less ``before``.
        low: lower end of the difference's 95% interval.
        high: upper end of the difference's 95% interval.
        p: two-sided probability of a difference this large if the two were interchangeable (sign-flip test).
        n: questions.

    Example:
        >>> from hoptimizer.eval import Difference, compare
        >>> found = compare(before=[0.0, 1.0, 0.5], after=[0.0, 1.0, 0.5])
        >>> isinstance(found, Difference), found.difference, found.p
        (True, 0.0, 1.0)
    """

    before: Estimate
    after: Estimate
    difference: float
    low: float
    high: float
    p: float
    n: int


def mean(scores: Sequence[float], seed: int = 0) -> Estimate:
    """The mean with its percentile bootstrap interval (Efron and Tibshirani, 1993, chapter 13).

    Args:
        scores: one per question, at least one.
        seed: seed of the resampling.

    Raises:
        UserError: there are no scores, or one is not a finite number.

    Example:
        >>> from hoptimizer.eval import mean
        >>> estimate = mean([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
        >>> estimate.mean, estimate.low, estimate.high
        (0.625, 0.25, 0.875)
    """
    return _estimate(_checked(scores), seed)


def over_seeds(scores: Sequence[float]) -> Estimate:
    """The mean over runs that differ in their seed, and one sample standard deviation to either side.

    Args:
        scores: one per run, at least one.

    Raises:
        UserError: there are no scores, or one is not a finite number.
    """
    array = _checked(scores)
    value, deviation = float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0
    return Estimate(value, value - deviation, value + deviation, len(array))


def compare(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Difference:
    """Compare two variants in pairs: questions are resampled, each with both of its scores (Koehn, 2004).

    Args:
        before: the baseline's scores, one per question.
        after: the other variant's scores on the same questions in the same order.
        seed: seed of the resampling.

    Raises:
        UserError: the two differ in length, are empty, or hold something that is not a finite number.

    Example:
        >>> from hoptimizer.eval import compare
        >>> found = compare(before=[0.0] * 10, after=[1.0] * 8 + [0.0] * 2)
        >>> found.difference, found.low > 0, found.p < 0.05
        (0.8, True, True)
    """
    if len(before) != len(after):
        raise UserError(
            f"a paired comparison needs scores of the same questions, but there are {len(before)} and {len(after)}; "
            "score both on the same split and size"
        )
    first, second = _checked(before), _checked(after)
    differences = _differences(first, second)
    estimate = _estimate(differences, seed)
    return Difference(
        before=_estimate(first, seed),
        after=_estimate(second, seed),
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p=_sign_flip(differences, seed),
        n=estimate.n,
    )


def sign_flip_p(before: Sequence[float], after: Sequence[float], seed: int = 0) -> float:
    """How probable a difference as large as that of two variants is if they are interchangeable, in pairs, two-sided.

    Args:
        before: one variant's scores, one per question, at least one.
        after: the other variant's scores on the same questions in the same order.
        seed: of the sampling of signs, where there are too many to try them all.

    Raises:
        UserError: there are no scores, or one is not a finite number.

    Example:
        >>> from hoptimizer.eval.statistics import sign_flip_p
        >>> sign_flip_p([0.0] * 6, [1.0] * 6)
        0.03125
    """
    return _sign_flip(_differences(_checked(before), _checked(after)), seed)


def holm(p: Sequence[float]) -> list[float]:
    """p-values of several tests, corrected so that by chance alone any is below 0.05 in one of 20 tables (Holm, 1979).

    Args:
        p: one per test.

    Example:
        >>> from hoptimizer.eval.statistics import holm
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, highest = list(p), 0.0
    for rank, number in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[number]))
        corrected[number] = highest
    return corrected


def known_pairs(before: Sequence[float], after: Sequence[float]) -> tuple[list[float], list[float]]:
    """The scores of those questions that have one in both lists.

    Args:
        before: one per question, not a number where the question has none.
        after: the other variant's scores on the same questions in the same order.
    """
    pairs = [pair for pair in zip(before, after, strict=True) if not any(map(math.isnan, pair))]
    return [score for score, _ in pairs], [score for _, score in pairs]


def _checked(scores: Sequence[float]) -> Any:  # noqa: ANN401 - an array
    array = np.asarray(scores, dtype=float)
    if not array.size:
        raise UserError("no scores to take a mean of; score at least one question")
    if not np.isfinite(array).all():
        raise UserError(f"score {int(np.argmin(np.isfinite(array)))} is not a finite number; leave such questions out")
    return array


def _differences(before: Any, after: Any) -> Any:  # noqa: ANN401 - arrays
    # Means over seeds can differ in their last digit alone, whose sign would count as any other.
    return np.where(np.isclose(before, after, rtol=1e-9, atol=0), 0.0, after - before)


def _estimate(scores: Any, seed: int) -> Estimate:  # noqa: ANN401 - an array
    from scipy import stats  # takes a second

    value = float(scores.mean())
    if np.ptp(scores) == 0:  # a single question, or equal scores: every resample is the same
        return Estimate(value, value, value, len(scores))
    interval = stats.bootstrap(
        (scores,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, _HELD // len(scores)),
        vectorized=True,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high), len(scores))


def _sign_flip(differences: Any, seed: int) -> float:  # noqa: ANN401 - an array
    from scipy import stats

    if len(differences) < 2 or not differences.any():
        return 1.0
    # Exact where there are no more sign patterns than flips; they are sampled otherwise.
    return float(
        stats.permutation_test(
            (differences,),
            np.mean,
            permutation_type="samples",
            n_resamples=SIGN_FLIPS,
            batch=max(1, _HELD // len(differences)),
            vectorized=True,
            rng=np.random.default_rng(seed),
        ).pvalue
    )
