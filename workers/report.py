"""What was learned is reported: archive durable -> discoveries -> items -> outcomes acknowledged, in this order.

One flush runs at a time and takes everything that came until it began, of all visits; the next takes what came
meanwhile. Each step of a flush is over for all its pages before the next begins, so whoever sees an outcome may rely on
its links and items being in their streams and its record on the disk. A flush begins when a visit ends, and `report_s`
after the oldest page came.

Nothing is given up: a step that fails for a reason that passes is repeated until it succeeds, under the same message id
while `room` holds the visits once there is enough in hand.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import structlog

from shared.domain.archive import ArchivedCrawl
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId, Fingerprint, LeaseId, partition_of_id
from shared.domain.item_rules import Refusal
from shared.domain.items import PageItems
from shared.domain.tally import Key
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.supervise import Failpoint, no_failpoint
from shared.wire.items import encode_items
from shared.wire.messages import HostNote, Outcome, UrlOutcome, encode
from workers.archive import WarcArchive
from workers.crawls import ActiveCrawl
from workers.discoveries import MOST_BYTES, Batch, Found, Numbering, Stream, sorted_out
from workers.outlinks import Outlinks
from workers.tally import Tally

log = structlog.get_logger(__name__)
T = TypeVar("T")

ROOM_PAGES: Final = 5_000
ROOM_LINKS: Final = 200_000
ROOM_ITEM_BYTES: Final = 32 << 20
"""Pages, links and bytes of items in hand above which no visit takes a further URL."""

_LONGEST_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SettledUrl:
    """A URL with its outcome, the links it led to and the items it gave. `outlinks`: to be acknowledged when the links
    are."""

    outcome: UrlOutcome
    found: Found | None = None
    outlinks: Outlinks | None = None
    items: PageItems | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a visit ends; `final` frees the lease, what was `not_attempted` goes back to the queue.

    `failed`: by an error of ours. The grant ends, and the lease stays for the next one.
    """

    final: bool
    not_attempted: tuple[Fingerprint, ...] = ()
    note: HostNote | None = None
    failed: bool = False


class VisitReport:
    """What one visit has to report. `quiet_since`: when its last response ended (Clock.elapsed), None without one."""

    __slots__ = (
        "_done",
        "_ending",
        "_pages",
        "_reporter",
        "crawl",
        "crawl_id",
        "grant",
        "host_id",
        "lease",
        "quiet_since",
    )

    def __init__(
        self, reporter: "Reporter", crawl: ActiveCrawl | None, crawl_id: int, lease: LeaseId, grant: int, host_id: int
    ) -> None:
        self._reporter = reporter
        self._pages: list[SettledUrl] = []
        self._ending: Ending | None = None
        self._done: asyncio.Future[None] | None = None
        self.crawl = crawl
        self.crawl_id = crawl_id
        self.lease = lease
        self.grant = grant
        self.host_id = host_id
        self.quiet_since: float | None = None

    def add(self, page: SettledUrl) -> None:
        """A URL is settled, its record placed in the archive."""
        self._pages.append(page)
        self._reporter.added(self, page)

    async def finish(self, ending: Ending) -> None:
        """Returns when everything of this visit is reported and the outcome is acknowledged."""
        self._ending = ending
        self._done = asyncio.get_running_loop().create_future()
        self._reporter.ended(self)
        await self._done

    def take(self) -> "Taken":
        """What is to be reported now; it is then the flush's."""
        pages, self._pages = self._pages, []
        return Taken(self, pages, self._ending)

    def finished(self) -> None:
        """The flush that took the ending is through."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def __repr__(self) -> str:
        return f"<VisitReport lease={self.lease} pages={len(self._pages)}>"


@dataclass(frozen=True, slots=True)
class Taken:
    """A visit's part of a flush."""

    visit: VisitReport
    pages: list[SettledUrl]
    ending: Ending | None


@dataclass(slots=True)
class _InHand:
    """What is not reported yet."""

    pages: int = 0
    links: int = 0
    item_bytes: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, pages: int, links: int, item_bytes: int) -> None:
        self.pages += pages
        self.links += links
        self.item_bytes += item_bytes
        if self.pages < ROOM_PAGES and self.links < ROOM_LINKS and self.item_bytes < ROOM_ITEM_BYTES:
            self.room.set()
        else:
            self.room.clear()


