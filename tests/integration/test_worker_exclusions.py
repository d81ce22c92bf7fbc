"""A worker sends nothing that an exclusion covers: no page, no robots.txt, no redirect of it, at no address."""

from pathlib import Path

import pytest

from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.frontier.states import UrlEnd
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchRequest
from shared.settings import WorkerSettings
from shared.wire.messages import UrlOutcome
from tests.support.api.scripted_owner import owner_of, spec_for, worker
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import LOOPBACK, run
from tests.support.web.raw_server import Connection, page, raw_server
from workers import main as worker_main
from workers.fetch.curl import CurlFetcher
from workers.fetch.pool import FetcherPool
from workers.known_links import KnownLinks
from workers.visit_crawls import VisitCrawls

DENIED = (UrlEnd.DENIED, "owner")
FETCHED = (UrlEnd.ANSWERED, "")


class InForce:
    """The exclusions that the worker has, as the test sets them."""

    def __init__(self) -> None:
        self.current = NO_EXCLUSIONS

    def exclude(self, *targets: str) -> None:
        self.current = Exclusions(self.current.revision + 1, targets)


@pytest.fixture
def in_force(monkeypatch: pytest.MonkeyPatch) -> InForce:
    """What the worker of a cluster reads from etcd."""
    made = InForce()

    def crawls(settings: WorkerSettings, place: None, connections: int) -> VisitCrawls:
        fetchers = worker_main._fetchers(settings, place, connections)
        return VisitCrawls(worker_main._specs(settings, place), KnownLinks(), fetchers, lambda: made.current)

    monkeypatch.setattr(worker_main, "_visit_crawls", crawls)
    return made


def ends(results: list[UrlOutcome]) -> list[tuple[UrlEnd, str]]:
    return [(UrlEnd(result.end), result.reason or "") for result in results]


async def serving(connection: Connection) -> None:
    while True:
        await connection.request()
        await connection.send(page(b"", b"Content-Type: text/plain"))


def paths(requests: list[bytes]) -> list[bytes]:
    return [request.split()[1] for request in requests]


@pytest.mark.parametrize("target", ["127.0.0.1", "127.0.0.0/8", "http://127.0.0.1:{port}/", "127.0.0.1:{port}"])
def test_excluded_host_gets_no_request(server: BrokerServer, tmp_path: Path, in_force: InForce, target: str) -> None:
    async def main() -> None:
        async with raw_server(serving) as site, owner_of(server, tmp_path, spec_for(site.url())) as owner:
            in_force.exclude(target.format(port=site.port))
            async with worker(server, tmp_path):
                lease = await owner.send(site.url("/a"), site.url("/b"))
                last = await owner.ended(lease)
                assert ends(owner.results(lease)) == [DENIED, DENIED]
                assert last.final
            assert (site.requests, site.connections) == ([], [])

    run(main())


def test_url_prefix_denies_its_urls_without_robots(server: BrokerServer, tmp_path: Path, in_force: InForce) -> None:
    async def main() -> None:
        async with raw_server(serving) as site, owner_of(server, tmp_path, spec_for(site.url())) as owner:
            in_force.exclude(site.url("/private/"))
            async with worker(server, tmp_path):
                lease = await owner.send(site.url("/private/a"), site.url("/private/b?x"))
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [DENIED, DENIED]
                assert site.requests == []
                await owner.slot_free()
                lease = await owner.send(site.url("/public"), site.url("/private/c"))
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [FETCHED, DENIED]
            assert paths(site.requests) == [b"/robots.txt", b"/public"]

    run(main())


def test_exclusion_during_a_visit_stops_its_next_request(
    server: BrokerServer, tmp_path: Path, in_force: InForce
) -> None:
    async def main() -> None:
        async def script(connection: Connection) -> None:
            while True:
                if (await connection.request()).split()[1] == b"/1":
                    in_force.exclude("127.0.0.1")
                await connection.send(page(b"", b"Content-Type: text/plain"))

        async with raw_server(script) as site, owner_of(server, tmp_path, spec_for(site.url())) as owner:
            async with worker(server, tmp_path):
                lease = await owner.send(*(site.url(f"/{n}") for n in range(5)), delay_ms=50)
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [FETCHED, FETCHED, DENIED, DENIED, DENIED]
            assert paths(site.requests) == [b"/robots.txt", b"/0", b"/1"]

    run(main())


def test_robots_redirect_to_an_excluded_host_is_not_followed(
    server: BrokerServer, tmp_path: Path, in_force: InForce
) -> None:
    """Then robots.txt is unreachable, so no page of the host is requested."""

    async def main() -> None:
        async with raw_server(serving) as other:

            async def script(connection: Connection) -> None:
                while True:
                    await connection.request()
                    to = other.url("/robots.txt")
                    await connection.send(f"HTTP/1.1 301 M\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())

            async with raw_server(script) as site, owner_of(server, tmp_path, spec_for(site.url())) as owner:
                in_force.exclude(f"127.0.0.1:{other.port}")
                async with worker(server, tmp_path):
                    lease = await owner.send(site.url("/a"))
                    last = await owner.ended(lease)
                    assert (owner.results(lease), len(last.not_attempted)) == ([], 1)
                    assert last.note is not None
                    assert last.note.failure == "robots_excluded"
                assert (other.requests, paths(site.requests)) == ([], [b"/robots.txt"])

    run(main())


def test_name_that_resolves_into_an_excluded_range_is_not_requested() -> None:
    """Neither on a new connection, nor on one that was kept from before the exclusion."""

    async def main() -> None:
        in_force = InForce()
        async with raw_server(serving) as site:
            names = {f"{name}.example:{site.port}": "127.0.0.1" for name in "ab"}
            pool = FetcherPool(lambda rules: CurlFetcher(rules, resolve=names), lambda: in_force.current)
            client = pool.under(LOOPBACK)
            kept = FetchRequest(f"http://a.example:{site.port}/")
            assert isinstance(await client.fetch(kept), Answer)
            in_force.exclude("127.0.0.0/16")
            for url in (kept.url, f"http://b.example:{site.port}/"):
                failure = await client.fetch(FetchRequest(url))
                assert isinstance(failure, FetchFailed), failure
                assert (failure.kind, failure.sent) == (FailureKind.EXCLUDED, False)
                assert "127.0.0.0/16" in failure.detail
            in_force.exclude()
            assert isinstance(await client.fetch(kept), Answer)
            assert len(site.requests) == 2
            await pool.close()

    run(main())


def test_link_is_reported_again_after_an_exclusion_has_ended(
    server: BrokerServer, tmp_path: Path, in_force: InForce
) -> None:
    """The worker did not report links again that it had reported before, so nothing brought released URLs back."""

    async def main() -> None:
        async def linking(connection: Connection) -> None:
            while True:
                await connection.request()
                await connection.send(page(b'<a href="/released">r</a>', b"Content-Type: text/html"))

        async with (
            raw_server(linking) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            for slot, path in enumerate(("/1", "/2", "/3")):
                if path == "/3":
                    in_force.exclude()
                await owner.ended(await owner.send(site.url(path), slot=slot))
            assert owner.links().count(site.url("/released")) == 2, "not for the second page"

    run(main())
