"""Reports the results of visits in this order: make archive records durable, publish discoveries, items, then outcomes.

Each step ends (durable, or acknowledged by the broker) before the next begins. So a published outcome implies that its
links and items are in their streams and its record is on the disk.

A flush reports all unreported pages of all visits. It begins when a visit ends, and `report_s` after the oldest page
was added. A flush normally begins only after the previous flush has ended.

No result is dropped: a step that fails transiently is repeated until it succeeds. A message is repeated under the same
message id. What later flushes do meanwhile depends on the step:

- The archive cannot make records durable: later flushes wait.
- A message cannot be published: the flush counts as stalled, and later flushes no longer wait for its end. They report
  all results that do not depend on the message.

Two orders are always kept, also beside a stalled flush:

- The discoveries of one crawl for one partition are sent one after another.
- The results of one visit are sent one after another.

Example: flush A cannot publish a message with discoveries of crawl 1 for partition 2, so flush B begins. Flush B
reports its results of crawl 3 at once. If flush B also has discoveries of crawl 1 for partition 2, these discoveries
wait for the message of flush A. While they wait, flush B counts as stalled, too, so that flush C can begin.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from shared.domain.archive.model import ArchivedCrawl
from shared.domain.crawl.item_rules import Refusal
from shared.domain.ids import CrawlId, LeaseId, partition_of_id
from shared.domain.ops.counts import Key
from shared.domain.reads.items import PageItems
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.runtime.supervise import Failpoint, no_failpoint
from shared.wire.items import encode_items
from shared.wire.messages import Outcome, encode
from workers.archive import WarcArchive
from workers.discoveries import MAX_BYTES, DiscoveryBatch, DiscoveryStream, Numbering, batches_by_stream
from workers.retry import persisted
from workers.stats import WorkerStats
from workers.visit_crawls import VisitCrawl
from workers.visit_report import FlushPart, SettledUrl, UnreportedSize, VisitReport

T = TypeVar("T")


class Reporter:
    """Reports the results of all visits of a worker process. `run` is its only background task.

    `producer`: the name of this process as the sender of discoveries, which no other process ever uses. `report_s`: the
    longest time in seconds that a page waits for a flush.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        archive: WarcArchive,
        clock: Clock,
        producer: str,
        report_s: float,
        stats: WorkerStats | None = None,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._broker = broker
        self._archive = archive
        self._clock = clock
        self._numbering = Numbering(producer)
        self._report_s = report_s
        self._stats = stats or WorkerStats()
        self._failpoint = failpoint
        self._pending: dict[VisitReport, None] = {}
        self._flush_due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._in_flushes = UnreportedSize()
        self._held = UnreportedSize()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()
        self._sending: dict[DiscoveryStream, asyncio.Task[None]] = {}
        self._flushes: dict[_Flush, float] = {}
        self._outcomes = 0
        self._items = 0

    def visit(self, crawl: VisitCrawl | None, crawl_id: int, lease: LeaseId, grant: int, host_id: int) -> VisitReport:
        """Create the report of a visit that begins. For a deleted crawl, `crawl` is None, and no page may be added."""
        return VisitReport(self, crawl, crawl_id, lease, grant, host_id)

    async def wait_for_capacity(self) -> None:
        """Wait until the unreported results are below their limits (UnreportedSize), so that a page may be added."""
        await self._has_capacity.wait()

    def pace(self, report_s: float) -> None:
        """Set the longest time in seconds that a page waits for a flush.

        Restart the timer for pages that already wait.
        """
        self._report_s = report_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(report_s, self._flush_due.set)

    async def run(self) -> None:
        """Report all unreported pages whenever a flush is due, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._flush_due.wait()
                self._flush_due.clear()
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                pending, self._pending = self._pending, {}
                if not pending:
                    continue
                flush = _Flush([visit.take() for visit in pending])
                self._flushes[flush] = self._clock.elapsed()
                flushing = group.create_task(self._flush(flush), name="report.flush")
                flushing.add_done_callback(flush.over)
                await flush.turn
                for part in flush.parts:
                    if not part.done.done():
                        self._hold(part)

    def unreported(self) -> tuple[int, int]:
        """Return the number of pages, and the number of links, whose report is not acknowledged yet."""
        return self._in_flushes.pages + self._held.pages, self._in_flushes.links + self._held.links

    def flushing_s(self) -> float:
        """Return the seconds for which the oldest running flush has lasted, 0 if none runs."""
        return self._clock.elapsed() - next(iter(self._flushes.values())) if self._flushes else 0.0

    def held(self) -> int:
        """Return the number of pages whose report is delayed by a failing step, while other pages are reported."""
        return self._held.pages

    def added(self, visit: VisitReport, page: SettledUrl) -> None:
        """Count a page that was added to the visit's report, and schedule a flush within `report_s`."""
        self._pending[visit] = None
        self._in_flushes.add((page,))
        self._update_capacity()
        self._stats.settled(self._counts_of(visit.crawl), page.outcome)
        if self._timer is None and not self._flush_due.is_set():
            self._timer = asyncio.get_running_loop().call_later(self._report_s, self._flush_due.set)

    def refused(self, crawl: VisitCrawl, refused: Mapping[Refusal, int]) -> None:
        """Count the items of a page that were refused, by reason."""
        counts = self._counts_of(crawl)
        for reason, n in refused.items():
            counts["refused_items", reason] += n

    def _counts_of(self, crawl: VisitCrawl | None) -> Counter[Key]:
        counts = self._stats.crawls
        return counts.others() if crawl is None else counts.of(crawl.crawl_id, crawl.spec.name, self._clock.elapsed())

    def ended(self, visit: VisitReport) -> None:
        """Request a flush now, because the visit ended."""
        self._pending[visit] = None
        self._flush_due.set()

    def _update_capacity(self) -> None:
        if self._in_flushes.full() or self._held.full():
            self._has_capacity.clear()
        else:
            self._has_capacity.set()

    def _hold(self, part: FlushPart) -> None:
        """Mark a part of a stalled flush as held, so that the part does not keep other visits from adding pages.

        Unreported pages have two separate limits: one for the pages of held parts (`held`), one for all other pages.
        This method moves the part's pages from the second count to the first. The visit of this part adds no page until
        the part is reported.
        """
        part.held = True
        part.visit.hold(part)
        self._in_flushes.add(part.pages, -1)
        self._held.add(part.pages)
        self._update_capacity()

    def _reported(self, part: FlushPart) -> None:
        (self._held if part.held else self._in_flushes).add(part.pages, -1)
        self._update_capacity()
        part.done.set_result(None)
        if part.ending is not None:
            part.visit.finished()

    # --- the steps ----------------------------------------------------------------------------------------------------

    async def _flush(self, flush: "_Flush") -> None:
        taken = flush.parts
        crawls = {part.visit.crawl_id: part.visit.crawl for part in taken if part.pages}
        await _each(self._sync, [crawl.archived for crawl in crawls.values() if crawl is not None])
        self._failpoint("synced")
        streams = batches_by_stream(found for part in taken for page in part.pages for found in page.found)
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
        self._stats.flushes.observe(self._clock.elapsed() - self._flushes.pop(flush))

    async def _sync(self, crawl: ArchivedCrawl) -> None:
        await persisted("archive_sync", self._archive.writer(crawl).sync, crawl=crawl.crawl_id)

    def _send(
        self, group: asyncio.TaskGroup, flush: "_Flush", stream: DiscoveryStream, batches: list[DiscoveryBatch]
    ) -> "asyncio.Task[None]":
        """Start and return a task that sends `batches` in `stream`, after the stream's messages of earlier flushes."""
        before = self._sending.get(stream)
        sending = group.create_task(self._discover(before, flush, stream, batches), name="report.discover")
        self._sending[stream] = sending
        return sending

    async def _discover(
        self,
        before: "asyncio.Task[None] | None",
        flush: "_Flush",
        stream: DiscoveryStream,
        batches: list[DiscoveryBatch],
    ) -> None:
        """Publish `batches` in `stream` as messages, one at a time: the broker must acknowledge each before the next.

        Wait first for `before`, the task that sends the stream's messages of an earlier flush.
        """
        if before is not None and not before.done():
            flush.stall()
            await asyncio.wait({before})
        for batch in batches:
            data, message_id = self._numbering.message(stream, batch, self._clock.unix_ms())

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_report(stream.partition, "discovery", data, message_id)

            await persisted("discoveries", publish, flush.stall, crawl=stream.crawl_id, partition=stream.partition)
            self._numbering.acknowledged(stream, batch)
            self._stats.reports["discovery"] += 1
            self._stats.links += batch.links
        if self._sending.get(stream) is asyncio.current_task():
            del self._sending[stream]

    async def _conclude_behind(self, needed: set[asyncio.Future[None]], part: FlushPart, flush: "_Flush") -> None:
        await asyncio.wait(needed)
        await self._conclude([part], flush)

    async def _conclude(self, parts: Sequence[FlushPart], flush: "_Flush") -> None:
        """Mark the links of `parts` as reported, then publish the items, then the outcomes.

        The broker must have acknowledged the links.
        """
        self._failpoint("discoveries_acked")
        for part in parts:
            for page in part.pages:
                if page.found:
                    for outlinks in page.outlinks:
                        page.found[0].crawl.outlinks.acknowledged(outlinks)
        await _each(partial(self._publish_items, flush), _items_by_crawl(parts))
        self._failpoint("items_acked")
        await _each(partial(self._outcome, flush), parts)
        self._failpoint("outcome_acked")

    async def _publish_items(self, flush: "_Flush", pages: tuple[VisitCrawl, list[PageItems]]) -> None:
        crawl, page_items = pages
        for data in encode_items(crawl.crawl_id, crawl.spec.name, page_items):
            self._items += 1
            message_id = f"{self._numbering.producer}.items.{self._items}"

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_items(crawl.crawl_id, data, message_id)

            await persisted("items", publish, flush.stall, crawl=crawl.crawl_id)
            self._stats.reports["items"] += 1
        self._counts_of(crawl)["items", ""] += sum(len(page.items) for page in page_items)

    async def _outcome(self, flush: "_Flush", part: FlushPart) -> None:
        partition = partition_of_id(part.visit.lease)
        for data in _within_bounds(self._message(part)):
            self._outcomes += 1
            message_id = f"{self._numbering.producer}.{self._outcomes}"

            async def publish(data: bytes = data, message_id: str = message_id) -> int:
                return await self._broker.publish_report(partition, "outcome", data, message_id)

            await persisted("outcome", publish, flush.stall, lease=part.visit.lease)
            self._stats.reports["outcome"] += 1
        self._reported(part)

    def _message(self, part: FlushPart) -> Outcome:
        visit, ending = part.visit, part.ending
        quiet_ms = -1 if visit.quiet_since is None else int((self._clock.elapsed() - visit.quiet_since) * 1000)
        return Outcome(
            lease=visit.lease,
            crawl=visit.crawl_id,
            grant=visit.grant,
            host_id=visit.host_id,
            results=[page.outcome for page in part.pages],
            not_attempted=list(ending.not_attempted) if ending is not None else [],
            final=ending is not None and ending.final,
            quiet_ms=quiet_ms,
            note=ending.note if ending is not None else None,
            failed=ending is not None and ending.failed,
        )

    def __repr__(self) -> str:
        return f"<Reporter {self._numbering.producer} pages={self.unreported()[0]} held={self.held()}>"


