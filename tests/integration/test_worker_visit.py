"""A worker against a real broker and a real web, its owner scripted: what is fetched, and what is said of it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.adapters.objects.local import LocalSegments
from shared.domain.archive.model import RecordLocation
from shared.domain.frontier.states import UrlEnd, UrlKind
from shared.domain.web.fetch import Answer
from shared.domain.web.url import Location, fingerprint
from shared.wire.messages import Begin, Gone, ShardUrl, Superseded, Wait
from tests.support.api.scripted_owner import owner_of, paths, spec_for, worker
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web import log_judge
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, page, raw_server, saying
from tests.support.web.synthetic_site import PageKind, SyntheticSite
from tests.support.web.web_server import Web
from tests.support.whole_records import parse_stored
from workers import page_reading as pages
from workers.page_reading import READ_ON_LOOP, PageReading
from workers.visit_crawls import VisitCrawl

Serve = Callable[..., Web]


def urls_of(web: Web, site: SyntheticSite, pages: range) -> list[str]:
    return [web.origins[0] + site.path(number) for number in pages]


def test_shard_is_fetched_in_order_and_links_precede_outcome(server: BrokerServer, web: Serve, tmp_path: Path) -> None:
    site = SyntheticSite(pages=40)
    served = web(site)
    urls = urls_of(served, site, range(5))

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            lease = await owner.send(*urls)
            last = await owner.ended(lease)
            await owner.slot_free()
            results = owner.results(lease)
            assert paths(results, urls) == urls
            assert [result.end for result in results] == [UrlEnd.ANSWERED] * 5
            assert set(owner.links()) == {
                served.origins[0] + site.path(target) for number in range(5) for target in site.links(number)
            }
            assert last.quiet_ms >= 0
            assert last.not_attempted == []
            for url, result in zip(urls, results, strict=True):
                assert (result.status, result.mime, result.title is not None) == (200, "text/html", True)
                assert result.record is not None
                place = RecordLocation(result.record.segment, result.record.offset, result.record.length)
                stored = parse_stored(LocalSegments(tmp_path / "archive").read(place))
                assert stored.url == url
                assert len(stored.body) == result.size
            numbers = [message.n for message in owner.discoveries]
            assert numbers == list(range(1, len(numbers) + 1))
            assert owner.discoveries[-1].total == len(owner.links())

    run(main())
    asked = [exchange.path for exchange in served.log()]
    assert asked == ["/robots.txt", *(url.removeprefix(served.origins[0]) for url in urls)]


def test_header_of_the_spec_above_ascii_is_sent_as_latin_1(server: BrokerServer, tmp_path: Path) -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(page(b"", b"Content-Type: text/plain"))

    async def main() -> None:
        fetch = {"headers": {"X-Team": "caf\u00e9"}}
        async with (
            raw_server(script) as site,
            owner_of(server, tmp_path, spec_for(site.url(), fetch=fetch)) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(site.url("/a"))
            await owner.ended(lease)
            assert [result.end for result in owner.results(lease)] == [UrlEnd.ANSWERED]
            assert [b"\r\nX-Team: caf\xe9\r\n" in request for request in site.requests] == [True, True]

    run(main())


def test_login_that_a_proxy_wants_for_robots_txt_allows_no_page(server: BrokerServer, tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"

    async def main() -> None:
        async with raw_server(saying(refusal)) as proxy:
            fetch = {"proxy": f"http://127.0.0.1:{proxy.port}"}
            spec = spec_for("http://public.example/", fetch=fetch)
            async with owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
                lease = await owner.send("http://public.example/a")
                last = await owner.ended(lease)
                assert (owner.results(lease), last.note and last.note.failure) == ([], "robots_proxy")
                assert [request.split()[1] for request in proxy.requests] == [b"http://public.example/robots.txt"]

    run(main())


def test_what_robots_forbids_is_denied_and_never_asked_for(server: BrokerServer, web: Serve, tmp_path: Path) -> None:
    site = SyntheticSite(pages=60, private=300)
    served = web(site)
    urls = urls_of(served, site, range(30))
    private = {url for number, url in enumerate(urls) if site.kind(number) is PageKind.PRIVATE}
    assert private

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            lease = await owner.send(*urls)
            await owner.ended(lease)
            denied = [result for result in owner.results(lease) if result.end == UrlEnd.DENIED]
            assert set(paths(denied, urls)) == private
            assert {result.reason for result in denied} == {"robots"}

    run(main())
    log = served.log()
    assert log_judge.asked_before_robots(log) == []
    assert log_judge.disallowed_requested(log, {served.hosts[0]: site.robots()}) == []


def test_with_robots_unreachable_no_page_is_asked_for_and_the_host_is_blamed(
    server: BrokerServer, tmp_path: Path
) -> None:
    async def main() -> None:
        async def busy(connection: Connection) -> None:
            while True:
                await connection.request()
                await connection.send(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")

        async with (
            raw_server(busy) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            last = await owner.ended(await owner.send(site.url("/a"), site.url("/b")))
            assert last.results == []
            assert last.not_attempted == [fingerprint(site.url("/a")), fingerprint(site.url("/b"))]
            assert last.note is not None
            assert (last.note.failure, last.note.retry_after_ms) == ("robots_http_503", 7000)
            assert [request.split()[1] for request in site.requests] == [b"/robots.txt"]
            await owner.ended(await owner.send(site.url("/a"), slot=1))
            assert len(site.requests) == 2, "the next visit asks again: how long to wait is the owner's to say"

    run(main())


def test_address_denied_by_egress_fails_each_url_and_sends_nothing(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async def never(connection: Connection) -> None:
            await connection.request()

        async with raw_server(never) as site:
            spec = spec_for(site.url(), egress={})
            async with owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
                lease = await owner.send(site.url("/a"))
                await owner.ended(lease)
                [result] = owner.results(lease)
                assert (result.end, result.reason) == (UrlEnd.FAILED, "egress_denied")
                assert "--allow-net" in result.detail
            assert site.connections == []

    run(main())


def test_redirect_is_a_response_and_its_target_found_at_same_depth(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async def moved(connection: Connection) -> None:
            while True:
                await connection.request()
                await connection.send(b"HTTP/1.1 301 Moved\r\nLocation: /new?x=1#y\r\nContent-Length: 0\r\n\r\n")

        spec = spec_for("http://127.0.0.1/", politeness={"obey_robots": False})
        async with raw_server(moved) as site, owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
            lease = await owner.send(ShardUrl(site.url("/old"), 3, 1, 2))
            await owner.ended(lease)
            [result] = owner.results(lease)
            assert (result.end, result.status, result.location) == (UrlEnd.ANSWERED, 301, "/new?x=1#y")
            assert result.record is not None
            [link] = [link for message in owner.discoveries for origin in message.origins for link in origin.links]
            assert (link.url, link.depth, link.hops) == (site.url("/new?x=1"), 3, 3)
            assert len(site.requests) == 1

    run(main())


def test_a_host_that_throttles_ends_the_visit_and_the_rest_is_handed_back(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async def throttled(connection: Connection) -> None:
            await connection.request()
            await connection.send(page(b"<title>one</title>", b"Content-Type: text/html"))
            await connection.request()
            await connection.send(b"HTTP/1.1 429 Slow down\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n")
            await connection.gone()

        spec = spec_for("http://127.0.0.1/", politeness={"obey_robots": False})
        async with raw_server(throttled) as site, owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
            lease = await owner.send(site.url("/1"), site.url("/2"), site.url("/3"))
            last = await owner.ended(lease)
            assert [result.status for result in owner.results(lease)] == [200, 429]
            assert owner.results(lease)[1].retry_after_ms == 120_000
            assert last.not_attempted == [fingerprint(site.url("/3"))]

    run(main())


def test_what_the_owner_says_is_done_gone_waited_for_and_left(server: BrokerServer, web: Serve, tmp_path: Path) -> None:
    site = SyntheticSite(pages=10)
    served = web(site)
    urls = urls_of(served, site, range(2))

    async def main() -> None:
        async with (
            owner_of(server, tmp_path, spec_for(urls[0]), ack_wait_s=2) as owner,
            worker(server, tmp_path, ack_wait_s=2),
        ):
            answers = [Gone(), Wait(50), Superseded(), None]
            owner.on_begin = lambda question: answers.pop(0) if answers else owner.go(question)
            await owner.send(urls[0])
            await owner.until(lambda: len(answers) == 3)
            await owner.send(urls[0])  # gone: the slot is free again
            lease = await owner.send(urls[1], slot=1)
            await owner.ended(lease)
            deliveries = [asked.delivery for asked in owner.questions if isinstance(asked, Begin)]
            assert max(deliveries) >= 2

    run(main())


def test_a_message_that_cannot_be_read_is_acknowledged_and_stops_nothing(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    site = SyntheticSite(pages=10)
    served = web(site)
    urls = urls_of(served, site, range(1))

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0])) as owner, worker(server, tmp_path):
            await owner.slot_free()  # puts one there
            await owner.slot_free()  # and another, once the first was acknowledged
            await owner.ended(await owner.send(*urls, slot=3))

    run(main())


def test_a_large_page_is_read_outside_the_loop(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """29 MiB of markup, 103 KB on the wire, held the loop and with it all other visits for 8 s."""
    read_on_loop: list[tuple[int, bool]] = []
    read = pages.read

    def noted(
        crawl: VisitCrawl, at: Location, depth: int, hops: int, answer: Answer, at_ms: int, kind: UrlKind, extra: int
    ) -> PageReading:
        read_on_loop.append((len(answer.decoded), threading.current_thread() is threading.main_thread()))
        return read(crawl, at, depth, hops, answer, at_ms, kind, extra)

    monkeypatch.setattr("workers.discover.reading.read", noted)
    large = b"<svg>" * (READ_ON_LOOP // 4) + b"<a href=/found>"

    async def script(connection: Connection) -> None:
        while True:
            asked = (await connection.request()).split()[1]
            await connection.send(page(large if asked == b"/large" else b"<a href=/small>", b"Content-Type: text/html"))

    async def main() -> None:
        async with (
            raw_server(script) as site,
            owner_of(server, tmp_path, spec_for(site.url(), politeness={"obey_robots": False})) as owner,
            worker(server, tmp_path),
        ):
            await owner.ended(await owner.send(site.url("/large"), site.url("/a")))
            assert set(owner.links()) == {site.url("/found"), site.url("/small")}
            assert read_on_loop == [(len(large), False), (len(b"<a href=/small>"), True)]

    run(main())


def test_a_kept_connection_that_was_closed_costs_no_page_and_keeps_the_delay(
    server: BrokerServer, tmp_path: Path
) -> None:
    """A healthy server whose idle limit is near the delay: 66 of 160 fetches were reset, 7 of 101 pages failed."""
    begun: list[float] = []
    ended: list[float] = []

    async def one_a_connection(connection: Connection) -> None:
        for answers in (True, False):
            await connection.request()
            begun.append(time.monotonic())
            if answers:
                await connection.send(page(b"<p>", b"Content-Type: text/html"))
                ended.append(time.monotonic())

    async def main() -> None:
        spec = spec_for("http://127.0.0.1/", politeness={"obey_robots": False, "delay_s": 0.1})
        async with (
            raw_server(one_a_connection) as site,
            owner_of(server, tmp_path, spec) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(*(site.url(f"/{n}") for n in range(4)), delay_ms=100)
            await owner.ended(lease)
            results = owner.results(lease)
            assert [result.end for result in results] == [UrlEnd.ANSWERED] * 4
            for at in begun[1:]:
                assert at - max(end for end in ended if end < at) >= 0.1

    run(main())
