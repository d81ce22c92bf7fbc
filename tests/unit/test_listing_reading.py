"""What becomes of the entries of a sitemap or feed: scope, location rules, depth, and bounds."""

import asyncio
import gzip
import tracemalloc
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from shared.domain.crawl.discover_spec import Discover, Sitemaps
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed
from shared.domain.frontier.states import UrlKind, kind_flags, kind_of
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.fetch import Answer, Timings
from shared.domain.web.robots import RobotsRules, Rules
from shared.domain.web.url import locate
from shared.wire.messages import LeftOut, ShardUrl, UrlOutcome
from tests.support.cpu_time import least_cpu_s
from tests.support.web.sitemap_files import urlset
from workers.discover.host_sitemaps import HOPS, HostSitemaps
from workers.discover.listing import MAX_ENTRIES
from workers.discover.reading import MAX_ORIGINS, read_answer
from workers.known_links import KnownLinks
from workers.outlinks import OutlinkResolver
from workers.page_reading import PageReading
from workers.parse.html import MAX_FEEDS
from workers.robots import Robots, RobotsCache
from workers.visit_crawls import VisitCrawl
from workers.visit_report import SettledUrl

CASES = Path(__file__).parents[1] / "conformance" / "cases" / "sitemap_locations.yaml"
SITEMAP = "http://a.example/maps/sitemap.xml"
BOTH = Discover(sitemaps=Sitemaps.WELL_KNOWN, feeds=True)


class Crawl:
    """What of a VisitCrawl the reading of a sitemap needs."""

    def __init__(self, scope: Scope | None = None, discover: Discover = BOTH) -> None:
        self.spec = CrawlSpec(seeds=(Seed(url="http://a.example/docs/"),), scope=scope or Scope(), discover=discover)
        self.scope = CompiledScope(self.spec)
        self.product = "orb"
        self.skips_body = None
        self.outlinks = OutlinkResolver(CrawlId(1), Revision(1), self.scope, self.spec.extract, KnownLinks(1 << 17))

    def obeys_robots(self, host: str) -> bool:
        return True


class Cache:
    """The robots rules that workers have fetched lately. Counts the look-ups."""

    def __init__(self, named_by: list[str], sitemap: str) -> None:
        self.rules = {origin: robots(f"Sitemap: {sitemap}") for origin in named_by}
        self.asked: list[str] = []

    async def known(self, origin: str) -> Robots | None:
        self.asked.append(origin)
        return self.rules.get(origin)


def robots(text: str) -> Robots:
    return Robots(Rules(RobotsRules(text.encode())))


def reading(
    body: bytes,
    *,
    url: str = SITEMAP,
    kind: UrlKind = UrlKind.HOST_SITEMAP,
    crawl: Crawl | None = None,
    depth: int = 0,
    hops: int = 1,
    cache: Cache | None = None,
    rules: dict[str, Robots] | None = None,
    mime: str = "application/xml",
    status: int = 200,
) -> PageReading:
    page = locate(url)
    assert page is not None
    answer = Answer(url, status, (("content-type", mime),), b"", b"", body, body, "127.0.0.1", Timings())
    entry = ShardUrl(url, depth, 1, hops, kind=kind)
    known = cast(RobotsCache, cache or Cache([], url))
    return run(read_answer(cast(VisitCrawl, crawl or Crawl()), page, entry, answer, 0, rules or {}, known))


def run(reading: Coroutine[Any, Any, PageReading]) -> PageReading:
    """Run `reading`. Its task has no result, since `asyncio.run` writes that as text: a third of a second for a large
    one."""
    results: list[PageReading] = []

    async def read() -> None:
        results.append(await reading)

    asyncio.run(read())
    return results[0]


