"""A full subject delays only the reports that need it; their order, and the bounds of what waits, stay."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from shared.adapters.local.clock import SystemClock
from shared.domain.archive.model import ArchivedCrawl
from shared.domain.errors import Refused
from shared.domain.ids import CrawlId, Fingerprint, LeaseId, Partition, Revision, numbered
from shared.domain.web.url import Location, fingerprint, host_of, partition_of
from shared.ports.broker import Broker
from shared.runtime.supervise import Tasks
from shared.wire.messages import Discoveries, Outcome, UrlOutcome, decode_discoveries, decode_report
from workers.archive import WarcArchive
from workers.discoveries import PageLinks
from workers.report import Reporter
from workers.visit_crawls import VisitCrawl
from workers.visit_report import ROOM_PAGES, SettledUrl, VisitEnd, VisitReport

PARTITIONS: Final = 16
FULL_URL: Final = "http://full.test/"
OPEN_URL: Final = "http://open.test/"
FULL: Final = partition_of(host_of(FULL_URL), PARTITIONS)
OPEN: Final = partition_of(host_of(OPEN_URL), PARTITIONS)
ARCHIVED: Final = ArchivedCrawl(CrawlId(7), "docs", "obey", "orb", 1 << 20)


class Known:
    """Hears which links are acknowledged."""

    def __init__(self) -> None:
        self.links: list[object] = []

    def acknowledged(self, outlinks: object) -> None:
        self.links.append(outlinks)


KNOWN: Final = Known()
CRAWL: Final = cast(
    VisitCrawl,
    SimpleNamespace(
        crawl_id=CrawlId(7), revision=Revision(1), partitions=PARTITIONS, spec=SimpleNamespace(name="docs"),
        archived=ARCHIVED, outlinks=KNOWN,
    ),
)  # fmt: skip


class Stage:
    """An archive, and a broker of which subjects may be `full`: (partition, kind). `stored` are its reports."""

    def __init__(self, *full: tuple[int, str]) -> None:
        self.full = set(full)
        self.stored: list[Discoveries | Outcome] = []
        self.refused = 0
        self._news = asyncio.Condition()

    def writer(self, crawl: Any) -> "Stage":
        return self

    async def sync(self) -> None:
        """Nothing is on its way."""

    async def publish_report(self, partition: int, kind: str, data: bytes, message_id: str) -> int:
        async with self._news:
            self._news.notify_all()
            if (partition, kind) in self.full:
                self.refused += 1
                raise Refused("full", retry_in=0.001)
            report = decode_discoveries(data) if kind == "discovery" else decode_report(data)
            assert isinstance(report, Discoveries | Outcome)
            self.stored.append(report)
        return len(self.stored)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is true after a report was offered."""
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(true)

    def outcomes(self) -> list[Outcome]:
        return [report for report in self.stored if isinstance(report, Outcome)]

    def links(self) -> list[str]:
        messages = [report for report in self.stored if isinstance(report, Discoveries)]
        return [link.url for message in messages for origin in message.origins for link in origin.links]


def page(number: int, *links: str) -> SettledUrl:
    found: tuple[PageLinks, ...] = ()
    if links:
        located = tuple(Location(url, host_of(url), fingerprint(url)) for url in links)
        found = (PageLinks(CRAWL, numbered(1, Partition(0)), "a.test", Fingerprint(bytes(16)), located, 1, 1),)
    return SettledUrl(UrlOutcome(number.to_bytes(16), 1, 0), found, cast(Any, (links,)) if links else ())


Story = Callable[[Stage, Reporter], Awaitable[None]]


def told(stage: Stage, story: Story, *, report_s: float = 60.0) -> None:
    """Run the story beside the reporter; then everything that was held must come, and leave nothing in hand."""

    async def main() -> None:
        reporter = Reporter(
            broker=cast(Broker, stage), archive=cast(WarcArchive, stage), clock=SystemClock(), producer="p",
            report_s=report_s,
        )  # fmt: skip
        async with asyncio.timeout(60), Tasks() as tasks:
            running = tasks.start("report", reporter.run())
            await story(stage, reporter)
            assert reporter.unreported() == (0, 0)
            running.cancel()

    KNOWN.links.clear()
    asyncio.run(main())


def visit_of(reporter: Reporter, number: int, partition: int = 0) -> VisitReport:
    lease = LeaseId(numbered(number, Partition(partition)))
    return reporter.visit(CRAWL, 7, lease, 1, numbered(1, Partition(partition)))


def test_a_full_discovery_subject_holds_only_the_visit_with_links_for_it() -> None:
    async def story(stage: Stage, reporter: Reporter) -> None:
        visits = [visit_of(reporter, number) for number in range(1, 7)]
        for number, visit in enumerate(visits, start=1):
            visit.add(page(number, *([FULL_URL, OPEN_URL] if number == 3 else [])))
        async with asyncio.TaskGroup() as group:
            for visit in visits:
                group.create_task(visit.finish(VisitEnd(final=True)))
            await stage.until(lambda: len(stage.outcomes()) == 5 and stage.refused > 2)
            assert visits[2].lease not in {outcome.lease for outcome in stage.outcomes()}
            assert reporter.held() == 1
            assert KNOWN.links == [], "no link is known before all its page's links are acknowledged"
            stage.full.clear()
        assert stage.outcomes()[-1].lease == visits[2].lease
        assert sorted(stage.links()) == [FULL_URL, OPEN_URL]
        assert KNOWN.links == [(FULL_URL, OPEN_URL)]

    assert FULL != OPEN
    told(Stage((FULL, "discovery")), story)


