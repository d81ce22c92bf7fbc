"""Beliefs about rates of change: what comparisons do to them, and that they survive any history."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.frontier.change_rate import (
    CODES,
    FASTEST,
    REMEMBERED,
    SLOWEST,
    ChangeRate,
    decoded,
    prior,
)

DAY = 86_400.0

rates = st.builds(
    ChangeRate,
    st.floats(math.log2(SLOWEST), math.log2(FASTEST)).map(lambda octave: 2.0**octave),
    st.floats(0.125, REMEMBERED),
)
elapsed = st.floats(-8.0, 40.0).map(lambda octave: 2.0**octave)


def learned(rate: float, intervals: list[float], seed: int, start: float) -> ChangeRate:
    """Return the belief about a page of this rate after comparisons at these intervals, drawn with `seed`."""
    drawn = random.Random(seed)
    belief = prior(start)
    for interval in intervals:
        changed = drawn.random() < -math.expm1(-rate * interval)
        belief = decoded(belief.observed(changed=changed, elapsed_s=interval).code)
    return belief


@given(rates, st.lists(st.tuples(st.booleans(), elapsed), max_size=40))
@settings(max_examples=200)
def test_belief_stays_in_its_range_after_any_history(belief: ChangeRate, history: list[tuple[bool, float]]) -> None:
    for changed, seconds in history:
        belief = decoded(belief.observed(changed=changed, elapsed_s=seconds).code)
        assert SLOWEST <= belief.mean <= FASTEST
        assert 0 < belief.shape <= REMEMBERED


@given(rates, elapsed)
@settings(max_examples=200)
def test_change_never_lowers_the_rate_and_its_absence_never_raises_it(belief: ChangeRate, seconds: float) -> None:
    assert belief.observed(changed=True, elapsed_s=seconds).mean >= belief.mean * (1 - 1e-9)
    assert belief.observed(changed=False, elapsed_s=seconds).mean <= belief.mean * (1 + 1e-9)


@pytest.mark.parametrize("seconds", [0.0, 0.999, -5.0, -1e12, math.nan])
def test_clock_that_was_set_back_teaches_nothing(seconds: float) -> None:
    belief = prior(1 / DAY)
    assert belief.observed(changed=True, elapsed_s=seconds) == belief
    assert belief.observed(changed=False, elapsed_s=seconds) == belief


@given(rates)
@settings(max_examples=300)
def test_code_keeps_rate_and_weight_in_24_bits(belief: ChangeRate) -> None:
    code = belief.code
    assert 0 < code < CODES
    assert decoded(code).mean == pytest.approx(belief.mean, rel=4e-4)
    assert decoded(code).shape == pytest.approx(belief.shape, abs=1 / 15)
    assert decoded(code).code == code


def test_moments_after_a_change_are_those_of_the_posterior() -> None:
    """The posterior is integrated numerically here."""
    belief, seconds = ChangeRate(1 / (3 * DAY), 2.5), 5 * DAY
    scale = belief.shape / belief.mean
    points = [index * belief.mean / 2000 for index in range(1, 60_000)]
    weights = [rate ** (belief.shape - 1) * math.exp(-rate * scale) * -math.expm1(-rate * seconds) for rate in points]
    total = sum(weights)
    mean = sum(map(lambda rate, weight: rate * weight, points, weights)) / total
    variance = sum(map(lambda rate, weight: (rate - mean) ** 2 * weight, points, weights)) / total
    after = belief.observed(changed=True, elapsed_s=seconds)
    assert after.mean == pytest.approx(mean, rel=1e-3)
    assert after.shape == pytest.approx(mean * mean / variance, rel=1e-3)


@pytest.mark.parametrize("rate", [1 / (100 * DAY), 1 / (10 * DAY), 1 / DAY, 4 / DAY])
def test_rate_is_learned_from_irregular_intervals(rate: float) -> None:
    """The usual estimate is within a factor of two after 30 comparisons, from a start that is ten times too high."""
    drawn = random.Random(7)
    logs = []
    for seed in range(60):
        intervals = [drawn.uniform(0.1, 3.0) / rate for _ in range(30)]
        logs.append(math.log2(learned(rate, intervals, seed, 10 * rate).mean / rate))
    logs.sort()
    assert abs(logs[30]) < 0.5, "the median is near the truth"
    assert sum(abs(each) < 1 for each in logs) > 45


def test_page_that_begins_to_change_is_noticed_after_few_fetches() -> None:
    belief = prior(1 / (10 * DAY))
    for _ in range(100):
        belief = belief.observed(changed=False, elapsed_s=20 * DAY)
    before = belief.mean
    assert before < 1 / (200 * DAY)
    for _ in range(5):
        belief = belief.observed(changed=True, elapsed_s=20 * DAY)
    assert belief.mean > 5 * before


def test_page_that_ceases_to_change_is_noticed_after_few_fetches() -> None:
    belief = prior(1 / (10 * DAY))
    for _ in range(100):
        belief = belief.observed(changed=True, elapsed_s=DAY)
    before = belief.mean
    assert before > 1 / DAY
    for _ in range(10):
        belief = belief.observed(changed=False, elapsed_s=DAY)
    assert belief.mean < before / 2


def test_rate_is_learned_from_the_moments_of_signalled_changes() -> None:
    """A page changes every ten days. Its sitemap is read daily and says when; it is fetched because of that."""
    belief, drawn = prior(1 / DAY), random.Random(3)
    now = known = 0.0
    for _ in range(40):
        at = now + drawn.expovariate(1 / (10 * DAY))
        now = math.ceil(at / DAY) * DAY
        belief = belief.signalled(max(0.0, now - DAY - known) + now - at)
        known = now
    assert belief.mean == pytest.approx(1 / (10 * DAY), rel=0.5)


def test_planned_rate_is_cautious_while_little_is_known() -> None:
    known, unknown = ChangeRate(1 / DAY, 20.0), ChangeRate(1 / DAY, 0.25)
    assert unknown.cautious < 0.25 / DAY
    assert 0.9 / DAY < known.cautious < 1 / DAY


def test_weight_never_spills_into_the_rate_of_a_code() -> None:
    heavy = ChangeRate(2.0**-10, float(REMEMBERED))
    assert heavy.code >> 8 == ChangeRate(2.0**-10, 1.0).code >> 8
    assert decoded(heavy.code).shape == REMEMBERED