def reading_at(body: bytes, *, crawl: Crawl, at_ms: int, stored_ms: int = 0) -> PageReading:
    """The reading of a sitemap that was requested at a moment, and before that at `stored_ms`."""
    page = locate(SITEMAP)
    assert page is not None
    answer = Answer(SITEMAP, 200, (("content-type", "text/xml"),), b"", b"", body, body, "127.0.0.1", Timings())
    entry = ShardUrl(SITEMAP, 0, 1, 1, kind=UrlKind.HOST_SITEMAP, stored_ms=stored_ms)
    known = cast(RobotsCache, Cache([], SITEMAP))
    return run(read_answer(cast(VisitCrawl, crawl), page, entry, answer, at_ms, {}, known))


def found(page: PageReading) -> list[str]:
    return [location.url for location in page.found]


def index(*urls: str) -> bytes:
    return b"<sitemapindex>%s</sitemapindex>" % b"".join(f"<sitemap><loc>{u}</loc></sitemap>".encode() for u in urls)


@pytest.mark.parametrize("case", yaml.safe_load(CASES.read_text()), ids=lambda case: f"{case['sitemap']}-{case['url']}")
def test_sitemap_lists_only_what_its_location_or_robots_permits(case: dict[str, Any]) -> None:
    kind = UrlKind.HOST_SITEMAP if case.get("kind") else UrlKind.SITEMAP
    body = (index if case.get("index") else urlset)(case["url"].replace("&", "&amp;"))
    cache = Cache(case.get("named_by", []), case["sitemap"])
    own = {origin: rules for origin, rules in cache.rules.items() if case["sitemap"].startswith(origin)}
    page = reading(body, url=case["sitemap"], kind=kind, crawl=Crawl(Scope(mode=ScopeMode.ANY)), cache=cache, rules=own)
    assert bool(page.found) == case["listed"]
    assert page.left_out == ({} if case["listed"] else {"sitemap_location": 1})


def test_entries_are_pages_one_level_deeper_and_known_ones_stay() -> None:
    crawl = Crawl()
    page = reading(
        urlset("http://a.example/1", "http://a.example/1#x", SITEMAP, "http://b.example/"), crawl=crawl, depth=3
    )
    assert found(page) == ["http://a.example/1"]
    assert (page.kind, page.depth, page.hops, page.entries) == (UrlKind.LISTED, 4, 0, 4)
    assert page.left_out == {"other_host": 1}
    assert page.outlinks is not None
    crawl.outlinks.acknowledged(page.outlinks)
    again = reading(urlset("http://a.example/1"), crawl=crawl, depth=3)
    assert (again.found, again.links) == ((), 1)


def test_index_names_sitemaps_at_its_own_depth_and_never_itself() -> None:
    page = reading(index(SITEMAP, "http://a.example/maps/1.xml"), depth=2, hops=3)
    assert found(page) == ["http://a.example/maps/1.xml"]
    assert (page.kind, page.depth, page.hops) == (UrlKind.HOST_SITEMAP, 2, 4)
    deepest = reading(index("http://a.example/2.xml"), hops=10)
    assert (deepest.found, deepest.left_out) == ((), {"redirects": 1})


def test_patterns_and_prefixes_apply_to_entries_and_not_to_sitemaps() -> None:
    crawl = Crawl(Scope(mode=ScopeMode.PREFIX, include=("/docs/[a-z]+$",), exclude=("secret",)))
    assert found(reading(index("http://a.example/1.xml", "http://a.example/secret.xml"), crawl=crawl)) == [
        "http://a.example/1.xml"
    ]
    listed = urlset("http://a.example/docs/a", "http://a.example/docs/1", "http://a.example/blog/a")
    assert found(reading(listed, crawl=crawl)) == ["http://a.example/docs/a"]


def test_depth_limit_of_crawl_holds_for_entries() -> None:
    crawl = Crawl(Scope(max_depth=1))
    assert found(reading(urlset("http://a.example/1"), crawl=crawl)) == ["http://a.example/1"]
    assert reading(urlset("http://a.example/1"), crawl=crawl, depth=1).left_out == {"depth": 1}
    assert reading(index("http://a.example/1.xml"), crawl=crawl, depth=1).left_out == {"depth": 1}


