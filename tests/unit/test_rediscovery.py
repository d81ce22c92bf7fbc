"""What an owner publishes for a wider scope: every admitted link once, acknowledged before the chunk is done."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pytest

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.rediscovery import Rediscovery
from shared.domain.archive.model import RecordLocation
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed
from shared.domain.crawl.wider_scope import ReadablePage, ReadablePages, Rediscovered
from shared.domain.errors import Transient
from shared.domain.frontier.command_progress import behind
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


def test_message_without_an_answer_is_repeated_under_its_number() -> None:
    broker = Published(fails=2)
    chunk({"p": [f"http://{OTHER}/f"]}, broker, page("p"))
    assert len(broker.ids) == 3
    assert len(set(broker.ids)) == 1
    assert [message.n for _, message in broker.messages] == [1]


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
    pages = [page(f"p{n:02}") for n in range(30)]
    records = {each.location.segment: [f"http://{OTHER}/{each.location.segment}"] for each in pages}
    done = chunk(records, broker, *pages)
    assert (done.pages, done.links) == (20, 20)
    assert done.rest == behind(HostId(7), pages[19].fingerprint)
    sizes = [sum(len(origin.links) for origin in message.origins) for _, message in broker.messages]
    assert sizes == [4] * 5
    assert [message.n for _, message in broker.messages] == [1, 2, 3, 4, 5]
