"""A crawl is deleted, paused or changed while its pages are under way: what the web and the archive see of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import pytest

from shared.domain.crawl.spec import CrawlSpec
from shared.domain.frontier.states import UrlEnd
from shared.domain.web.url import fingerprint
from shared.wire.messages import Gone
from tests.support.api.scripted_owner import ScriptedOwner, owner_of, paths, spec_for, worker
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web import log_judge
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, RawServer, page, raw_server
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web
from workers import visit

HTML = b"Content-Type: text/html"


def spec(agent: str = "one", **politeness: float | bool) -> CrawlSpec:
    return spec_for(
        "http://127.0.0.1/",
        politeness={"obey_robots": False, **politeness},
        fetch={"user_agent": agent},
    )


class Held:
    """Answers at once, but the path `/held` only when `release` is set; `asked` and `gone` are of that path."""

    def __init__(self) -> None:
        self.asked, self.release, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        while True:
            request = await connection.request()
            if b" /held " in request:
                self.asked.set()
                async with asyncio.TaskGroup() as group:
                    leaving = group.create_task(connection.gone())
                    answering = group.create_task(self.release.wait())
                    await asyncio.wait({leaving, answering}, return_when=asyncio.FIRST_COMPLETED)
                    leaving.cancel()
                    answering.cancel()
                if not self.release.is_set():
                    self.gone.set()
                    return
            await connection.send(page(b'<title>t</title><a href="/found">f</a>', HTML))


def agents(requests: list[bytes]) -> list[str]:
    """The User-Agent of each request."""
    return [
        line.partition(b": ")[2].decode()
        for request in requests
        for line in request.split(b"\r\n")
        if line.lower().startswith(b"user-agent:")
    ]


@asynccontextmanager
async def at_work(
    server: BrokerServer, folder: Path, declared: CrawlSpec
) -> AsyncIterator[tuple[Held, RawServer, ScriptedOwner]]:
    """A worker, a site that holds its answers, and the owner of the crawl. Its visits wait for a host however long the
    wait is, so that only the crawl's state ends them."""
    held = Held()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visit, "PATIENCE_S", inf)
        async with raw_server(held) as site, owner_of(server, folder, declared) as owner, worker(server, folder):
            yield held, site, owner


def archived(folder: Path) -> dict[str, int]:
    """The archive's files and their sizes."""
    return {path.name: path.stat().st_size for path in (folder / "archive").iterdir()}


