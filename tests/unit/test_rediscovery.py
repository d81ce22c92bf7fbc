"""What an owner publishes for a wider scope: every admitted link once, acknowledged before the chunk is done."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.rediscovery import Rediscovery
from shared.domain.archive.model import RecordLocation
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed
from shared.domain.crawl.wider_scope import ReadablePage, ReadablePages, Rediscovered
from shared.domain.errors import Transient
from shared.domain.frontier.command_progress import behind
from shared.domain.frontier.seed_contexts import SeedContext, context_at
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, HostId, Partition, Revision
from shared.domain.web.url import fingerprint, partition_of
from shared.ports.archive import ArchiveUnavailable, PageArchive, RecordUnreadable
from shared.ports.broker import Broker
from shared.wire.messages import Discoveries, decode_discoveries

T = TypeVar("T")
HOST, OTHER = "a.example.com", "b.example.org"
PARTITIONS = 8
RUN = CommandRun("r", CrawlId(1), "rediscover", {"revision": 2}, Partition(0))


class Records:
    """An archive of links by segment; an error in place of links is raised."""

    def __init__(self, records: Mapping[str, Sequence[str] | Exception]) -> None:
        self.records = records

    def outlinks(self, location: RecordLocation) -> Sequence[tuple[str, str]]:
        record = self.records[location.segment]
        if isinstance(record, Exception):
            raise record
        return [(url, "L a/@href") for url in record]

    async def aside(self, work: Callable[[], T]) -> T:
        return work()


class Published:
    """A broker that keeps what it acknowledged; before that it fails as often as `fails`."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.messages: list[tuple[Partition, Discoveries]] = []
        self.ids: list[str] = []

    async def publish_report(self, partition: Partition, kind: str, data: bytes, message_id: str) -> None:
        assert kind == "discovery"
        self.ids.append(message_id)
        if self.fails:
            self.fails -= 1
            raise Transient("away", retry_in=0.0)
        self.messages.append((partition, decode_discoveries(data)))

    def links(self) -> list[str]:
        return [link.url for _, message in self.messages for origin in message.origins for link in origin.links]


def page(name: str, *, unlisted: bool = False) -> ReadablePage:
    url = f"http://{HOST}/{name}"
    at = RecordLocation(name, 0, 1)
    return ReadablePage(HostId(7), HOST, fingerprint(url), url, 1, 0, 0, HOST, at, unlisted)


def crawl(scope: Scope) -> DispatchCrawl:
    spec = CrawlSpec(seeds=(Seed(url=f"http://{HOST}/"),), scope=scope)
    return DispatchCrawl(
        crawl_id=CrawlId(1),
        name="x",
        revision=Revision(2),
        spec=spec,
        state=CrawlState.RUNNING,
        allowance=BudgetReservation(None, None, {}),
    )


def chunk(
    records: Mapping[str, Sequence[str] | Exception],
    broker: Published,
    *pages: ReadablePage,
    scope: Scope = Scope(mode=ScopeMode.ANY),  # noqa: B008  a frozen value
    rest: int | None = 99,
    times: int = 1,
) -> Rediscovered:
    async def run() -> Rediscovered:
        archive, publish = cast(PageArchive, Records(records)), cast(Broker, cast(Any, broker))
        finding = Rediscovery(archive, publish, PARTITIONS)
        for _ in range(times):
            done = await finding.chunk(RUN, crawl(scope), ReadablePages(pages, rest))
        return done

    return asyncio.run(run())


def test_links_go_to_their_partitions_numbered_by_one_producer() -> None:
    broker = Published()
    near, far = f"http://{HOST}/n", f"http://{OTHER}/f"
    done = chunk({"p": [near, far], "q": [far]}, broker, page("p"), page("q"))
    assert (done.pages, done.rest, done.again) == (2, 99, [])
    assert sorted(set(broker.links())) == sorted([near, far])
    assert len({message.producer for _, message in broker.messages}) == 1
    for partition, message in broker.messages:
        hosts = {link.url.split("/")[2] for origin in message.origins for link in origin.links}
        assert {partition_of(host, PARTITIONS) for host in hosts} == {partition}
        assert (message.crawl, message.spec, message.n) == (1, 2, 1)
        assert message.total == sum(len(origin.links) for origin in message.origins)
        assert message.origins[0].host_id == 7


def test_link_that_was_published_is_not_published_again_by_the_same_owner() -> None:
    broker = Published()
    done = chunk({"p": [f"http://{OTHER}/f"]}, broker, page("p"), times=2)
    assert broker.links() == [f"http://{OTHER}/f"]
    assert done.links == 0