@dataclass(eq=False, slots=True)
class _Flush:
    """One flush: results of several visits that are reported together, one part (FlushPart) for each visit.

    `turn`: a future that is done when the next flush may begin, because this one has ended or is stalled.
    """

    parts: Sequence[FlushPart]
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _sent: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _sending: int = 0

    def stall(self) -> None:
        """Mark the flush as stalled, because one of its steps fails or waits for an earlier flush.

        The next flush may then begin, and parts of this flush that need not wait for the step are reported.
        """
        for future in (self.turn, self._sent):
            if not future.done():
                future.set_result(None)

    def over(self, flushing: "asyncio.Task[None]") -> None:
        """Let the next flush begin, because this one has ended. `flushing`, the ended task, is not used."""
        self.stall()

    async def sent(self, sending: Collection["asyncio.Task[None]"]) -> None:
        """Wait until the tasks in `sending` have sent all discovery messages, or the flush is stalled."""
        self._sending = len(sending)
        for task in sending:
            task.add_done_callback(self._one_sent)
        await self._sent

    def _one_sent(self, task: "asyncio.Task[None]") -> None:
        self._sending -= 1
        if not self._sending and not self._sent.done():
            self._sent.set_result(None)


async def _each(work: Callable[[T], Coroutine[Any, Any, None]], items: Sequence[T]) -> None:
    """Run `work` on all items concurrently, and wait until all have ended."""
    if len(items) == 1:
        await work(items[0])
        return
    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(work(item), name="report.step")


def _items_by_crawl(taken: Iterable[FlushPart]) -> list[tuple[VisitCrawl, list[PageItems]]]:
    crawls: dict[CrawlId, tuple[VisitCrawl, list[PageItems]]] = {}
    for part in taken:
        if part.visit.crawl is not None:
            for page in part.pages:
                if page.items is not None:
                    crawl = part.visit.crawl
                    crawls.setdefault(crawl.crawl_id, (crawl, []))[1].append(page.items)
    return list(crawls.values())


def _within_bounds(outcome: Outcome) -> Iterator[bytes]:
    """Yield the outcome as one or more encoded messages of at most MAX_BYTES. A message of one result may be larger.

    Only the last message has the fields that end the visit, such as `final` and `not_attempted`.
    """
    data = encode(outcome)
    if len(data) <= MAX_BYTES or len(outcome.results) < 2:
        yield data
        return
    half = len(outcome.results) // 2
    replace = msgspec.structs.replace
    yield from _within_bounds(
        replace(outcome, results=outcome.results[:half], not_attempted=[], final=False, note=None, failed=False)
    )
    yield from _within_bounds(replace(outcome, results=outcome.results[half:]))