def test_visit_of_deleted_crawl_ends_and_archives_nothing_more(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        held = Held()
        async with raw_server(held) as site, owner_of(server, tmp_path, spec()) as owner:
            async with worker(server, tmp_path):
                urls = [site.url("/quick"), site.url("/held"), site.url("/never")]
                lease = await owner.send(*urls)
                await held.asked.wait()
                await owner.until(lambda: bool(owner.results(lease)))
                await owner.publish_spec(spec(), gone=True)
                await held.gone.wait()
                last = await owner.ended(lease)
                assert last.not_attempted == [fingerprint(url) for url in urls[1:]], "its slot is free, nothing is lost"
                assert paths(owner.results(lease), urls) == urls[:1]
                await owner.slot_free()
                async with asyncio.timeout(30):
                    while list((tmp_path / "archive").glob("*.open")):  # noqa: ASYNC110  a file has no event for it
                        await asyncio.sleep(0.01)
                kept = archived(tmp_path)
                assert kept
                queued = await owner.send(site.url("/more"), slot=1)
                assert (await owner.ended(queued)).not_attempted == [fingerprint(site.url("/more"))]
                owner.on_begin = lambda _: Gone()
                await owner.send(site.url("/more"), slot=2)
                await owner.slot_free(2)
                assert len(site.requests) == 2
            assert archived(tmp_path) == kept, "finished when the last visit was over, not when the worker ends"

    run(main())


def test_visit_waiting_for_host_ends_when_its_crawl_is_deleted(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(server, tmp_path, spec()) as (_, site, owner):
            lease = await owner.send(site.url("/quick"), site.url("/never"), delay_ms=25_000)
            await owner.until(lambda: bool(owner.results(lease)))
            await owner.publish_spec(spec(), gone=True)
            assert (await owner.ended(lease)).not_attempted == [fingerprint(site.url("/never"))]
            assert len(site.requests) == 1

    run(main())


def test_a_paused_crawl_finishes_what_is_in_flight_and_hands_back_the_rest(
    server: BrokerServer, tmp_path: Path
) -> None:
    async def main() -> None:
        async with at_work(server, tmp_path, spec()) as (held, site, owner):
            resting = await owner.send(site.url("/quick"), site.url("/later"), delay_ms=25_000, slot=1)
            await owner.until(lambda: bool(owner.results(resting)))
            urls = [site.url("/held"), site.url("/never")]
            lease = await owner.send(*urls)
            await held.asked.wait()
            await owner.publish_spec(spec(), paused=True)
            last = await owner.ended(resting)
            assert last.not_attempted == [fingerprint(site.url("/later"))]
            assert not held.gone.is_set()
            held.release.set()
            last = await owner.ended(lease)
            [result] = owner.results(lease)
            assert (result.end, paths([result], urls)) == (UrlEnd.ANSWERED, urls[:1])
            assert result.record is not None
            assert last.not_attempted == [fingerprint(urls[1])]
            await owner.slot_free()
            again = await owner.send(site.url("/never"), slot=2)
            assert (await owner.ended(again)).not_attempted == [fingerprint(site.url("/never"))]
            assert len(site.requests) == 2
            await owner.publish_spec(spec())
            await owner.ended(await owner.send(site.url("/never"), slot=3))
            assert len(site.requests) == 3, "resumed"

    run(main())


def test_the_next_request_is_sent_under_the_new_revision(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(server, tmp_path, spec("one", delay_s=0)) as (held, site, owner):
            lease = await owner.send(site.url("/held"), site.url("/next"))
            await held.asked.wait()
            await owner.publish_spec(spec("two", delay_s=0), revision=2)
            held.release.set()
            await owner.ended(lease)
            await owner.caught_up()
            assert agents(site.requests) == ["one", "two"]
            assert [message.spec for message in owner.discoveries] == [1, 2], "links are judged as their page was"

    run(main())


@pytest.mark.long
def test_revision_during_politeness_wait_applies_to_next_request(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(server, tmp_path, spec("one")) as (held, site, owner):
            lease = await owner.send(site.url("/held"), site.url("/next"), delay_ms=4_000)
            await held.asked.wait()
            held.release.set()
            await owner.until(lambda: bool(owner.results(lease)))
            await owner.publish_spec(spec("two"), revision=2)
            await owner.ended(lease)
            assert agents(site.requests) == ["one", "two"]

    run(main())


def test_a_longer_delay_of_a_new_revision_holds_from_the_next_request_on(
    server: BrokerServer, web: Callable[..., Web], tmp_path: Path
) -> None:
    site = SyntheticSite(pages=10)
    served = web(site)
    urls = [served.origins[0] + site.path(number) for number in range(3)]

    async def main() -> None:
        async with owner_of(server, tmp_path, spec()) as owner:
            lease = await owner.send(*urls, delay_ms=50)
            await owner.publish_spec(spec(delay_s=0.5), revision=2)
            async with worker(server, tmp_path):
                await owner.ended(lease)
                assert paths(owner.results(lease), urls) == urls

    run(main())
    assert log_judge.smallest_gap(served.log(), served.hosts[0]) >= 0.5


def test_shard_without_delay_is_handed_back_when_revision_adds_one(server: BrokerServer, tmp_path: Path) -> None:
    """Others of its host may be out: only the owner can keep them apart."""

    async def main() -> None:
        async with at_work(server, tmp_path, spec(delay_s=0)) as (held, site, owner):
            lease = await owner.send(site.url("/held"), site.url("/next"))
            await held.asked.wait()
            await owner.publish_spec(spec(delay_s=1), revision=2)
            held.release.set()
            last = await owner.ended(lease)
            assert (len(owner.results(lease)), last.not_attempted) == (1, [fingerprint(site.url("/next"))])
            assert len(site.requests) == 1

    run(main())