def test_chunk_whose_message_got_no_answer_is_repeated_by_another_producer() -> None:
    """The broker may have stored the first message, and would take a second one under its number for a repeat."""

    async def run() -> None:
        broker = Published(fails=1)
        archive = cast(PageArchive, Records({"p": [f"http://{OTHER}/f"]}))
        finding = Rediscovery(archive, cast(Broker, cast(Any, broker)), PARTITIONS)
        pages, wide = ReadablePages((page("p"),), None), crawl(Scope(mode=ScopeMode.ANY))
        with pytest.raises(Transient):
            await finding.chunk(RUN, wide, pages)
        done = await finding.chunk(RUN, wide, pages)
        assert (done.links, broker.links()) == (1, [f"http://{OTHER}/f"])
        assert len({message_id.split(".")[0] for message_id in broker.ids}) == len(broker.ids) == 2

    asyncio.run(run())


def test_chunk_keeps_the_scope_with_which_it_began() -> None:
    """A later revision must not be named for links that it has not judged."""

    async def run() -> None:
        broker, wide = Published(), crawl(Scope(mode=ScopeMode.ANY))

        class Changing(Records):
            async def aside(self, read: Any) -> Any:
                found = await super().aside(read)
                wide.revision = Revision(3)
                return found

        finding = Rediscovery(
            cast(PageArchive, Changing({"p": [f"http://{OTHER}/f"]})), cast(Broker, cast(Any, broker)), PARTITIONS
        )
        await finding.chunk(RUN, wide, ReadablePages((page("p"),), None))
        assert [message.spec for _, message in broker.messages] == [2]

    asyncio.run(run())


def test_page_that_was_kept_out_of_the_archive_is_queued_again() -> None:
    unstored = replace(page("p"), location=None)
    done = chunk({}, Published(), unstored)
    assert (done.pages, done.again) == (1, [(unstored.host_id, unstored.fingerprint)])


def test_chunk_without_pages_needs_no_archive() -> None:
    async def run() -> None:
        finding = Rediscovery(None, cast(Broker, cast(Any, Published())), PARTITIONS)
        wide = crawl(Scope(mode=ScopeMode.ANY))
        assert await finding.chunk(RUN, wide, ReadablePages((), 7)) == Rediscovered(0, 0, [], 7)
        with pytest.raises(Transient):
            await finding.chunk(RUN, wide, ReadablePages((page("p"),), None))

    asyncio.run(run())


def test_incomplete_and_unreadable_records_queue_their_page_again() -> None:
    broker = Published()
    pages = (page("cut", unlisted=True), page("gone"), page("empty"), page("whole"))
    records: dict[str, Sequence[str] | Exception] = {
        "cut": [f"http://{OTHER}/c"],
        "gone": RecordUnreadable("x"),
        "empty": (),
        "whole": [f"http://{OTHER}/w"],
    }
    done = chunk(records, broker, *pages)
    assert done.again == [(each.host_id, each.fingerprint) for each in pages[:3]]
    assert broker.links() == [f"http://{OTHER}/c", f"http://{OTHER}/w"]
    outside = chunk(records, broker, *pages, scope=Scope(max_depth=0))
    assert (outside.links, outside.again) == (0, []), "the pages are out of scope now"


def test_archive_that_is_away_ends_the_chunk_before_anything_is_published() -> None:
    broker = Published()
    with pytest.raises(Transient):
        chunk({"p": [f"http://{OTHER}/f"], "q": ArchiveUnavailable("away")}, broker, page("p"), page("q"))
    assert broker.ids == []


def test_chunk_with_many_links_ends_behind_the_pages_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.frontier.rediscovery.LINKS_A_CHUNK", 15)
    monkeypatch.setattr("api.frontier.rediscovery._LINKS_A_MESSAGE", 4)
    broker = Published()
    names = [f"p{n:02}" for n in range(30)]
    pages = [page(name) for name in names]
    records = {name: [f"http://{OTHER}/{name}"] for name in names}
    done = chunk(records, broker, *pages)
    assert (done.pages, done.links) == (20, 20)
    assert done.rest == behind(HostId(7), pages[19].fingerprint)
    sizes = [sum(len(origin.links) for origin in message.origins) for _, message in broker.messages]
    assert sizes == [4] * 5
    assert [message.n for _, message in broker.messages] == [1, 2, 3, 4, 5]


def test_links_found_again_have_the_context_of_their_page() -> None:
    broker, red = Published(), SeedContext((("team", "red"),))
    labelled = replace(page("p"), context=red)
    chunk({"p": [f"http://{HOST}/1"], "q": [f"http://{HOST}/2"]}, broker, labelled, page("q"))
    found = {
        link.url: context_at(message.contexts, message.context_of, place)
        for _, message in broker.messages
        for place, origin in enumerate(message.origins)
        for link in origin.links
    }
    assert found == {f"http://{HOST}/1": red, f"http://{HOST}/2": None}
