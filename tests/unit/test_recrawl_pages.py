"""The policy adaptive of an owner: pages wait by their rate of change, within bounds and within the requests a day."""

from functools import partial

import pytest

from api.schemas.changes import recrawl_plan
from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.frontier.change_rate import ChangeRate, decoded
from shared.domain.frontier.recrawl_budget import Share, share
from shared.domain.frontier.recrawl_pages import (
    RATES,
    AdaptiveSchedule,
    RecrawlPages,
    bucket_for,
    expected,
    first_rate,
    rate_after,
)

NOW_MS = 1_800_000_000_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BOUNDS = PageInterval(RecrawlPolicy.ADAPTIVE, HOUR_MS, 30 * DAY_MS)
ALL = share(0, 1, 1)
DAILY, YEARLY = ChangeRate(1 / 86_400).code, ChangeRate(1 / 31_536_000).code


def pages(requests_per_day: int, **counts: int) -> RecrawlPages:
    by_bucket = {bucket_for(DAILY): counts.get("daily", 0), bucket_for(YEARLY): counts.get("yearly", 0)}
    return RecrawlPages(requests_per_day, BOUNDS, {RATES: by_bucket}, NOW_MS)


def wait_ms(known: RecrawlPages, code: int, interval: PageInterval, part: float, now_ms: int) -> int:
    return AdaptiveSchedule(known, part, now_ms).wait_ms(code, interval)


def test_page_that_changes_often_waits_less_within_the_budget() -> None:
    known = pages(1_000, daily=500, yearly=5_000)
    often, seldom = (wait_ms(known, code, BOUNDS, 1.0, NOW_MS) for code in (DAILY, YEARLY))
    assert HOUR_MS <= often < seldom <= 30 * DAY_MS
    needed = DAY_MS * (500 / often + 5_000 / seldom)
    assert needed == pytest.approx(1_000, rel=0.05)
    half = pages(1_000, daily=500, yearly=5_000)
    assert wait_ms(half, DAILY, BOUNDS, 0.5, NOW_MS) > often, "a partition has its part of the budget"


def test_wait_never_leaves_the_bounds_of_a_rule() -> None:
    known = pages(10**9, daily=5)
    narrow = PageInterval(RecrawlPolicy.ADAPTIVE, 2 * DAY_MS, 3 * DAY_MS, 0)
    assert wait_ms(known, DAILY, BOUNDS, 1.0, NOW_MS) == HOUR_MS
    assert wait_ms(known, DAILY, narrow, 1.0, NOW_MS) == 2 * DAY_MS
    assert wait_ms(pages(1, daily=50_000), YEARLY, narrow, 1.0, NOW_MS) == 3 * DAY_MS


def test_schedule_follows_the_counts_after_a_while() -> None:
    known = pages(100, daily=100)
    before = wait_ms(known, DAILY, BOUNDS, 1.0, NOW_MS)
    known.count(bucket_for(DAILY), 300)
    assert wait_ms(known, DAILY, BOUNDS, 1.0, NOW_MS + 1) == before
    assert wait_ms(known, DAILY, BOUNDS, 1.0, NOW_MS + 10_000) > before


def test_dispatch_never_spends_more_than_the_requests_a_day() -> None:
    known, spent = pages(24), 0
    for minute in range(24 * 60):
        now_ms = NOW_MS + minute * 60_000
        known.begin()
        first, second = known.reserve(now_ms, ALL, 10), known.reserve(now_ms, ALL, 10)
        assert second == 0 or first == 10, "a pass reserves no request twice"
        known.spend(now_ms, ALL, first)
        spent += first
    assert 23 <= spent <= 25
    idle = pages(24)
    idle.begin()
    assert idle.reserve(NOW_MS + DAY_MS, ALL, 100) <= 1, "what was not used is lost"


def test_what_was_reserved_and_not_sent_stays_in_the_budget() -> None:
    known = pages(86_400)
    known.begin()
    assert known.reserve(NOW_MS + 10_000, ALL, 100) == 10
    known.spend(NOW_MS + 10_000, ALL, 1)
    known.begin()
    assert known.reserve(NOW_MS + 10_000, ALL, 100) == 9