def test_a_page_whose_link_another_page_reports_waits_for_that_report() -> None:
    """A link that stands in the message already is left out of it, and counts for both pages."""

    async def story(stage: Stage, reporter: Reporter) -> None:
        first, second, third = (visit_of(reporter, number) for number in range(1, 4))
        for visit, links in (first, [FULL_URL]), (second, [FULL_URL]), (third, [OPEN_URL]):
            visit.add(page(1, *links))
        async with asyncio.TaskGroup() as group:
            for visit in (first, second, third):
                group.create_task(visit.finish(VisitEnd(final=True)))
            await stage.until(lambda: bool(stage.outcomes()) and stage.refused > 2)
            assert [outcome.lease for outcome in stage.outcomes()] == [third.lease]
            stage.full.clear()
        assert sorted(stage.links()) == [FULL_URL, OPEN_URL]

    told(Stage((FULL, "discovery")), story)


def test_a_full_outcome_subject_holds_no_visit_of_another_partition() -> None:
    async def story(stage: Stage, reporter: Reporter) -> None:
        visits = [visit_of(reporter, number, partition=number % 2) for number in range(1, 7)]
        for visit in visits:
            visit.add(page(1))
        async with asyncio.TaskGroup() as group:
            for visit in visits:
                group.create_task(visit.finish(VisitEnd(final=True)))
            await stage.until(lambda: len(stage.outcomes()) == 3 and stage.refused > 4)
            stage.full.clear()

    told(Stage((1, "outcome")), story)


def test_a_held_visit_reports_its_pages_in_order_and_takes_none_meanwhile() -> None:
    async def story(stage: Stage, reporter: Reporter) -> None:
        held, other = visit_of(reporter, 1), visit_of(reporter, 2)
        held.add(page(1, FULL_URL))
        await stage.until(lambda: reporter.held() == 1 and stage.refused > 1)
        waiting = asyncio.ensure_future(held.wait_for_capacity())
        await asyncio.wait_for(other.wait_for_capacity(), 30)
        held.add(page(2))
        other.add(page(3))
        await stage.until(lambda: len(stage.outcomes()) == 1)
        assert stage.outcomes()[0].lease == other.lease
        assert not waiting.done()
        stage.full.clear()
        await held.finish(VisitEnd(final=True))
        await other.finish(VisitEnd(final=True))
        await asyncio.wait_for(waiting, 30)
        mine = [outcome for outcome in stage.outcomes() if outcome.lease == held.lease]
        assert [result.fingerprint for outcome in mine for result in outcome.results] == [
            (1).to_bytes(16), (2).to_bytes(16),
        ]  # fmt: skip
        assert [outcome.final for outcome in mine][-1]
        assert not any(outcome.final for outcome in mine[:-1])

    told(Stage((FULL, "discovery")), story, report_s=0.001)


def test_messages_of_a_held_stream_are_numbered_in_the_order_they_are_sent() -> None:
    async def story(stage: Stage, reporter: Reporter) -> None:
        visits = [visit_of(reporter, number) for number in range(1, 5)]
        async with asyncio.TaskGroup() as group:
            for number, visit in enumerate(visits, start=1):
                visit.add(page(number, f"{FULL_URL}{number}"))
                group.create_task(visit.finish(VisitEnd(final=True)))
                await stage.until(lambda number=number: reporter.held() == number)  # type: ignore[misc]  # a default
            stage.full.clear()
        sent = [report for report in stage.stored if isinstance(report, Discoveries)]
        assert [(report.n, report.total) for report in sent] == [(n, n) for n in range(1, 5)]
        assert stage.links() == [f"{FULL_URL}{number}" for number in range(1, 5)]

    told(Stage((FULL, "discovery")), story)


def test_what_is_held_is_bounded_and_leaves_room_for_what_is_not() -> None:
    async def story(stage: Stage, reporter: Reporter) -> None:
        visits = [visit_of(reporter, number) for number in range(1, 4)]
        half = ROOM_PAGES // 2
        async with asyncio.TaskGroup() as group:
            for visit in visits[:2]:
                await asyncio.wait_for(visits[2].wait_for_capacity(), 30)
                for number in range(half):
                    visit.add(page(number, FULL_URL))
                group.create_task(visit.finish(VisitEnd(final=True)))
                await stage.until(lambda visit=visit: reporter.held() == half * (1 + visits.index(visit)))  # type: ignore[misc]  # a default
            waiting = asyncio.ensure_future(visits[2].wait_for_capacity())
            await asyncio.sleep(0)
            assert not waiting.done(), "so much is held that no further page may be"
            stage.full.clear()
        await asyncio.wait_for(waiting, 30)

    told(Stage((FULL, "discovery")), story)


def test_cancelling_the_reporter_ends_what_it_holds() -> None:
    async def main() -> None:
        stage = Stage((FULL, "discovery"))
        reporter = Reporter(
            broker=cast(Broker, stage), archive=cast(WarcArchive, stage), clock=SystemClock(), producer="p",
            report_s=60.0,
        )  # fmt: skip
        async with asyncio.timeout(30), Tasks() as tasks:
            running = tasks.start("report", reporter.run())
            visit = visit_of(reporter, 1)
            visit.add(page(1, FULL_URL))
            finishing = tasks.start("finish", visit.finish(VisitEnd(final=True)))
            await stage.until(lambda: reporter.held() == 1)
            running.cancel()
            await asyncio.wait({running})
            finishing.cancel()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
