"""The bound of freshness is what its formulas say, and grows with the budget and with what is known."""

import random
from math import exp

import pytest

from tests.support.simulation.changing_web import DAY_S, ChangingWeb, Page, Sitemap, WebHost
from tests.support.simulation.freshness_bound import Section, freshness_bound, sections_of

NEVER = 1e18


def web_of(*pages: Page, days: float = 100.0) -> ChangingWeb:
    web = ChangingWeb(1, hosts=0, days=days)
    web.pages.extend(pages)
    return web


def page(every_days: float, *, period: bool = False, sitemap: Sitemap = Sitemap.NONE, dies_at: float = NEVER) -> Page:
    rate = 1 / (every_days * DAY_S)
    host = WebHost("one.example", 0.1, 0.0, 10**9, (NEVER, NEVER), sitemap, False)
    return Page(0, host, rate, rate, NEVER, 1 / rate if period else 0.0, 0.0, dies_at, True, False)


def test_page_without_signs_is_fresh_as_in_equal_intervals() -> None:
    """One page, one request a day for 50 days: 0.5 and 2 more may be left over, and the first copy is free."""
    copies = 50 + 0.5 * 0.02 + 2 + 1
    events = 50 / copies / 4
    expected = (1 - exp(-events)) / events
    assert freshness_bound(web_of(page(4.0)), 1, 50 * DAY_S) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("period", [False, True])
def test_page_whose_changes_are_known_needs_a_request_for_each(period: bool) -> None:
    """It changes 100 times in 50 days, so a request a day keeps about half of its changes fresh."""
    known = page(0.5, period=period, sitemap=Sitemap.RIGHT)
    assert freshness_bound(web_of(known), 1, 50 * DAY_S) == pytest.approx((52.01 + 1) * 0.5 / 50, abs=0.002)
    assert freshness_bound(web_of(known), 2, 50 * DAY_S) == pytest.approx(1.0, abs=0.001)
    wrong = page(0.5, sitemap=Sitemap.ALWAYS_NOW)
    assert freshness_bound(web_of(wrong), 1, 50 * DAY_S) < 0.47, "a wrong sitemap tells nothing"


def test_budget_goes_to_the_pages_that_gain_most() -> None:
    slow, fast = page(10.0), page(0.01)
    together = freshness_bound(web_of(slow, fast), 1, 50 * DAY_S)
    alone = freshness_bound(web_of(slow), 1, 50 * DAY_S)
    assert together == pytest.approx((alone + 0.0002) / 2, abs=0.001)
    without = freshness_bound(web_of(slow, page(0.01, dies_at=40 * DAY_S)), 1, 50 * DAY_S)
    assert without == pytest.approx(alone, abs=0.001), "a page that is gone does not count"


def test_best_number_of_requests_has_no_better_one_beside_it() -> None:
    """So the price of each page's requests is not too low, and the sum stays an upper bound."""
    drawn = random.Random(7)
    for _ in range(300):
        rate, length_s, price_s = (10 ** drawn.uniform(*low_high) for low_high in ((-9, -3), (3, 8), (3, 7)))
        first_s = drawn.random() * min(length_s, 1 / rate)
        section = Section(rate, length_s, first_s, known=drawn.random() < 0.5)
        best = section.requests(price_s)
        gain = section.fresh_s(best) - price_s * best
        for other in (0.0, best * 0.5, best * 0.99, best * 1.01, best + 1, best * 3):
            assert section.fresh_s(other) - price_s * other <= gain + 1e-6 * length_s


def test_sections_cover_the_measured_time_while_a_page_lives() -> None:
    web = ChangingWeb(seed=5, hosts=60, days=100)
    turned = 0
    for each in web.pages:
        sections = list(sections_of(each, 50 * DAY_S, web.end_s))
        lived_s = max(0.0, min(each.dies_at, web.end_s) - 50 * DAY_S)
        assert sum(section.length_s for section in sections) == pytest.approx(lived_s, abs=1e-3)
        turned += len(sections) == 2
    assert turned > 5


def test_bound_grows_with_the_requests_and_stays_below_one() -> None:
    web = ChangingWeb(seed=5, hosts=20, days=100)
    bounds = [freshness_bound(web, requests, 50 * DAY_S) for requests in (1, 10, 100, 1_000, 100_000)]
    assert bounds == sorted(bounds)
    assert 0 < bounds[0] < bounds[-1] < 1.001