def test_partitions_share_the_requests_by_their_pages() -> None:
    shares = [share(0, 30, 40), share(30, 10, 40), Share(0, 0)]
    granted = []
    for each in shares:
        known = pages(40_000)
        known.begin()
        granted.append(known.reserve(NOW_MS + 800_000, each, 10**6))
    assert granted[2] == 0
    assert granted[0] + granted[1] == pytest.approx(40_000 * 800_000 / DAY_MS, abs=2)
    assert granted[0] == pytest.approx(3 * granted[1], rel=0.1)


def test_rate_of_a_page_follows_what_its_fetches_find() -> None:
    code = first_rate(BOUNDS)
    busy = quiet = code
    for _ in range(8):
        busy = rate_after(busy, BOUNDS, changed=True, elapsed_ms=HOUR_MS)
        quiet = rate_after(quiet, BOUNDS, changed=False, elapsed_ms=DAY_MS)
    assert bucket_for(quiet) < bucket_for(code) < bucket_for(busy)
    assert rate_after(0, BOUNDS, changed=False, elapsed_ms=0) == code, "a page begins with the rate of the bounds"


def test_page_is_taken_to_change_as_often_as_the_budget_permits() -> None:
    first = partial(pages(100, daily=1_000).first_rate, BOUNDS)
    assert decoded(first(1.0)).mean == pytest.approx(1 / (10 * 86_400), rel=0.01)
    assert decoded(first(0.5)).mean == pytest.approx(1 / (20 * 86_400), rel=0.01)
    assert decoded(first(0.1)).mean == pytest.approx(1 / (30 * 86_400), rel=0.01), "not below that of max_s"
    assert pages(100).first_rate(BOUNDS, 1.0) == first_rate(BOUNDS), "not above that between the bounds"
    known = pages(100, daily=10)
    known.count(bucket_for(DAILY), -10)
    known.count(bucket_for(YEARLY), 1_000)
    assert known.first_rate(BOUNDS, 1.0) == first(1.0), "it follows the number of pages"


def test_expected_freshness_grows_with_the_requests_a_day() -> None:
    counts = {bucket_for(DAILY): 500, bucket_for(YEARLY): 500}
    (few, less), (many, more) = (expected(counts, BOUNDS, n) for n in (100, 1_000))
    assert few == pytest.approx(100, rel=0.01)
    assert many == pytest.approx(1_000, rel=0.01)
    assert 0 < less < more < 1
    hourly, freshest = expected(counts, BOUNDS, None)
    assert hourly == pytest.approx(24_000)
    assert freshest > more


def test_plan_shows_what_a_section_needs_and_gives() -> None:
    counts = {str(bucket_for(DAILY)): 500, str(bucket_for(YEARLY)): 500}
    fixed = recrawl_plan(Recrawl(policy=RecrawlPolicy.FIXED), counts)
    adaptive = recrawl_plan(Recrawl(policy=RecrawlPolicy.ADAPTIVE, min_s=3600.0, requests_per_day=1_000), counts)
    assert fixed is not None
    assert adaptive is not None
    assert (fixed.pages, fixed.requests_per_day) == (1_000, 1_000.0)
    assert adaptive.requests_per_day <= 1_000.0
    assert adaptive.expected_freshness > fixed.expected_freshness
    assert recrawl_plan(Recrawl(), counts) is None
    assert recrawl_plan(Recrawl(policy=RecrawlPolicy.FIXED), {}) is None


def test_counts_that_a_command_changed_replace_those_in_memory() -> None:
    pages = RecrawlPages(10, BOUNDS, {RATES: {56: 3, 40: 2}, "sitemap_rates": {9: 4}}, NOW_MS)
    before = pages.schedule(1.0, NOW_MS)
    pages.outdated = True
    pages.recount({RATES: {40: 1}})
    assert (sum(pages.pages), pages.pages[40], pages.outdated) == (1, 1, False)
    assert pages.schedule(1.0, NOW_MS + 60_000) != before, "the schedule follows"
    pages.count(40, -1)
    pages.count(40, -1)
    assert sum(pages.pages) == 0