class Reporter:
    """Reports for all visits of a process; `run` is its one background task.

    `producer` names this process's numbering of discoveries and must never be used again by another.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        archive: WarcArchive,
        clock: Clock,
        producer: str,
        report_s: float,
        tally: Tally | None = None,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._broker = broker
        self._archive = archive
        self._clock = clock
        self._numbering = Numbering(producer)
        self._report_s = report_s
        self._tally = tally or Tally()
        self._failpoint = failpoint
        self._news: dict[VisitReport, None] = {}
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._in_hand = _InHand()
        self._in_hand.change(0, 0, 0)
        self._outcomes = 0
        self._items = 0
        self._flushing_since: float | None = None

    def visit(self, crawl: ActiveCrawl | None, crawl_id: int, lease: LeaseId, grant: int, host_id: int) -> VisitReport:
        """The report of a visit that begins; without `crawl`, which was deleted, no page will come."""
        return VisitReport(self, crawl, crawl_id, lease, grant, host_id)

    async def room(self) -> None:
        """Wait until there is room for one more page."""
        await self._in_hand.room.wait()

    def pace(self, report_s: float) -> None:
        """Let a finished page wait for so long from now on; those that wait count anew."""
        self._report_s = report_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(report_s, self._wanted.set)

    async def run(self) -> None:
        """Flush whenever it is time, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            news, self._news = self._news, {}
            if news:
                begun = self._flushing_since = self._clock.elapsed()
                await self._flush([visit.take() for visit in news])
                self._flushing_since = None
                self._tally.flushes.observe(self._clock.elapsed() - begun)

    def unreported(self) -> tuple[int, int]:
        """Pages, and links of them, that no acknowledged report has told of."""
        return self._in_hand.pages, self._in_hand.links

    def flushing_s(self) -> float:
        """For how long the flush that runs has been running; 0 while none does."""
        return 0.0 if self._flushing_since is None else self._clock.elapsed() - self._flushing_since

    def added(self, visit: VisitReport, page: SettledUrl) -> None:
        """A page came."""
        self._news[visit] = None
        self._in_hand.change(1, _links(page), _item_bytes(page))
        self._tally.settled(self._counts_of(visit.crawl), page.outcome)
        if self._timer is None and not self._wanted.is_set():
            self._timer = asyncio.get_running_loop().call_later(self._report_s, self._wanted.set)

    def refused(self, crawl: ActiveCrawl, refused: Mapping[Refusal, int]) -> None:
        """What rules matched on a page of the crawl is no item, for these reasons."""
        counts = self._counts_of(crawl)
        for reason, n in refused.items():
            counts["refused_items", reason] += n

    def _counts_of(self, crawl: ActiveCrawl | None) -> Counter[Key]:
        counts = self._tally.crawls
        return counts.others() if crawl is None else counts.of(crawl.crawl_id, crawl.spec.name, self._clock.elapsed())

    def ended(self, visit: VisitReport) -> None:
        """A visit ended."""
        self._news[visit] = None
        self._wanted.set()

    # --- the steps ----------------------------------------------------------------------------------------------------

    async def _flush(self, taken: list[Taken]) -> None:
        crawls = {part.visit.crawl_id: part.visit.crawl for part in taken if part.pages}
        await _each(self._sync, [crawl.archived for crawl in crawls.values() if crawl is not None])
        self._failpoint("synced")
        pages = [page for part in taken for page in part.pages]
        streams = sorted_out(page.found for page in pages if page.found is not None)
        await _each(self._discover, list(streams.items()))
        self._failpoint("discoveries_acked")
        for part in taken:
            for page in part.pages:
                if page.outlinks is not None and page.found is not None:
                    page.found.crawl.outlinks.acknowledged(page.outlinks)
        await _each(self._publish_items, _items_by_crawl(taken))
        self._failpoint("items_acked")
        await _each(self._outcome, taken)
        self._failpoint("outcome_acked")
        self._in_hand.change(-len(pages), -sum(map(_links, pages)), -sum(map(_item_bytes, pages)))

    async def _sync(self, crawl: ArchivedCrawl) -> None:
        await persisted("report.archive", self._archive.writer(crawl).sync, crawl=crawl.crawl_id)

    async def _discover(self, found: tuple[Stream, list[Batch]]) -> None:
        """A stream's messages one after another: a number is used once its predecessor is acknowledged."""
        stream, batches = found
        for batch in batches:
            data, message_id = self._numbering.message(stream, batch, self._clock.unix_ms())

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_report(stream.partition, "discovery", data, message_id)

            await persisted("report.discoveries", publish, crawl=stream.crawl_id, partition=stream.partition)
            self._numbering.acknowledged(stream, batch)
            self._tally.reports["discovery"] += 1
            self._tally.links += batch.links

    async def _publish_items(self, pages: tuple[ActiveCrawl, list[PageItems]]) -> None:
        crawl, found = pages
        for data in encode_items(crawl.crawl_id, crawl.spec.name, found):
            self._items += 1
            message_id = f"{self._numbering.producer}.items.{self._items}"

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_items(crawl.crawl_id, data, message_id)

            await persisted("report.items", publish, crawl=crawl.crawl_id)
            self._tally.reports["items"] += 1
        self._counts_of(crawl)["items", ""] += sum(len(page.items) for page in found)

    async def _outcome(self, part: Taken) -> None:
        partition = partition_of_id(part.visit.lease)
        for data in _within_bounds(self._message(part)):
            self._outcomes += 1
            message_id = f"{self._numbering.producer}.{self._outcomes}"

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_report(partition, "outcome", data, message_id)

            await persisted("report.outcome", publish, lease=part.visit.lease)
            self._tally.reports["outcome"] += 1
        if part.ending is not None:
            part.visit.finished()

    def _message(self, part: Taken) -> Outcome:
        visit, ending = part.visit, part.ending
        rested = -1 if visit.quiet_since is None else int((self._clock.elapsed() - visit.quiet_since) * 1000)
        return Outcome(
            lease=visit.lease,
            crawl=visit.crawl_id,
            grant=visit.grant,
            host_id=visit.host_id,
            results=[page.outcome for page in part.pages],
            not_attempted=list(ending.not_attempted) if ending is not None else [],
            final=ending is not None and ending.final,
            quiet_ms=rested,
            note=ending.note if ending is not None else None,
            failed=ending is not None and ending.failed,
        )

    def __repr__(self) -> str:
        return f"<Reporter {self._numbering.producer} pages={self._in_hand.pages} links={self._in_hand.links}>"


