"""What is kept so that it need not be worked out again: bounded, and whoever was forgotten is worked out anew."""

import asyncio
from typing import Any, cast

import pytest

from shared.adapters.local.clock import SystemClock
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.ids import CrawlId, Revision
from shared.domain.web import url
from shared.domain.web.robots import AllowAll, RobotsRecord
from shared.ports.broker import Broker
from shared.ports.specs import PublishedSpec
from workers import robots
from workers import visit_crawls as crawls
from workers.known_links import KnownLinks
from workers.robots import Robots, RobotsCache
from workers.visit_crawls import VisitCrawls


def test_links_and_hosts_that_were_worked_out_are_kept_up_to_a_bound() -> None:
    url._located.clear()
    first = url.Resolver("http://h0.test/").resolve("a")
    for number in range(2 * url.LOCATED_CACHE):
        assert url.Resolver(f"http://h{1 + number % 100}.test/").resolve(str(number)) is not None
        assert len(url._located) <= 2 * url.LOCATED_CACHE
    again = url.Resolver("http://h0.test/").resolve("a")
    assert again == first
    assert again is not first, "it was forgotten, and is worked out again"
    assert url.Resolver("http://h0.test/").resolve("a") is again
    for number in range(3 * url.LOCATED_CACHE):
        assert url.Resolver("http://large.test/").resolve(str(number)) is not None
    assert len(url._located) <= 2 * url.LOCATED_CACHE + 2
    for cached in (url.registrable_domain, lambda host: url.partition_of(host, 64)):
        first_host = cached("h0.test")
        for number in range(url.HOST_CACHE + 10):
            cached(f"h{number}.test")
        assert cached("h0.test") == first_host
    assert url.registrable_domain.cache_info().currsize == url.HOST_CACHE
    assert url.partition_of.cache_info().currsize == url.HOST_CACHE


class Specs:
    """Every crawl there is asked for, at revision 1."""

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
        spec = parse_spec({"seeds": [f"http://c{crawl_id}.test/"]})
        return PublishedSpec(crawl_id, Revision(1), spec, 8)


def test_crawl_cache_full_evicts_least_recently_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crawls, "_KEPT", 2)

    async def story() -> None:
        active = VisitCrawls(cast(Any, Specs()), KnownLinks(), lambda _: cast(Any, None))
        first, second = [await active.active(CrawlId(number), Revision(1)) for number in (1, 2)]
        assert await active.active(CrawlId(1), Revision(1)) is first
        await active.active(CrawlId(3), Revision(1))
        assert await active.active(CrawlId(1), Revision(1)) is first, "it was used a moment ago"
        again = await active.active(CrawlId(2), Revision(1))
        assert again is not None
        assert second is not None
        assert again is not second
        assert again.spec == second.spec

    asyncio.run(story())


def test_robots_cache_full_evicts_least_recently_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(robots, "CACHE_BYTES", 9_000)
    clock = SystemClock()
    cache = RobotsCache(cast(Broker, None), clock)
    now_ms = clock.unix_ms()

    def keep(origin: str) -> None:
        record = RobotsRecord(status=200, fetched_at_ms=now_ms, lifetime_s=60.0, body=b"x" * 2_000)
        cache._keep(origin, record, Robots(AllowAll("test")))

    keep("http://a.test")
    keep("http://b.test")
    assert cache._fresh("http://a.test", now_ms) is not None
    keep("http://c.test")
    kept = [origin for origin in "abc" if cache._fresh(f"http://{origin}.test", now_ms) is not None]
    assert kept == ["a", "c"]
    keep("http://c.test")
    assert cache._bytes == 8_000, "what takes the place of another is not counted twice"
