"""Ingest: apply the reports of the partition's two report subjects to the tables, each report once and in order.

Every batch is one transaction that also moves the position. A batch that can never be written is bisected down to one
report. That report becomes a dead letter in the transaction that moves the position past it. If the disk is full, the
batch is retried in place. The ownership is not reloaded for it, so that the partition's grants can be extended.
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import assert_never

import structlog

from api.frontier.command_runner import forget_deleted
from api.frontier.dead_letters import letter_of, refused
from api.frontier.discoveries import gather
from api.frontier.outcome_batch import OutcomeBatch
from api.frontier.ownership import Ownership
from api.frontier.stats import TransactionKind
from shared.domain.errors import Permanent, StreamReplaced, Transient
from shared.domain.frontier.commands import CommandKind, check_command
from shared.domain.frontier.states import Position
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveryResult, DiscoveryTransaction, QueueEnd
from shared.domain.ids import CrawlId
from shared.ports.broker import Delivered, ReportKind
from shared.runtime.retry import until_resource_available
from shared.wire.messages import Command, Malformed, Outcome, ShardUnreadable, decode_report

_Outcome = tuple[Delivered, Outcome | ShardUnreadable | Malformed]

log = structlog.get_logger("orb.frontier")


def parts(reports: Sequence[Delivered], max_bytes: int) -> Iterator[Sequence[Delivered]]:
    """Yield the reports in order, in parts of at most `max_bytes`. A larger report is a part of its own.

    A report has a few URLs, or hundreds for an upload. The time of a transaction grows with their bytes.
    """
    begun, held = 0, 0
    for place, report in enumerate(reports):
        if place > begun and held + len(report.data) > max_bytes:
            yield reports[begun:place]
            begun, held = place, 0
        held += len(report.data)
    if reports:
        yield reports[begun:]


class Ingest:
    """Applies one partition's reports."""

    def __init__(self, own: Ownership) -> None:
        self._own = own

    async def run(self, kind: ReportKind) -> None:
        """Read and apply reports of a kind until cancelled."""
        own = self._own
        position = own.position
        reader = await own.broker.read_reports(own.partition, kind, position.of(kind), position.at_ns(kind))
        own.readers[kind] = reader
        try:
            while True:
                try:
                    reports = await reader.read(own.settings.batch, 5.0)
                except Transient as error:
                    await self._wait_for_broker(kind, error)
                    continue
                if not reports:
                    continue
                lost = None
                own.in_hand[kind] = reports[0].at_ns
                if len(reports) < own.settings.batch:
                    await asyncio.sleep(own.settings.linger_s)
                    try:
                        reports = [*reports, *await reader.read(own.settings.batch - len(reports), 0.0)]
                    except Transient as error:  # Apply the reports that were read first.
                        lost = error
                for part in parts(reports, own.settings.batch_bytes):
                    own.in_hand[kind] = part[0].at_ns
                    if kind == "outcome":
                        await self.outcomes(part)
                    else:
                        await self.discoveries(part)
                del own.in_hand[kind]
                if lost is not None:
                    await self._wait_for_broker(kind, lost)
        finally:
            del own.readers[kind]
            await reader.close()

    async def _wait_for_broker(self, kind: ReportKind, error: Transient) -> None:
        """Wait before the next read. Raise StreamReplaced, so that the owner reloads and compares its position."""
        if isinstance(error, StreamReplaced):
            raise error
        log.warning("reports.delayed", partition=self._own.partition, kind=kind, error=str(error))
        await asyncio.sleep(error.retry_in)

    async def discoveries(self, reports: Sequence[Delivered]) -> None:
        """Apply discoveries, in parts if commands in progress were accepted between them."""
        begun = 0
        for sequence in self._own.commands.sequences():
            place = bisect_left(reports, sequence, begun, key=attrgetter("sequence"))
            if place > begun:
                await self._discoveries(reports[begun:place])
                begun = place
        if reports[begun:]:
            await self._discoveries(reports[begun:])

    async def _discoveries(self, reports: Sequence[Delivered]) -> None:
        """Apply discoveries, in halves if they cannot be written together."""
        own = self._own
        batch = gather(reports, own.partition, own.settings.partitions)
        try:
            result = await until_resource_available(partial(self._find, reports[-1], batch))
        except Permanent as error:
            await self._bisect("discovery", reports, error)
            return
        own.tally.applied("discovery", reports, own.clock.unix_ms() * 1_000_000)
        own.tally.found(result, batch.dead_letters)
        if result.gaps:
            log.error("reports.lost", partition=own.partition, gaps=result.gaps)
        for letter in batch.dead_letters:
            log.warning("report.rejected", partition=own.partition, evidence=letter.evidence)

    async def _find(self, last: Delivered, batch: DiscoveryTransaction) -> DiscoveryResult:
        """Write a batch of discoveries in one transaction."""
        own = self._own
        async with own.writing(TransactionKind.DISCOVERIES) as fence:
            position = own.position.moved("discovery", last.sequence, last.at_ns)
            crawl_ids = {mark.crawl_id for mark, _, _ in batch.messages}
            await own.look_up(crawl_ids)
            result = await own.store.apply_found(
                fence,
                position,
                batch,
                next_host=own.next_host,
                max_depth=own.crawls.max_depths(crawl_ids),
                now_ms=own.clock.unix_ms(),
                marks=own.commands.marks(last.sequence),
            )
            own.next_host = result.next_host
            for lease_id, fingerprint, depth in result.lowered:
                own.leases.lower(lease_id, fingerprint, depth)
            not_loaded = [key for key, n in result.queues.items() if not own.front.added(*key, n)]
            await own.offer_queues(not_loaded)
            await own.committed(position)
            return result

    async def outcomes(self, reports: Sequence[Delivered]) -> None:
        """Apply outcomes and commands in order. The outcomes between two commands are one batch."""
        run: list[_Outcome] = []
        for report in reports:
            try:
                message = decode_report(report.data)
            except Malformed as error:
                run.append((report, error))
                continue
            if isinstance(message, Command):
                await self._outcome_run(run)
                run = []
                await self._command(report, message)
            else:
                run.append((report, message))
        await self._outcome_run(run)

    async def _outcome_run(self, run: Sequence[_Outcome]) -> None:
        if not run:
            return
        own = self._own
        try:
            batch, unfinished = await until_resource_available(partial(self._settle, run))
        except Permanent as error:
            if len(run) == 1:
                await self._bury("outcome", run[0][0], error)
                return
            middle = len(run) // 2
            await self._outcome_run(run[:middle])
            await self._outcome_run(run[middle:])
        else:
            own.tally.applied("outcome", [report for report, _ in run], own.clock.unix_ms() * 1_000_000)
            own.tally.changed(batch.changes, own.crawls, own.clock.elapsed())
            own.tally.discarded.update(batch.discarded)
            await self._end_queues(unfinished)

    async def _settle(self, run: Sequence[_Outcome]) -> tuple[OutcomeBatch, Sequence[QueueEnd]]:
        """Write outcomes in one transaction. Return the batch, and the ended queues that still have URLs."""
        own = self._own
        async with own.writing(TransactionKind.OUTCOMES) as fence:
            await own.look_up(CrawlId(message.crawl) for _, message in run if isinstance(message, Outcome))
            now, now_ms = own.clock.elapsed(), own.clock.unix_ms()
            batch = OutcomeBatch(own.leases, own.front, own.crawls, now, now_ms, random.random, own.changes())
            for report, message in run:
                match message:
                    case Malformed():
                        letter = letter_of("outcome", report, f"cannot be read: {message}")
                        batch.changes.dead_letters.append(letter)
                    case ShardUnreadable():
                        batch.unreadable(message, own.partition, report.at_ns // 1_000_000, own.settings)
                    case Outcome():
                        batch.outcome(message, own.settings)
                    case _:
                        assert_never(message)
            position = _after(own.position, "outcome", run[-1][0])
            unfinished = await own.store.apply(fence, position, batch.changes)
            batch.commit()
            await own.committed(position)
            return batch, unfinished

    async def _end_queues(self, ends: Sequence[QueueEnd]) -> None:
        """End the rest of queues that were given up, in several transactions.

        If this is interrupted, the rest ends with the next request that the hosts do not answer.
        """
        while ends:
            ends = await until_resource_available(partial(self._end_some, ends))

    async def _end_some(self, ends: Sequence[QueueEnd]) -> Sequence[QueueEnd]:
        """End some of the URLs in one transaction. Return the queues that still have URLs."""
        own = self._own
        changes = own.changes()
        changes.give_up.extend(ends)
        async with own.writing(TransactionKind.OUTCOMES) as fence:
            left = await own.store.apply(fence, own.position, changes)
            await own.committed()
        return left

    async def _command(self, report: Delivered, command: Command) -> None:
        """Accept a command. CommandRunner applies its chunks concurrently with later outcomes."""
        own = self._own
        run = CommandRun(
            command.id,
            CrawlId(command.crawl),
            command.kind,
            dict(command.args),
            own.partition,
            sequence=report.sequence,
        )
        try:
            check_command(run.kind, run.args)
            await until_resource_available(partial(self._accept, report, run))
        except (Permanent, ValueError) as error:
            await self._bury("outcome", report, error)

    async def _accept(self, report: Delivered, run: CommandRun) -> None:
        """Store a command and move past its message in one transaction."""
        own = self._own
        async with own.writing(TransactionKind.COMMAND) as fence:
            position = _after(own.position, "outcome", report)
            accepted = await own.store.accept_command(fence, position, run, own.clock.unix_ms())
            if accepted is not None:
                own.commands.add(accepted)
            await own.committed(position)
            if run.kind == CommandKind.DELETE:
                forget_deleted(own, run.crawl_id)
            if run.kind in (CommandKind.BLOCK_HOST, CommandKind.HOST_DELAY):
                # Update the host even if all its URLs are out: its next outcome would write back the old facts.
                host = own.front.host_named(str(run.args["host"]))
                if host is not None:
                    # A crawl that is not loaded yet may have a lease of the host, and its grants keep to these facts.
                    leased = {lease.row.crawl_id for lease in own.leases if lease.row.host_id == host.host_id}
                    crawls = {crawl.crawl_id for crawl in own.crawls} | leased
                    await own.look_up(crawls)
                    await own.offer_queues([(crawl_id, host.host_id) for crawl_id in crawls], pinned=True)
        log.info("command.accepted", partition=own.partition, command=run.id, kind=run.kind, crawl=run.crawl_id)

    async def _bisect(self, kind: ReportKind, reports: Sequence[Delivered], error: Permanent) -> None:
        if len(reports) == 1:
            await self._bury(kind, reports[0], error)
            return
        middle = len(reports) // 2
        await self._discoveries(reports[:middle])
        await self._discoveries(reports[middle:])

    async def _bury(self, kind: ReportKind, report: Delivered, error: Exception) -> None:
        """Move past one report that can never be applied."""
        own = self._own
        log.error(
            "report.dead_lettered", partition=own.partition, kind=kind, sequence=report.sequence, error=str(error)
        )
        letter = letter_of(kind, report, str(error))
        batch = refused(report, letter) if kind == "discovery" else None
        if batch is None or not await until_resource_available(partial(self._refuse, report, batch)):
            await until_resource_available(partial(self._skip, kind, report, Changes(dead_letters=[letter])))
        own.tally.applied(kind, [report], own.clock.unix_ms() * 1_000_000)
        own.tally.buried([letter])

    async def _skip(self, kind: ReportKind, report: Delivered, changes: Changes) -> None:
        """Write `changes` and move past the report in one transaction."""
        own = self._own
        async with own.writing() as fence:
            position = _after(own.position, kind, report)
            await own.store.apply(fence, position, changes)
            await own.committed(position)

    async def _refuse(self, report: Delivered, batch: DiscoveryTransaction) -> bool:
        """Move past discoveries without any of their links. Return False if even that cannot be written."""
        own = self._own
        try:
            async with own.writing() as fence:
                position = _after(own.position, "discovery", report)
                await own.store.apply_found(
                    fence, position, batch, next_host=own.next_host, max_depth={}, now_ms=own.clock.unix_ms()
                )
                await own.committed(position)
        except Permanent:
            return False
        return True


def _after(position: Position, kind: ReportKind, report: Delivered) -> Position:
    return position.moved(kind, report.sequence, report.at_ns)