def test_file_found_as_page_is_read_by_its_root_only_if_asked_for() -> None:
    body = urlset("http://a.example/maps/1")
    assert found(reading(body, kind=UrlKind.PAGE)) == ["http://a.example/maps/1"]
    without = reading(body, kind=UrlKind.PAGE, crawl=Crawl(discover=Discover(feeds=True)))
    assert (without.found, without.entries) == ((), -1)
    feed = b"<rss><channel><item><link>http://a.example/1</link></item></channel></rss>"
    assert found(reading(feed, kind=UrlKind.PAGE)) == ["http://a.example/1"]
    assert reading(feed, kind=UrlKind.PAGE, crawl=Crawl(discover=Discover(sitemaps=Sitemaps.ROBOTS))).entries == -1


def test_feed_that_page_names_may_list_any_url_in_scope() -> None:
    feed = b"<rss><channel><item><link>/1</link></item></channel></rss>"
    assert found(reading(feed, kind=UrlKind.FEED)) == ["http://a.example/1"]
    assert reading(feed, kind=UrlKind.SITEMAP).left_out == {"sitemap_location": 1}, "as a sitemap the rule applies"


@pytest.mark.parametrize(
    ("body", "mime"),
    [(b"<!doctype html><a href=/x>x</a>", "text/html"), (b"not found", "text/plain"), (b"", "text/xml")],
)
def test_file_found_as_sitemap_that_is_none_has_no_entries_and_a_reason(body: bytes, mime: str) -> None:
    page = reading(body, mime=mime)
    assert (page.found, page.entries) == ((), 0)
    assert page.problem


def test_missing_sitemap_is_no_listing_and_redirect_keeps_its_kind() -> None:
    assert reading(b"", status=404).entries == -1
    page = locate("http://a.example/sitemap.xml")
    assert page is not None
    moved = (("location", "/maps/new.xml"), ("content-type", "text/html"))
    answer = Answer(page.url, 301, moved, b"", b"", b"", b"", "127.0.0.1", Timings())
    crawl = cast(VisitCrawl, Crawl(Scope(mode=ScopeMode.PREFIX)))
    entry = ShardUrl(page.url, 0, 1, 1, kind=UrlKind.HOST_SITEMAP)
    read = asyncio.run(read_answer(crawl, page, entry, answer, 0, {}, cast(RobotsCache, Cache([], ""))))
    assert (found(read), read.kind, read.hops) == (["http://a.example/maps/new.xml"], UrlKind.HOST_SITEMAP, 2)


def test_robots_of_other_hosts_are_looked_up_to_a_limit() -> None:
    cache = Cache(["http://h1.example"], SITEMAP)
    urls = [f"http://h{n}.example/" for n in range(MAX_ORIGINS + 50)]
    page = reading(urlset(*urls), kind=UrlKind.SITEMAP, crawl=Crawl(Scope(mode=ScopeMode.ANY)), cache=cache)
    assert found(page) == ["http://h1.example/"]
    assert len(cache.asked) == len(set(cache.asked)) == MAX_ORIGINS


def test_page_names_its_feeds_up_to_the_limit() -> None:
    link = "<link rel='Alternate stylesheet' type='application/{}+xml; charset=utf-8' href='/feed/{}'>"
    other = "<link rel=alternate hreflang=de href=/de><link rel=alternate type=text/html href=/print>"
    body = other + "".join(link.format("rss" if n % 2 else "atom", n) for n in range(MAX_FEEDS + 5))
    page = reading(body.encode(), kind=UrlKind.PAGE, mime="text/html", depth=2)
    assert page.feeds is not None
    assert [feed.url for feed in page.feeds.fresh] == [f"http://a.example/feed/{n}" for n in range(MAX_FEEDS)]
    assert (page.feeds.depth, page.entries, page.found) == (2, -1, ())
    without = reading(body.encode(), kind=UrlKind.PAGE, mime="text/html", crawl=Crawl(discover=Discover()))
    assert without.feeds is None


