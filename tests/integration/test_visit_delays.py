"""The delays of a visit, against real servers: of the spec, of robots.txt and after a slow response."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.test_worker_visit import Serve, urls_of
from tests.support.api.scripted_owner import owner_of, spec_for, worker
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web import log_judge
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, page, raw_server
from tests.support.web.synthetic_site import SyntheticSite


def test_the_delay_counts_from_the_end_of_a_response_robots_included(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    site = SyntheticSite(pages=10, latency_s=(0.05,))
    served = web(site)
    urls = urls_of(served, site, range(5))

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            await owner.ended(await owner.send(*urls, delay_ms=200))

    run(main())
    assert log_judge.smallest_gap(served.log(), served.hosts[0]) >= 0.2


def test_a_crawl_delay_of_robots_is_kept_from_the_first_page_on_and_told(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    site = SyntheticSite(pages=10, crawl_delay_s=0.5)
    served = web(site)
    urls = urls_of(served, site, range(3))

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            last = await owner.ended(await owner.send(*urls, delay_ms=50))
            assert last.note is not None
            assert last.note.crawl_delay_ms == 500

    run(main())
    assert log_judge.smallest_gap(served.log(), served.hosts[0]) >= 0.5


@pytest.mark.parametrize(("status", "delay_ms"), [(b"200 OK", 0), (b"503 Unavailable", -1)])
def test_a_robots_txt_without_crawl_delay_is_told_from_one_not_read(
    server: BrokerServer, tmp_path: Path, status: bytes, delay_ms: int
) -> None:
    """A delay that the site had removed from robots.txt stayed in force for ever."""
    robots = page(b"User-agent: other\nCrawl-delay: 9\n").replace(b"200 OK", status)

    async def script(connection: Connection) -> None:
        while True:
            await connection.send(robots if b" /robots.txt " in await connection.request() else page(b"<p>hi"))

    async def main() -> None:
        async with raw_server(script) as site:
            url = site.url()
            async with owner_of(server, tmp_path, spec_for(url)) as owner, worker(server, tmp_path):
                last = await owner.ended(await owner.send(url))
                assert last.note is not None
                assert last.note.crawl_delay_ms == delay_ms

    run(main())


@pytest.mark.parametrize(("delay_ms", "fetched"), [(50, 4), (0, 1)])
def test_adaptive_delay_follows_a_slow_fetch_within_the_visit(
    server: BrokerServer, web: Serve, tmp_path: Path, delay_ms: int, fetched: int
) -> None:
    """Without a delay, several visits could be under way, so the visit ends."""
    site = SyntheticSite(pages=10, latency_s=(0.1,))
    served = web(site)
    urls = urls_of(served, site, range(4))
    spec = spec_for(urls[0], politeness={"delay_s": delay_ms / 1000, "adaptive": True})

    async def main() -> None:
        async with owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
            lease = await owner.send(*urls, delay_ms=delay_ms)
            left = (await owner.ended(lease)).not_attempted
            assert (len(owner.results(lease)), len(left)) == (fetched, 4 - fetched)

    run(main())
    gaps = [later.begun_ns - earlier.ended_ns for earlier, later in pairwise(served.log()[1:])]
    assert min(gaps, default=10**9) >= 0.4 * 10**9, "five times the duration of a fetch"


def test_adaptive_delay_is_that_of_the_last_fetch(server: BrokerServer, tmp_path: Path) -> None:
    """One slow fetch, such as the first one of a connection, does not slow the rest of the visit."""
    asked: list[float] = []

    async def script(connection: Connection) -> None:
        while True:
            path = (await connection.request()).split()[1]
            asked.append(time.monotonic())
            if path == b"/0":
                await asyncio.sleep(0.3)  # the slow fetch
            await connection.send(page(b"<p>hi"))

    async def main() -> None:
        async with raw_server(script) as site:
            urls = [site.url(f"/{n}") for n in range(4)]
            spec = spec_for(urls[0], politeness={"delay_s": 0.01, "adaptive": True})
            async with owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
                lease = await owner.send(*urls, delay_ms=10)
                await owner.ended(lease)
                assert len(owner.results(lease)) == 4

    run(main())
    slow, *later = [after - before for before, after in pairwise(asked[1:])]
    assert slow >= 0.3 + 5 * 0.3
    assert min(later) < slow / 2


@pytest.mark.long
def test_visit_hands_its_shard_back_instead_of_a_long_wait(server: BrokerServer, web: Serve, tmp_path: Path) -> None:
    """The slot is free for other hosts while this one rests; the next visit has robots.txt and fetches a page."""
    site = SyntheticSite(pages=10)
    served = web(site)
    urls = urls_of(served, site, range(2))

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            first = await owner.ended(await owner.send(*urls, delay_ms=20_000))
            assert (len(first.not_attempted), first.results, first.final) == (2, [], True)
            assert first.quiet_ms >= 0
            await owner.slot_free()
            lease = await owner.send(*urls, delay_ms=20_000)
            last = await owner.ended(lease)
            assert (len(owner.results(lease)), len(last.not_attempted)) == (1, 1)

    run(main())
    assert [exchange.path for exchange in served.log()] == ["/robots.txt", site.path(0)]


def test_delay_longer_than_robots_txt_is_valid_lets_a_page_be_fetched(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy had expired when the delay was over, so each visit fetched robots.txt and no page."""
    monkeypatch.setattr("shared.domain.web.robots.MIN_LIFETIME_S", 0.0)
    monkeypatch.setattr("workers.visit.VISIT_S", 0.5)
    robots = page(b"User-agent: *\nDisallow: /private\n", b"Content-Type: text/plain", b"Cache-Control: max-age=0")

    async def script(connection: Connection) -> None:
        while True:
            asked = (await connection.request()).split()[1]
            await connection.send(robots if asked == b"/robots.txt" else page(b"<p>", b"Content-Type: text/html"))

    async def main() -> None:
        async with (
            raw_server(script) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            for _ in range(2):
                await owner.ended(await owner.send(site.url("/a"), delay_ms=1_000))
                await owner.slot_free()
                owner.rest_ms = 1_000
            assert [request.split()[1] for request in site.requests] == [b"/robots.txt", b"/a"]

    run(main())


def test_redirects_of_robots_txt_are_followed_over_visits_if_delay_is_long(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each visit began with the redirect again and ended before its target, so that no page was ever fetched."""
    monkeypatch.setattr("workers.visit.VISIT_S", 0.5)
    moved = b"HTTP/1.1 301 Moved\r\nLocation: /%s\r\nContent-Length: 0\r\n\r\n"
    answers = {b"/robots.txt": moved % b"r1", b"/r1": moved % b"r2"}

    async def script(connection: Connection) -> None:
        while True:
            asked = (await connection.request()).split()[1]
            await connection.send(answers.get(asked, page(b"", b"Content-Type: text/plain")))

    async def main() -> None:
        async with (
            raw_server(script) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            for _ in range(4):
                await owner.ended(await owner.send(site.url("/a"), delay_ms=1_000))
                await owner.slot_free()
                owner.rest_ms = 1_000
            assert [request.split()[1] for request in site.requests] == [b"/robots.txt", b"/r1", b"/r2", b"/a"]

    run(main())


def test_crawl_delay_is_reported_first_where_spec_sets_no_delay(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    site = SyntheticSite(pages=10, crawl_delay_s=0.5)
    served = web(site)
    urls = urls_of(served, site, range(3))

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            leases = [await owner.send(*urls, slot=slot) for slot in range(3)]
            for lease in leases:
                last = await owner.ended(lease)
                assert last.note is not None
                assert (last.note.crawl_delay_ms, len(last.not_attempted), last.results) == (500, 3, [])

    run(main())
    assert [exchange.path for exchange in served.log()] == ["/robots.txt"]
