"""What was learned is reported: archive durable -> discoveries -> items -> outcomes acknowledged, in this order.

A flush takes everything that came until it began, of all visits. The next one takes what came meanwhile, and begins
when the flush is through or is stalled. A flush begins when a visit ends, and `report_s` after the oldest page came.

Each step of a visit's part of a flush is over before the next begins. So the links and items of an outcome are in their
streams, and its record is on the disk, when a reader sees it. The messages of a discovery stream, and the parts of a
visit, go one after another.

Nothing is given up: a step that fails for a reason that passes is repeated until it succeeds, under the same message
id. It stalls only what needs it. The part of a flush with a link for a full subject is held, with its visit, and
everything else goes on.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from shared.domain.archive import ArchivedCrawl
from shared.domain.ids import CrawlId, LeaseId, partition_of_id
from shared.domain.item_rules import Refusal
from shared.domain.items import PageItems
from shared.domain.tally import Key
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.supervise import Failpoint, no_failpoint
from shared.wire.items import encode_items
from shared.wire.messages import Outcome, encode
from workers.archive import WarcArchive
from workers.crawls import ActiveCrawl
from workers.discoveries import MOST_BYTES, Batch, Numbering, Stream, sorted_out
from workers.retrying import persisted
from workers.tally import Tally
from workers.visit_report import InHand, SettledUrl, Taken, VisitReport

T = TypeVar("T")


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
        self._on_its_way = InHand()
        self._held = InHand()
        self._room = asyncio.Event()
        self._room.set()
        self._sending: dict[Stream, asyncio.Task[None]] = {}
        self._flushes: dict[_Flush, float] = {}
        self._outcomes = 0
        self._items = 0

    def visit(self, crawl: ActiveCrawl | None, crawl_id: int, lease: LeaseId, grant: int, host_id: int) -> VisitReport:
        """The report of a visit that begins; without `crawl`, which was deleted, no page will come."""
        return VisitReport(self, crawl, crawl_id, lease, grant, host_id)

    async def room(self) -> None:
        """Wait until there is room for one more page."""
        await self._room.wait()

    def pace(self, report_s: float) -> None:
        """Let a finished page wait for so long from now on; those that wait count anew."""
        self._report_s = report_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(report_s, self._wanted.set)

    async def run(self) -> None:
        """Flush whenever it is time, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                news, self._news = self._news, {}
                if not news:
                    continue
                flush = _Flush([visit.take() for visit in news])
                self._flushes[flush] = self._clock.elapsed()
                flushing = group.create_task(self._flush(flush), name="report.flush")
                flushing.add_done_callback(flush.over)
                await flush.turn
                for part in flush.parts:
                    if not part.done.done():
                        self._hold(part)

    def unreported(self) -> tuple[int, int]:
        """Pages, and links of them, that no acknowledged report has told of."""
        return self._on_its_way.pages + self._held.pages, self._on_its_way.links + self._held.links

    def flushing_s(self) -> float:
        """For how long the oldest flush that is not through has been running; 0 without one."""
        return self._clock.elapsed() - next(iter(self._flushes.values())) if self._flushes else 0.0

    def held(self) -> int:
        """Pages that are held by what others do not wait for."""
        return self._held.pages

    def added(self, visit: VisitReport, page: SettledUrl) -> None:
        """A page came."""
        self._news[visit] = None
        self._on_its_way.add((page,))
        self._count_room()
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

    def _count_room(self) -> None:
        if self._on_its_way.full() or self._held.full():
            self._room.clear()
        else:
            self._room.set()

    def _hold(self, part: Taken) -> None:
        """A part stays behind the rest of its flush."""
        part.held = True
        part.visit.hold(part)
        self._on_its_way.add(part.pages, -1)
        self._held.add(part.pages)
        self._count_room()

    def _reported(self, part: Taken) -> None:
        (self._held if part.held else self._on_its_way).add(part.pages, -1)
        self._count_room()
        part.done.set_result(None)
        if part.ending is not None:
            part.visit.finished()

    # --- the steps ----------------------------------------------------------------------------------------------------

    async def _flush(self, flush: "_Flush") -> None:
        taken = flush.parts
        crawls = {part.visit.crawl_id: part.visit.crawl for part in taken if part.pages}
        await _each(self._sync, [crawl.archived for crawl in crawls.values() if crawl is not None])
        self._failpoint("synced")
        streams = sorted_out(page.found for part in taken for page in part.pages if page.found is not None)
        async with asyncio.TaskGroup() as group:
            sending = {stream: self._send(group, flush, stream, batches) for stream, batches in streams.items()}
            if sending:
                await flush.sent(sending.values())
            ready = []
            for part in taken:
                if needed := part.waits_for(sending):
                    flush.stall()
                    group.create_task(self._conclude_behind(needed, part, flush), name="report.held")
                else:
                    ready.append(part)
            await self._conclude(ready, flush)
        self._tally.flushes.observe(self._clock.elapsed() - self._flushes.pop(flush))

    async def _sync(self, crawl: ArchivedCrawl) -> None:
        await persisted("report.archive", self._archive.writer(crawl).sync, crawl=crawl.crawl_id)

    def _send(
        self, group: asyncio.TaskGroup, flush: "_Flush", stream: Stream, batches: list[Batch]
    ) -> "asyncio.Task[None]":
        """Send a stream's messages, behind those of earlier flushes."""
        before = self._sending.get(stream)
        sending = group.create_task(self._discover(before, flush, stream, batches), name="report.discover")
        self._sending[stream] = sending
        return sending

    async def _discover(
        self, before: "asyncio.Task[None] | None", flush: "_Flush", stream: Stream, batches: list[Batch]
    ) -> None:
        """A stream's messages one after another: a number is used once its predecessor is acknowledged."""
        if before is not None and not before.done():
            flush.stall()
            await asyncio.wait({before})
        for batch in batches:
            data, message_id = self._numbering.message(stream, batch, self._clock.unix_ms())

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_report(stream.partition, "discovery", data, message_id)

            await persisted(
                "report.discoveries", publish, flush.stall, crawl=stream.crawl_id, partition=stream.partition
            )
            self._numbering.acknowledged(stream, batch)
            self._tally.reports["discovery"] += 1
            self._tally.links += batch.links
        if self._sending.get(stream) is asyncio.current_task():
            del self._sending[stream]

    async def _conclude_behind(self, needed: set[asyncio.Future[None]], part: Taken, flush: "_Flush") -> None:
        await asyncio.wait(needed)
        await self._conclude([part], flush)

    async def _conclude(self, parts: Sequence[Taken], flush: "_Flush") -> None:
        """Publish the items and the outcomes of parts whose links are acknowledged."""
        self._failpoint("discoveries_acked")
        for part in parts:
            for page in part.pages:
                if page.outlinks is not None and page.found is not None:
                    page.found.crawl.outlinks.acknowledged(page.outlinks)
        await _each(partial(self._publish_items, flush), _items_by_crawl(parts))
        self._failpoint("items_acked")
        await _each(partial(self._outcome, flush), parts)
        self._failpoint("outcome_acked")

    async def _publish_items(self, flush: "_Flush", pages: tuple[ActiveCrawl, list[PageItems]]) -> None:
        crawl, found = pages
        for data in encode_items(crawl.crawl_id, crawl.spec.name, found):
            self._items += 1
            message_id = f"{self._numbering.producer}.items.{self._items}"

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_items(crawl.crawl_id, data, message_id)

            await persisted("report.items", publish, flush.stall, crawl=crawl.crawl_id)
            self._tally.reports["items"] += 1
        self._counts_of(crawl)["items", ""] += sum(len(page.items) for page in found)

    async def _outcome(self, flush: "_Flush", part: Taken) -> None:
        partition = partition_of_id(part.visit.lease)
        for data in _within_bounds(self._message(part)):
            self._outcomes += 1
            message_id = f"{self._numbering.producer}.{self._outcomes}"

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_report(partition, "outcome", data, message_id)

            await persisted("report.outcome", publish, flush.stall, lease=part.visit.lease)
            self._tally.reports["outcome"] += 1
        self._reported(part)

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
        return f"<Reporter {self._numbering.producer} pages={self.unreported()[0]} held={self.held()}>"


@dataclass(eq=False, slots=True)
class _Flush:
    """Parts that are reported together. `turn` is done when the next flush may begin: this one is over, or stalled."""

    parts: Sequence[Taken]
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _sent: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _sending: int = 0

    def stall(self) -> None:
        """Something that fails holds some of the parts: nothing else waits for it."""
        for future in (self.turn, self._sent):
            if not future.done():
                future.set_result(None)

    def over(self, flushing: "asyncio.Task[None]") -> None:
        """The flush has ended."""
        self.stall()

    async def sent(self, sending: Collection["asyncio.Task[None]"]) -> None:
        """Wait until all messages are sent, or some are stalled."""
        self._sending = len(sending)
        for task in sending:
            task.add_done_callback(self._one_sent)
        await self._sent

    def _one_sent(self, task: "asyncio.Task[None]") -> None:
        self._sending -= 1
        if not self._sending and not self._sent.done():
            self._sent.set_result(None)


async def _each(work: Callable[[T], Coroutine[Any, Any, None]], items: Sequence[T]) -> None:
    """Side by side."""
    if len(items) == 1:
        await work(items[0])
        return
    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(work(item), name="report.step")


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
