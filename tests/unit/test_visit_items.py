"""Items in a worker's hands: told before the outcome, under one id however often it is tried, and never too many."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from shared.adapters.local.clock import SystemClock
from shared.domain.archive.model import ArchivedCrawl
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId
from shared.domain.reads.items import PageItems, TakenItem
from shared.ports.broker import Broker
from shared.runtime.supervise import Tasks
from shared.wire.items import decode_items
from shared.wire.messages import UrlOutcome
from workers.archive import WarcArchive
from workers.report import Reporter
from workers.visit_crawls import VisitCrawl
from workers.visit_report import ROOM_ITEM_BYTES, SettledUrl, VisitEnd, VisitReport

ARCHIVED = ArchivedCrawl(CrawlId(7), "docs", "obey", "orb", 1 << 20)
CRAWL = cast(VisitCrawl, SimpleNamespace(crawl_id=CrawlId(7), spec=SimpleNamespace(name="docs"), archived=ARCHIVED))


class Engines:
    """An archive, and a broker that takes items only from the `away`-th try on."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.told: list[tuple[str, str]] = []
        self.items: list[bytes] = []

    def writer(self, crawl: Any) -> "Engines":
        return self

    async def sync(self) -> None:
        self.told.append(("archive", ""))

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        self.told.append(("items", message_id))
        if self.away:
            self.away -= 1
            raise Transient("away", retry_in=0.001)
        self.items.append(data)
        return 1

    async def publish_report(self, partition: int, kind: str, data: bytes, message_id: str) -> int:
        self.told.append((kind, message_id))
        return 1


def reporter_over(engines: Engines) -> Reporter:
    return Reporter(
        broker=cast(Broker, engines),
        archive=cast(WarcArchive, engines),
        clock=SystemClock(),
        producer="p",
        report_s=60.0,
    )


def page(number: int, size: int = 10) -> SettledUrl:
    items = (TakenItem(number.to_bytes(16), "r", b'"' + b"x" * (size - 2) + b'"'),)
    taken = PageItems(HostId(1), Fingerprint(number.to_bytes(16)), "https://a.test/", LeaseId(4096), 1, 0, items)
    return SettledUrl(UrlOutcome(number.to_bytes(16), 1, 0), items=taken)


def visit_of(reporter: Reporter) -> VisitReport:
    return reporter.visit(CRAWL, 7, LeaseId(4096), 1, 1)


def test_items_are_acked_before_outcome_under_one_id_over_retries() -> None:
    async def story() -> None:
        engines = Engines(away=3)
        reporter = reporter_over(engines)
        async with Tasks() as tasks:
            running = tasks.start("report", reporter.run())
            visit = visit_of(reporter)
            visit.add(page(1))
            await visit.finish(VisitEnd(final=True))
            running.cancel()
        assert [what for what, _ in engines.told] == ["archive", *["items"] * 4, "outcome"]
        assert len({name for what, name in engines.told if what == "items"}) == 1

    asyncio.run(story())


def test_visit_starts_no_url_above_the_pending_item_bytes() -> None:
    async def story() -> None:
        engines = Engines()
        reporter = reporter_over(engines)
        visit = visit_of(reporter)
        size = ROOM_ITEM_BYTES // 128
        for number in range(127):
            visit.add(page(number, size))
        await asyncio.wait_for(reporter.wait_for_capacity(), 30)
        visit.add(page(127, size))
        waiting = asyncio.ensure_future(reporter.wait_for_capacity())
        await asyncio.sleep(0)
        assert not waiting.done()
        async with Tasks() as tasks:
            running = tasks.start("report", reporter.run())
            await visit.finish(VisitEnd(final=True))
            await asyncio.wait_for(waiting, 30)
            running.cancel()
        assert max(map(len, engines.items)) <= 512 * 1024
        assert sum(data.count(b'"id"') for data in engines.items) == 128

    asyncio.run(story())


def test_items_of_several_visits_of_a_crawl_go_together() -> None:
    async def story() -> None:
        engines = Engines()
        reporter = reporter_over(engines)
        visits = [visit_of(reporter) for _ in range(5)]
        for number, visit in enumerate(visits):
            visit.add(SettledUrl(page(number).outcome, items=_object(page(number))))
        async with Tasks() as tasks:
            endings = [tasks.start(f"v{n}", visit.finish(VisitEnd(final=True))) for n, visit in enumerate(visits)]
            await asyncio.sleep(0)
            running = tasks.start("report", reporter.run())
            await asyncio.wait(endings)
            running.cancel()
        (data,) = engines.items
        crawl_id, pages = decode_items(data)
        assert (crawl_id, len(pages)) == (7, 5)

    asyncio.run(story())


def _object(settled: SettledUrl) -> PageItems:
    """The page's items, of an object as rules give."""
    assert settled.items is not None
    return settled.items._replace(items=(settled.items.items[0]._replace(data=b'{"a":1}'),))
