import dataclasses
import json
import math
import time
import warnings

import numpy as np
import pytest

from hoptimizer.common.errors import UserError
from hoptimizer.eval import compare, mean
from hoptimizer.eval.statistics import holm, over_seeds, sign_flip_p


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_the_interval_of_a_mean_agrees_with_the_normal_one():
    scores = np.random.default_rng(0).normal(0.5, 0.2, 400)
    estimate = mean(list(scores))
    half = 1.96 * scores.std(ddof=1) / math.sqrt(400)
    assert estimate.mean == pytest.approx(scores.mean())
    assert estimate.low == pytest.approx(scores.mean() - half, abs=0.003)
    assert estimate.high == pytest.approx(scores.mean() + half, abs=0.003)
    assert estimate.n == 400


def test_95_of_100_intervals_hold_the_truth():
    draw = np.random.default_rng(1)
    held = 0
    for trial in range(200):
        estimate = mean((draw.random(60) < 0.3).astype(float), seed=trial)
        held += estimate.low <= 0.3 <= estimate.high
    assert 0.89 <= held / 200 <= 0.99


def test_pairing_finds_a_small_steady_gain_that_the_means_hide():
    draw = np.random.default_rng(2)
    before = draw.random(60)
    after = before + draw.normal(0.05, 0.02, 60)
    found = compare(before, after)
    assert found.before.high > found.after.low
    assert 0 < found.low < found.difference < found.high
    assert found.difference == pytest.approx(found.after.mean - found.before.mean)
    assert found.p < 0.002


def test_noise_is_no_gain():
    draw = np.random.default_rng(3)
    found = compare(draw.random(60), draw.random(60))
    assert found.low < 0 < found.high
    assert found.p > 0.05


def test_the_p_value_is_exact_for_few_questions():
    # Six gains: of the 64 sign patterns, two are as far from zero as this one.
    assert compare([0.0] * 6, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]).p == pytest.approx(2 / 64)


def test_scores_that_differ_in_their_last_digit_are_equal():
    assert (sign_flip_p([0.1 + 0.2] * 10, [0.3] * 10), compare([0.1 + 0.2] * 10, [0.3] * 10).p) == (1, 1)
    assert sign_flip_p([1e-12] * 10, [2e-12] * 10) < 0.01  # dollars may be as few


def test_swapping_the_sides_turns_the_sign():
    draw = np.random.default_rng(4)
    before, after = draw.random(50), draw.random(50)
    there, back = compare(before, after, seed=1), compare(after, before, seed=1)
    assert back.difference == pytest.approx(-there.difference)
    assert back.low == pytest.approx(-there.high, abs=0.01)
    assert back.p == pytest.approx(there.p, abs=0.02)


def test_one_seed_gives_one_result():
    draw = np.random.default_rng(5)
    before, after = draw.random(60), draw.random(60)
    assert compare(before, after, seed=7) == compare(before, after, seed=7)
    assert compare(before, after, seed=7) != compare(before, after, seed=8)


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [([0.0] * 60, [0.0] * 60, 0), ([1.0] * 60, [1.0] * 60, 0), ([0.25] * 60, [0.5] * 60, 0.25), ([0.0], [1.0], 1)],
)
def test_differences_that_are_all_equal_have_an_interval_of_one_point(before, after, difference):
    found = compare(before, after)
    assert (found.difference, found.low, found.high) == (difference, difference, difference)
    assert 0 <= found.p <= 1
    if difference == 0 or len(before) == 1:
        assert found.p == 1


def test_a_single_odd_question_gives_finite_figures():
    found = compare([0.0] * 60, [0.0] * 59 + [1.0])
    assert all(math.isfinite(value) for value in (found.low, found.high, found.p))
    assert found.low == 0


def test_results_are_plain_numbers():
    assert json.loads(json.dumps(dataclasses.asdict(compare([0, 1, 0], [1, 1, 0]))))["n"] == 3


def test_scores_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match="same questions, but there are 2 and 3"):
        compare([0, 1], [0, 1, 1])
    with pytest.raises(UserError, match="no scores"):
        mean([])
    with pytest.raises(UserError, match="score 1 is not a finite number"):
        mean([0.5, float("nan")])


def test_ten_thousand_resamples_of_60_questions_take_no_time():
    draw = np.random.default_rng(6)
    before, after = draw.random(60), draw.random(60)
    compare(before, after)  # imports
    times = []
    for _ in range(5):
        start = time.process_time()
        mean(before)
        times.append(time.process_time() - start)
    assert min(times) < 0.05


def test_runs_over_seeds_have_a_mean_and_a_sample_deviation():
    estimate = over_seeds([0.1, 0.3, 0.5])
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((0.3, 0.1, 0.5))
    assert dataclasses.astuple(over_seeds([0.4])) == (0.4, 0.4, 0.4, 1)


def test_a_clear_difference_stays_clear_among_many_tests():
    p = sign_flip_p([0.0] * 200, [1.0] * 200)
    assert max(holm([p] * 400)) < 0.05