def settled(
    crawl: Crawl, text: str, *, url: str = "http://a.example/", depth: int = 0, visit: HostSitemaps
) -> SettledUrl:
    outcome = UrlOutcome(bytes(16), 1, 0, left_out=[LeftOut("other_host", 2, ["http://x.example/"])])
    rules = {"http://a.example": robots(text)}
    return visit.added(SettledUrl(outcome), cast(VisitCrawl, crawl), 1, "a.example", ShardUrl(url, depth), rules)


def test_sitemaps_of_robots_travel_with_first_url_of_visit() -> None:
    crawl, visit = Crawl(Scope(mode=ScopeMode.DOMAIN)), HostSitemaps()
    text = "Sitemap: /1.xml\nSitemap: http://www.a.example/2.xml\nSitemap: http://b.example/3.xml"
    first = settled(crawl, text, depth=1, visit=visit)
    assert [(links.kind, [at.url for at in links.links], links.depth, links.hops) for links in first.found] == [
        (UrlKind.HOST_SITEMAP, ["http://a.example/1.xml"], 1, HOPS),
        (UrlKind.SITEMAP, ["http://www.a.example/2.xml"], 1, HOPS),
    ]
    assert first.outcome.left_out == [
        LeftOut("other_host", 2, ["http://x.example/"]),
        LeftOut("other_domain", 1, ["http://b.example/3.xml"]),
    ]
    assert settled(crawl, text, depth=1, visit=visit).found == ()
    assert settled(crawl, text, visit=visit).found != (), "nearer to the seeds"
    for outlinks in first.outlinks:
        crawl.outlinks.acknowledged(outlinks)
    again = settled(crawl, text, depth=1, visit=HostSitemaps())
    assert (again.found, len(again.outcome.left_out)) == ((), 1), "what was acknowledged or counted is not repeated"


@pytest.mark.parametrize(
    ("sitemaps", "text", "urls"),
    [
        (Sitemaps.NONE, "Sitemap: /1.xml", []),
        (Sitemaps.ROBOTS, "Disallow: /x", []),
        (Sitemaps.WELL_KNOWN, "Disallow: /x", ["http://a.example/sitemap.xml"]),
        (Sitemaps.WELL_KNOWN, "Sitemap: /1.xml", ["http://a.example/1.xml"]),
    ],
)
def test_well_known_path_is_tried_only_where_robots_names_none(sitemaps: Sitemaps, text: str, urls: list[str]) -> None:
    page = settled(Crawl(discover=Discover(sitemaps=sitemaps)), text, visit=HostSitemaps())
    assert [location.url for links in page.found for location in links.links] == urls


@pytest.mark.parametrize("kind", list(UrlKind))
def test_kind_of_url_is_kept_beside_other_flags(kind: UrlKind) -> None:
    assert kind_of(kind_flags(kind) | 31) is kind
    assert kind_flags(kind) & 31 == 0


def large(entries: int) -> bytes:
    return gzip.compress(urlset(*(f"http://a.example/part-{n % 97}/item-{n}?a=1&amp;b={n}" for n in range(entries))))


def test_largest_sitemap_costs_little_processor_time() -> None:
    """1 s of CPU is wanted on a quiet machine; the rest is for slow ones."""
    body = large(MAX_ENTRIES)
    assert least_cpu_s(lambda: reading(body), enough=1.8) < 1.8
    page = reading(body)
    assert len(page.found) == page.entries == MAX_ENTRIES


def test_memory_for_largest_sitemap_stays_below_64_mib() -> None:
    """An entry needs the same memory in a small sitemap. Tracing the largest one would take long."""
    peaks = []
    for entries in (4_000, 9_000):
        body, crawl = large(entries), Crawl()
        tracemalloc.start()
        try:
            reading(body, crawl=crawl)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert 0 < (peaks[1] - peaks[0]) / 5_000 * MAX_ENTRIES < 64 << 20
