"""When pages are fetched again: intervals within their bounds, and prices that keep the budget."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.frontier.change_rate import CODES, FASTEST, SLOWEST, ChangeRate
from shared.domain.frontier.recrawl import (
    BUCKETS,
    RecrawlSchedule,
    SignalTrust,
    advanced_s,
    bucket_of,
    bucket_rate,
    expected_freshness,
    freshness,
    solved,
    value_s,
    wait_s,
)

DAY = 86_400.0
YEAR = 366 * DAY

rates = st.floats(math.log2(SLOWEST), math.log2(FASTEST)).map(lambda octave: 2.0**octave)
times = st.floats(-3.0, 32.0).map(lambda octave: 2.0**octave)
bounds = st.tuples(st.floats(1.0, YEAR), st.floats(1.0, YEAR)).map(lambda pair: (min(pair), max(pair)))
populations = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 10**7), max_size=20).map(
    lambda counts: tuple(counts.get(bucket, 0) for bucket in range(BUCKETS))
)


@given(populations, st.floats(1e-3, 1e9), bounds, st.integers(1, CODES - 1))
@settings(max_examples=60, deadline=None)
def test_interval_is_never_below_min_s_or_above_max_s(
    pages: tuple[int, ...], budget: float, limits: tuple[float, float], code: int
) -> None:
    assert limits[0] <= solved(pages, budget, *limits).interval_s(code, *limits) <= limits[1]


@given(populations, st.floats(1.0, 1e9), bounds)
@settings(max_examples=60, deadline=None)
def test_price_keeps_the_budget_and_spends_it(
    pages: tuple[int, ...], budget: float, limits: tuple[float, float]
) -> None:
    """Only the bounds may leave requests over, or need more."""
    low, high = limits
    need = solved(pages, budget, low, high).requests_per_day(pages, low, high)
    least, most = sum(pages) / high * DAY, sum(pages) / low * DAY
    assert need <= max(budget, least) * (1 + 1e-6)
    assert need >= min(budget, most) * (1 - 1e-6)


@given(populations, st.floats(1.0, 1e8), st.floats(1.0, 8.0), st.integers(1, CODES - 1))
@settings(max_examples=60, deadline=None)
def test_larger_budget_never_lengthens_an_interval(
    pages: tuple[int, ...], budget: float, more: float, code: int
) -> None:
    before, after = solved(pages, budget, 60.0, YEAR), solved(pages, budget * more, 60.0, YEAR)
    assert after.interval_s(code, 60.0, YEAR) <= before.interval_s(code, 60.0, YEAR) * (1 + 1e-9)


@given(rates, times, st.floats(1.0, 10.0))
@settings(max_examples=200)
def test_value_grows_with_time_and_stays_below_its_limit(rate: float, seconds: float, more: float) -> None:
    assert 0 <= value_s(rate, seconds) <= value_s(rate, seconds * more) <= 1 / rate
    assert value_s(rate, seconds) <= seconds * (1 + 1e-9)


@given(rates, st.floats(-20.0, 20.0).map(lambda octave: 2.0**octave))
@settings(max_examples=300)
def test_wait_ends_when_the_value_reaches_the_price(rate: float, price_s: float) -> None:
    wait = wait_s(rate, price_s)
    if wait == math.inf:
        assert price_s * rate >= 1.0
    else:
        assert value_s(rate, wait) == pytest.approx(price_s, rel=1e-6)


@given(rates, times, times, st.floats(1.0, 100.0))
@settings(max_examples=200)
def test_wait_grows_with_the_price_and_shrinks_with_importance(
    rate: float, one: float, other: float, importance: float
) -> None:
    low, high = sorted((one, other))
    assert wait_s(rate, low) <= wait_s(rate, high) * (1 + 1e-6)
    assert wait_s(rate, high, importance) <= wait_s(rate, high) * (1 + 1e-6)


def test_pages_that_always_change_do_not_take_the_budget_of_others() -> None:
    """A thousand pages change daily, and a fetch a day is there for each. Then come 9,000 that change all the time."""
    slow, fast = bucket_of(ChangeRate(1 / DAY).code), bucket_of(ChangeRate(1 / 60).code)
    pages = [0] * BUCKETS
    pages[slow] = 1_000
    alone = solved(pages, 1_000, 60.0, 365 * DAY)
    pages[fast] = 9_000
    among = solved(pages, 1_000, 60.0, 365 * DAY)
    assert among.interval_s(fast << 17, 60.0, 365 * DAY) == pytest.approx(365 * DAY)
    wait = alone.interval_s(slow << 17, 60.0, 365 * DAY)
    assert wait == pytest.approx(DAY, rel=1e-3)
    assert among.interval_s(slow << 17, 60.0, 365 * DAY) == pytest.approx(wait, rel=0.03)


def test_signalled_changes_are_paid_from_the_budget() -> None:
    """The owner keeps requests for them, and does not keep any for changes that are not worth the price."""
    medium, fast = bucket_of(ChangeRate(1 / (10 * DAY)).code), bucket_of(ChangeRate(1 / 60).code)
    pages, signalled = [0] * BUCKETS, [0.0] * BUCKETS
    pages[medium] = 1_000
    alone = solved(pages, 150, DAY, YEAR)
    signalled[fast] = 1_000
    assert solved(pages, 150, DAY, YEAR, sign_share_sum=signalled).price_s == pytest.approx(alone.price_s)
    signalled[medium] = 500
    among = solved(pages, 150, DAY, YEAR, sign_share_sum=signalled)
    assert among.requests_per_day(pages, DAY, YEAR) == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("part", [0.3, 0.8, 0.97])
def test_followed_pages_spend_the_budget_and_no_more(part: float) -> None:
    """A fetch for a sign starts the wait of its page anew. So waits and signs together need less than both alone."""
    medium = bucket_of(ChangeRate(1 / (10 * DAY)).code)
    rate = bucket_rate(medium)
    waiting = bucket_of(ChangeRate(rate * (1 - part)).code)
    pages, signalled, pages_with_signs = [0] * BUCKETS, [0.0] * BUCKETS, [0] * BUCKETS
    pages[waiting], signalled[medium], pages_with_signs[medium] = 1_000, 1_000 * part, 1_000
    budget = 1_000 * (part * rate + 1 / (40 * DAY)) * DAY

    def spent(schedule: RecrawlSchedule) -> float:
        wait, drawn = schedule.interval_s(waiting << 17, 60.0, YEAR), random.Random(1)
        cycles = [min(drawn.expovariate(part * rate), wait) for _ in range(100_000)]
        return 1_000 * DAY * len(cycles) / sum(cycles)

    known = solved(pages, budget, 60.0, YEAR, sign_share_sum=signalled, pages_with_signs=pages_with_signs)
    added = solved(pages, budget, 60.0, YEAR, sign_share_sum=signalled)
    assert spent(known) == pytest.approx(budget, rel=0.05)
    assert spent(added) < 0.95 * budget


def test_price_is_the_same_for_two_owners_with_the_same_mix() -> None:
    """So an owner that solves for its share finds what all would find together."""
    pages = [bucket % 5 for bucket in range(BUCKETS)]
    together = solved(pages, 1_000, 60.0, YEAR)
    half = solved([2 * count for count in pages], 2_000, 60.0, YEAR)
    assert half.price_s == pytest.approx(together.price_s, rel=1e-4)


@pytest.mark.parametrize(("budget", "interval"), [(1e9, DAY), (1e-3, YEAR)])
def test_budget_beyond_all_bounds_leaves_the_bounds(budget: float, interval: float) -> None:
    schedule = solved([1] * BUCKETS, budget, DAY, YEAR)
    assert {schedule.interval_s(bucket << 17, DAY, YEAR) for bucket in range(BUCKETS)} == {interval}


def test_owner_without_pages_has_a_schedule_for_the_first() -> None:
    assert solved([0] * BUCKETS, 1.0, DAY, YEAR).interval_s(1, DAY, YEAR) == DAY


@given(st.integers(1, CODES - 1))
def test_bucket_holds_the_rates_around_its_own(code: int) -> None:
    rate = 2.0 ** ((code >> 8) / 2048 - 32)
    assert abs(math.log2(bucket_rate(bucket_of(code)) / rate)) <= 0.125 + 1e-9


@pytest.mark.parametrize(("events", "part"), [(1e-12, 1.0), (1.0, 0.632), (10.0, 0.1), (1e9, 1e-9)])
def test_freshness_is_the_part_of_time_before_the_first_change(events: float, part: float) -> None:
    assert freshness(1 / DAY, events * DAY) == pytest.approx(part, rel=1e-3)


@given(rates, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=100)
def test_sign_that_is_trusted_more_advances_a_fetch_more(rate: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= advanced_s(rate, low) <= advanced_s(rate, high)
    assert advanced_s(rate, 0.0) == 0


@given(populations, st.floats(1.0, 1e8), st.floats(1.0, 8.0))
@settings(max_examples=40, deadline=None)
def test_expected_freshness_grows_with_the_budget(pages: tuple[int, ...], budget: float, more: float) -> None:
    less_fresh = expected_freshness(pages, budget, 60.0, YEAR)
    assert 0 <= less_fresh <= expected_freshness(pages, budget * more, 60.0, YEAR) + 1e-6 <= 1 + 2e-6


def test_expected_freshness_of_equal_pages_follows_from_the_interval() -> None:
    bucket = bucket_of(ChangeRate(1 / DAY).code)
    pages = [0] * BUCKETS
    pages[bucket] = 1_000
    for budget, interval in ((1_000, DAY), (250, 4 * DAY), (10**9, 60.0), (1, 1_000 * DAY)):
        expected = freshness(bucket_rate(bucket), interval)
        assert expected_freshness(pages, budget, 60.0, 30 * DAY) == pytest.approx(expected, rel=1e-3)


def test_expected_freshness_beats_equal_intervals_where_rates_differ() -> None:
    pages = [0] * BUCKETS
    for rate in (1 / (90 * DAY), 1 / (10 * DAY), 24 / DAY):
        pages[bucket_of(ChangeRate(rate).code)] = 1_000
    equal = sum(count * freshness(bucket_rate(bucket), 30 * DAY) for bucket, count in enumerate(pages)) / 3_000
    assert expected_freshness(pages, 100, 60.0, YEAR) > 1.15 * equal


def trusted(signs: list[tuple[bool, bool]]) -> SignalTrust:
    """Return the trust after comparisons of pages that change in half of the cases: (signalled, changed)."""
    trust = SignalTrust()
    for signalled, changed in signs:
        trust = trust.compared(signalled=signalled, changed=changed, rate=math.log(2) / DAY, elapsed_s=DAY)
    return trust


def test_signs_are_trusted_as_far_as_they_were_right() -> None:
    assert trusted([]).precision == 0
    assert trusted([]).unsignalled == 1
    right = trusted([(True, True), (False, False)] * 30)
    assert right.precision > 0.9
    assert right.unsignalled < 0.1
    always_now = trusted([(True, True), (True, False)] * 30)
    assert always_now.precision == pytest.approx(0, abs=0.05)
    partly = trusted([(True, True), (False, False), (False, True)] * 60)
    assert partly.precision > 0.8
    assert partly.unsignalled == 1


def test_trust_is_lost_when_signs_become_wrong() -> None:
    assert trusted([(True, True)] * 200 + [(True, False)] * 100).precision == 0
