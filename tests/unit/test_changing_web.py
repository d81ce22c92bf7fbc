"""The simulated web of the recrawl benchmark is the one that its rates describe."""

import statistics
from math import expm1

import pytest

from shared.domain.web.fetch import FailureKind
from tests.support.simulation.changing_web import DAY_S, RATES, SITEMAPS, ChangingWeb, Sitemap, Study, WebHost, trapped


@pytest.fixture(scope="module")
def web() -> ChangingWeb:
    return ChangingWeb(seed=1, hosts=400, days=100)


def test_pages_change_as_often_as_published(web: ChangingWeb) -> None:
    for part, low, high in RATES:
        inside = sum(low <= 0.9999 / page.rate < high for page in web.pages)
        assert inside / len(web.pages) == pytest.approx(part, abs=0.05)


def test_pages_of_the_second_web_change_as_seldom_as_published() -> None:
    lifetimes = sorted(1 / page.rate / DAY_S for page in ChangingWeb(2, 400, 100, Study.BREWINGTON).pages)
    assert statistics.median(lifetimes) == pytest.approx(117, rel=0.15)
    assert statistics.mean(lifetimes) == pytest.approx(138, rel=0.15)


def test_sitemaps_are_as_wrong_as_published(web: ChangingWeb) -> None:
    kinds = [host.sitemap for host in web.hosts]
    with_dates = len(kinds) - kinds.count(Sitemap.NONE)
    assert with_dates / len(kinds) == pytest.approx(0.84 * sum(SITEMAPS) / 2, abs=0.07)
    assert kinds.count(Sitemap.RIGHT) / with_dates == pytest.approx(0.79, abs=0.08)


def test_same_seed_gives_the_same_web_and_another_seed_another(web: ChangingWeb) -> None:
    again, other = ChangingWeb(seed=1, hosts=400, days=100), ChangingWeb(seed=2, hosts=400, days=100)
    drawn = [(page.rate, page.next_change, page.host.name) for page in web.pages]
    assert [(page.rate, page.next_change, page.host.name) for page in again.pages] == drawn
    assert [(page.rate, page.next_change, page.host.name) for page in other.pages] != drawn


def test_fetched_page_changes_as_often_as_its_rate_says() -> None:
    web = ChangingWeb(seed=3, hosts=30, days=4000)
    page = next(page for page in web.pages if not page.period and DAY_S < 1 / page.rate < 9 * DAY_S)
    page.dies_at, page.turns_at, page.host.error_part, page.host.limit = 1e12, 1e12, 0.0, 10**9
    page.host.outage = (1e12, 1e12)
    changed = sum(web.get(page, now * DAY_S).changed for now in range(1, 2000))
    assert changed / 2000 == pytest.approx(-expm1(-page.rate * DAY_S), abs=0.04)


def test_server_judges_requests_that_come_too_soon(web: ChangingWeb) -> None:
    host = WebHost("one.example", 0.5, 0.0, 2, (9_000.0, 9_100.0), Sitemap.NONE, False)
    page = web.pages[0]
    page.host, page.dies_at = host, 1e9
    assert [web.get(page, now).end for now in (0.0, 1.0, 7_200.0)] == [200, 200, 200]
    assert host.impolite == 1
    assert [web.get(page, now).end for now in (7_210.0, 7_220.0)] == [200, 429]
    web.get(page, 7_300.0)
    assert host.impolite == 2, "a Retry-After holds"
    assert web.get(page, 9_050.0).end is FailureKind.CONNECT_TIMEOUT


def test_scope_bounds_endless_spaces() -> None:
    assert 0 < trapped("h1.example", 1) < trapped("h2.example", 2) <= 12
