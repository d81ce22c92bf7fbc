"""The dates of sitemaps and feeds, and which of them a worker reports."""

import gzip
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.sitemaps import MAX_DATE_CHARS, date_s, general_date_s
from shared.domain.web.url import locate
from shared.wire.messages import decode_discoveries
from tests.support.cpu_time import least_cpu_s
from tests.unit.test_listing_reading import SITEMAP, Crawl, found, reading_at
from workers.discover.listing import MAX_ENTRIES
from workers.discover.reading import ALL_NOW, LASTMOD_AHEAD_S, LASTMOD_BACK_S
from workers.discoveries import Numbering, PageLinks, batches_by_stream

NOW_S = 1_800_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2004-12-23T18:00:15+00:00", 1_103_824_815),
        ("2004-12-23T18:00:15Z", 1_103_824_815),
        ("2004-12-23T18:00:15.250Z", 1_103_824_815),
        ("2004-12-23T20:00:15+02:00", 1_103_824_815),
        ("2004-12-23T13:00:15-0500", 1_103_824_815),
        ("2004-12-23T18:00+00:00", 1_103_824_800),
        (" 2004-12-23 ", 1_103_760_000),
        ("2004-12", 1_101_859_200),
        ("2004", 1_072_915_200),
        ("2004-12-23 18:00:15", 1_103_824_815),
        ("Thu, 23 Dec 2004 18:00:15 GMT", 1_103_824_815),
        ("23 Dec 2004 13:00:15 EST", 1_103_824_815),
        ("Thu, 23 December 2004 19:00:15 +0100", 1_103_824_815),
        ("2004-02-30", 0), ("2004-13-01", 0), ("2004-12-23T25:00Z", 0), ("23.12.2004", 0), ("yesterday", 0), ("", 0),
        ("1904-12-23", 0), ("0000-00-00", 0),
        ("2004-12-23" + " " * 80, 1_103_760_000), ("2" * (MAX_DATE_CHARS + 1), 0), ("٢٠٠٤", 0),
    ],
)  # fmt: skip
def test_dates_of_w3c_and_rfc_822_are_read_and_others_are_none(text: str, seconds: int) -> None:
    assert date_s(text) == seconds


@given(st.text(max_size=80) | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", fullmatch=True))
def test_date_of_any_text_is_read_without_an_exception(text: str) -> None:
    assert date_s(text) >= 0


USUAL = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9](T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](Z|[+-][0-2][0-9]:[0-9]{2}))?", fullmatch=True
)

EXACT = st.datetimes(timezones=st.timezones()).map(lambda at: at.isoformat("T", "seconds"))


@given(USUAL | EXACT | st.text(max_size=26))
def test_usual_forms_of_date_are_read_as_by_the_general_form(text: str) -> None:
    assert date_s(text) == general_date_s(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        "2004-W52-4", "2004-12-23T24:00:00Z", "2004-12-23T18:00:60Z", "2004-12-23T18:00:15+99:99", "0000-12-23",
        "2004-12-23T18:00:15-00:60", "2004-12-23t18:00:15Z", "0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00",
        "2004-02-30T18:00:15Z", "٢٠٠٤-12-23", "2004-12-2\n", "2004-12-23T18:00:15,0Z", "1969-12-31T23:59:59Z",
    ],
)  # fmt: skip
def test_odd_dates_that_look_usual_are_read_as_by_the_general_form(text: str) -> None:
    assert date_s(text) == general_date_s(text.strip())


def crawl(policy: RecrawlPolicy = RecrawlPolicy.ADAPTIVE) -> Crawl:
    made = Crawl()
    made.spec = type(made.spec)(
        seeds=made.spec.seeds,
        discover=made.spec.discover,
        recrawl=Recrawl(policy=policy, requests_per_day=10 if policy is RecrawlPolicy.ADAPTIVE else None),
    )
    return made


def dated(dates: dict[str, str]) -> bytes:
    entries = "".join(f"<url><lastmod>{at}</lastmod><loc>{url}</loc></url>" for url, at in dates.items())
    return f"<urlset>{entries}</urlset>".encode()


def iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


URLS = [f"http://a.example/{n}" for n in range(4)]


def read(made: Crawl, dates: dict[str, str], **entry: Any) -> Any:
    return reading_at(dated(dates), crawl=made, at_ms=NOW_S * 1000, **entry)


def test_known_pages_are_reported_again_only_with_a_later_date() -> None:
    made = crawl()
    first = read(made, {url: iso(NOW_S - 86_400 * 30) for url in URLS})
    assert found(first) == URLS
    assert set(first.lastmods.values()) == {NOW_S - 86_400 * 30}
    made.outlinks.acknowledged(first.outlinks)
    since_s = NOW_S - 3_600
    dates = dict(zip(URLS, map(iso, (since_s - LASTMOD_BACK_S - 1, since_s - 60, NOW_S - 60, 0)), strict=True))
    again = read(made, dates, stored_ms=since_s * 1000)
    assert found(again) == URLS[1:3]
    assert again.lastmods == {URLS[1]: since_s - 60, URLS[2]: NOW_S - 60}
    assert again.links == len(URLS)


def test_future_dates_and_the_present_time_on_all_entries_are_ignored() -> None:
    ahead = read(crawl(), {URLS[0]: iso(NOW_S + LASTMOD_AHEAD_S), URLS[1]: iso(NOW_S + LASTMOD_AHEAD_S + 1)})
    assert ahead.lastmods == {URLS[0]: NOW_S + LASTMOD_AHEAD_S}
    many = {f"http://a.example/{n}": iso(NOW_S - n) for n in range(ALL_NOW)}
    assert read(crawl(), many).lastmods == {}
    assert len(read(crawl(), many | {"http://a.example/old": iso(NOW_S - 86_400)}).lastmods) == ALL_NOW + 1


def test_crawl_without_an_adaptive_policy_sends_no_dates() -> None:
    for policy in (RecrawlPolicy.NEVER, RecrawlPolicy.FIXED):
        made = crawl(policy)
        page = read(made, {url: iso(NOW_S - 60) for url in URLS})
        assert (found(page), page.lastmods) == (URLS, {})
        made.outlinks.acknowledged(page.outlinks)
        assert found(read(made, {url: iso(NOW_S - 30) for url in URLS})) == []


@pytest.mark.parametrize("lastmods", [{}, {URLS[1]: 7, URLS[3]: 9}])
def test_dates_travel_beside_their_links_and_take_no_byte_without_any(lastmods: dict[str, int]) -> None:
    made = crawl()
    locations = [location for url in URLS if (location := locate(url)) is not None]
    page = locate(SITEMAP)
    assert page is not None
    made.crawl_id, made.revision, made.partitions = CrawlId(1), Revision(1), 1  # type: ignore[attr-defined]
    links = PageLinks(made, 1, page.host, page.fingerprint, tuple(locations), 1, 0, lastmods=lastmods)  # type: ignore[arg-type]
    [(stream, [batch])] = batches_by_stream([links]).items()
    data, _ = Numbering("w").message(stream, batch, 0)
    assert (b"lastmods" in data) == bool(lastmods)
    message = decode_discoveries(data)
    assert message.lastmods == ([[0, 7, 0, 9]] if lastmods else [])


@pytest.mark.long
def test_dates_of_largest_sitemap_cost_little_processor_time() -> None:
    """1.5 s of CPU are wanted on a quiet machine; the rest is for slow ones. Each entry has a date of its own."""
    dates = {f"http://a.example/part-{n % 97}/item-{n}?a=1&amp;b={n}": iso(NOW_S - 37 * n) for n in range(MAX_ENTRIES)}
    body, made = gzip.compress(dated(dates)), crawl()
    assert least_cpu_s(lambda: reading_at(body, crawl=made, at_ms=NOW_S * 1000), enough=2.2) < 2.2
    assert len(reading_at(body, crawl=made, at_ms=NOW_S * 1000).lastmods) == MAX_ENTRIES