async def persisted(what: str, attempt: Callable[[], Awaitable[T]], **fields: object) -> T:
    """Try until it is not Transient any more, with growing waits of at most 5 s; the log says that it takes long."""
    wait_s, tries = 0.1, 0
    while True:
        try:
            result = await attempt()
        except Transient as error:
            tries += 1
            if tries in (1, 10) or tries % 100 == 0:
                log.warning(f"{what}.retried", reason=str(error), tries=tries, **fields)
            await asyncio.sleep(min(max(error.retry_in, wait_s), _LONGEST_WAIT_S))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        else:
            if tries >= 10:
                log.info(f"{what}.went_through", tries=tries, **fields)
            return result


async def _each(work: Callable[[T], Coroutine[Any, Any, None]], items: Sequence[T]) -> None:
    """Side by side."""
    if len(items) == 1:
        await work(items[0])
        return
    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(work(item), name=f"report.{work.__name__}")


def _links(page: SettledUrl) -> int:
    return len(page.found.links) if page.found is not None else 0


def _item_bytes(page: SettledUrl) -> int:
    return 0 if page.items is None else sum(len(item.data) for item in page.items.items)


def _items_by_crawl(taken: Iterable[Taken]) -> list[tuple[ActiveCrawl, list[PageItems]]]:
    crawls: dict[CrawlId, tuple[ActiveCrawl, list[PageItems]]] = {}
    for part in taken:
        if part.visit.crawl is not None:
            for page in part.pages:
                if page.items is not None:
                    crawl = part.visit.crawl
                    crawls.setdefault(crawl.crawl_id, (crawl, []))[1].append(page.items)
    return list(crawls.values())


def _within_bounds(outcome: Outcome) -> Iterator[bytes]:
    """The message, or several that say the same; what ends the lease is in the last."""
    data = encode(outcome)
    if len(data) <= MOST_BYTES or len(outcome.results) < 2:
        yield data
        return
    half = len(outcome.results) // 2
    replace = msgspec.structs.replace
    yield from _within_bounds(
        replace(outcome, results=outcome.results[:half], not_attempted=[], final=False, note=None, failed=False)
    )
    yield from _within_bounds(replace(outcome, results=outcome.results[half:]))
