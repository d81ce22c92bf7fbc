"""Counts that metrics are read from: bounded, only growing, and never moved from one name to another."""

from hypothesis import given
from hypothesis import strategies as st

from api.frontier.stats import bounded_reason
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.ids import CrawlId
from shared.domain.ops.counts import DURATIONS_S, OTHER, CrawlCounts, Histogram, status_class
from shared.domain.web.fetch import FailureKind

STATUS = ("status", "2xx")


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_a_histogram_counts_every_value_up_to_each_bound(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in DURATIONS_S]
    assert histogram.cumulative() == [*expected, len(values)]
    assert histogram.count == len(values)


def test_crawls_beyond_the_limit_are_counted_together() -> None:
    counts = CrawlCounts(2)
    for crawl in range(1, 6):
        counts.of(CrawlId(crawl), f"c{crawl}", 0.0)[STATUS] += crawl
    assert {name: found[STATUS] for name, found in counts.named().items()} == {"c1": 1, "c2": 2, OTHER: 3 + 4 + 5}
    assert [counts.name(CrawlId(crawl)) for crawl in (1, 2, 3)] == ["c1", "c2", OTHER]


def test_an_idle_crawl_makes_room_and_a_busy_one_does_not() -> None:
    counts = CrawlCounts(1, idle_s=10.0)
    counts.of(CrawlId(1), "first", 0.0)[STATUS] += 1
    counts.of(CrawlId(2), "second", 10.0)[STATUS] += 1
    counts.of(CrawlId(1), "first", 10.0)[STATUS] += 1
    counts.of(CrawlId(2), "second", 20.0)[STATUS] += 1
    assert counts.named()["first"][STATUS] == 2
    counts.of(CrawlId(2), "second", 20.1)[STATUS] += 1
    assert {name: found[STATUS] for name, found in counts.named().items()} == {"second": 1, OTHER: 2}


def test_a_crawl_made_anew_under_its_name_goes_on_where_it_was() -> None:
    counts = CrawlCounts()
    counts.of(CrawlId(1), "docs", 0.0)[STATUS] += 3
    counts.of(CrawlId(7), "docs", 1.0)[STATUS] += 4
    assert counts.named()["docs"][STATUS] == 7


def test_what_a_server_may_choose_gives_a_bounded_number_of_labels() -> None:
    reasons = {bounded_reason(f"http_{status}") for status in range(1000)}
    reasons |= {bounded_reason(f"robots_http_{status}") for status in range(1000)}
    reasons |= {bounded_reason(text) for text in ("http_", "http_x", "xhttp_500", "", "made-up", "robots_made-up")}
    assert len(reasons) == 2 * 6 + 1
    assert {status_class(status) for status in range(-1, 1000)} == {"1xx", "2xx", "3xx", "4xx", "5xx", OTHER}


def test_our_own_reasons_keep_their_names() -> None:
    for reason in (*FailureKind, *ExclusionReason, "robots_dns", "poison", "host_unreachable", "max_pages_per_host"):
        assert bounded_reason(str(reason)) == reason
