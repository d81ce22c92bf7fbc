"""Ingest: apply the reports of a partition (outcomes and discoveries) to the tables, each report once and in order.

Every batch is one transaction that also moves the position. A batch that can never be written is bisected down to one
report. That report becomes a dead letter in the transaction that moves the position past it. If the disk is full, the
batch is retried in place. Meanwhile the owner keeps its state in memory, so that it can still extend grants.
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, assert_never

import structlog
from msgspec.structs import replace

from api.frontier.dead_letters import letter_of, refused
from api.frontier.discoveries import gather, has_seeds, judged, links_to_judge, with_priorities
from api.frontier.outcome_batch import OutcomeBatch
from api.frontier.stats import TransactionKind
from api.frontier.writer import PartitionWriter
from shared.domain.errors import Permanent, StreamReplaced, Transient
from shared.domain.frontier.commands import CommandKind, check_command
from shared.domain.frontier.states import Position
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveryResult, DiscoveryTransaction, QueueEnd
from shared.domain.ids import CrawlId, HostId, LeaseId
from shared.ports.broker import Broker, Delivered, ReportKind, ReportReader
from shared.runtime.retry import until_resource_available
from shared.wire.messages import Command, Malformed, Outcome, ShardUnreadable, decode_report
from shared.wire.subjects import command

_sequence = attrgetter("sequence")
_Outcome = tuple[Delivered, Outcome | ShardUnreadable | Malformed]

log = structlog.get_logger("orb.frontier")

_READ_S: Final = 60.0
"""Maximum seconds that one read waits for a report. The next read follows at once, so no report is missed."""


def parts(reports: Sequence[Delivered], max_bytes: int) -> Iterator[Sequence[Delivered]]:
    """Split the reports, in order, into parts of at most `max_bytes`. A larger report is a part of its own.

    This bounds the time of a transaction, which grows with the size of its reports.
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
    """Reads the reports of one partition from the broker and applies them in SQL."""

    def __init__(self, writer: PartitionWriter, broker: Broker) -> None:
        self._own = writer.own
        self._writer, self._store, self._clock, self._stats = writer, writer.store, writer.clock, writer.stats
        self._broker = broker
        self._readers: dict[ReportKind, ReportReader] = {}
        self.arrived: dict[int, float] = {}
        """When the outcomes that are not applied yet were received (`Clock.elapsed`), by sequence."""

    async def run(self, kind: ReportKind) -> None:
        """Read and apply reports of one kind (outcome or discovery) until cancelled."""
        own = self._own
        position = own.position
        reader = await self._broker.read_reports(own.partition, kind, position.of(kind), position.at_ns(kind))
        self._readers[kind] = reader
        try:
            while True:
                try:
                    reports = await self._read(reader, kind, own.settings.batch, _READ_S)
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
                        reports = [*reports, *await self._read(reader, kind, own.settings.batch - len(reports), 0.0)]
                    except Transient as error:  # Apply the reports that were read first.
                        lost = error
                for part in parts(reports, own.settings.batch_bytes):
                    own.in_hand[kind] = part[0].at_ns
                    if kind == "outcome":
                        await self.outcomes(part)
                        for report in part:
                            self.arrived.pop(report.sequence, None)
                    else:
                        await self.discoveries(part)
                del own.in_hand[kind]
                if lost is not None:
                    await self._wait_for_broker(kind, lost)
        finally:
            del self._readers[kind]
            await reader.close()

    async def _read(self, reader: ReportReader, kind: ReportKind, max_count: int, wait_s: float) -> Sequence[Delivered]:
        """Return up to `max_count` reports, after waiting at most `wait_s` seconds.

        For each outcome, store in `arrived` when this process received it.
        """
        reports = await reader.read(max_count, wait_s)
        if kind == "outcome":
            self.arrived |= dict.fromkeys(map(_sequence, reports), self._clock.elapsed())
        return reports

    async def purge(self, kind: ReportKind, through: int) -> bool:
        """Delete the reports of a kind up to sequence `through` from the stream.

        Return False, and delete nothing, if no reader is open or the stream may have been replaced.
        """
        reader = self._readers.get(kind)
        return reader is not None and await reader.purge(through)

    async def _wait_for_broker(self, kind: ReportKind, error: Transient) -> None:
        """Wait before the next read, because the last one raised `error`.

        If that is StreamReplaced, raise it at once. The owner then loads its state again, and compares its position
        with the new stream.
        """
        if isinstance(error, StreamReplaced):
            raise error
        log.warning("reports.delayed", partition=self._own.partition, kind=kind, error=str(error))
        await asyncio.sleep(error.retry_in)

    async def discoveries(self, reports: Sequence[Delivered]) -> None:
        """Apply discoveries in order, in one or more batches.

        A command changes only URLs that were reported before the command. So one batch must not contain reports from
        before and after a command in progress. The command itself is not in `reports`, because another task reads it
        from the stream. For example, the reports 5, 6 and 9 and a command with the sequence 7 make two batches: 5 and
        6, then 9.
        """
        # A batch marks all its rows alike. The command skips the rows with its mark.
        begun = 0
        for sequence in self._own.commands.sequences():
            place = bisect_left(reports, sequence, begun, key=_sequence)
            if place > begun:
                await self._discoveries(reports[begun:place])
                begun = place
        if reports[begun:]:
            await self._discoveries(reports[begun:])

    async def _discoveries(self, reports: Sequence[Delivered]) -> None:
        """Apply discoveries in one transaction.

        If they have seeds, first wait until all earlier commands are accepted. An earlier deletion of seeds must not
        delete them. If one of these commands lies between the reports, split them there.

        If the reports can never be written together, bisect them until only the reports at fault remain. These become
        dead letters.
        """
        own = self._own
        batch = self._gathered(reports)
        if has_seeds(batch):
            waited = await self._accepted_before(reports[-1])
            if any(reports[0].sequence < sequence < reports[-1].sequence for sequence in own.commands.sequences()):
                await self.discoveries(reports)
                return
            if waited:  # The exclusions may be others now.
                batch = self._gathered(reports)
        try:
            result = await until_resource_available(partial(self._discover, reports[-1], batch))
        except Permanent as error:
            if len(reports) == 1:
                await self._dead_letter("discovery", reports[0], error)
                return
            middle = len(reports) // 2
            await self._discoveries(reports[:middle])
            await self._discoveries(reports[middle:])
            return
        self._stats.applied("discovery", reports, self._clock.unix_ms() * 1_000_000)
        self._stats.discovered(result, batch.dead_letters)
        if result.gaps:
            log.error("reports.lost", partition=own.partition, gaps=result.gaps)
        for letter in batch.dead_letters:
            log.warning("report.rejected", partition=own.partition, evidence=letter.evidence)

    def _gathered(self, reports: Sequence[Delivered]) -> DiscoveryTransaction:
        own = self._own
        return gather(reports, own.partition, own.settings.partitions, own.crawls.exclusions)

    async def _accepted_before(self, report: Delivered) -> bool:
        """Wait until the task for outcomes has accepted all commands that are before `report` in the stream.

        Return False if none had to be awaited.
        """
        own, waited = self._own, False
        while own.position.outcome_seq < report.sequence:
            seen = own.moved.revision
            try:
                last = await self._broker.last_command(own.partition)
            except Transient as error:
                await self._wait_for_broker("discovery", error)
                continue
            if own.position.outcome_seq >= min(last, report.sequence):
                break
            waited = True
            await own.moved.changed(seen, own.settings.sweep_interval_s)
        return waited

    async def _discover(self, last: Delivered, batch: DiscoveryTransaction) -> DiscoveryResult:
        """Write a batch of discoveries in one transaction, which moves the position past the report `last`."""
        own = self._own
        async with self._writer.writing(TransactionKind.DISCOVERIES) as fence:
            position = self._after("discovery", last)
            crawl_ids = {mark.crawl_id for mark, _, _ in batch.messages}
            await self._writer.look_up(crawl_ids)
            await self._writer.load_page_counts(crawl_ids)
            batch, now_ms = await self._judged(batch), self._clock.unix_ms()
            result = await self._store.apply_found(
                fence,
                position,
                with_priorities(batch, own.crawls.priorities(crawl_ids)),
                next_host=own.next_host,
                max_depth=own.crawls.max_depths(crawl_ids),
                now_ms=now_ms,
                marks=own.commands.marks(last.sequence),
                max_requisites=own.crawls.max_requisites(crawl_ids),
                signs=own.signs(crawl_ids, now_ms),
            )
            await self._writer.load_queues(own.discovered(result, self._clock.elapsed(), now_ms))
            self._writer.committed(position)
            return result

    async def _judged(self, batch: DiscoveryTransaction) -> DiscoveryTransaction:
        """Check some links of the batch against the present scope of their crawl. Return the batch with the results.

        The checked links are the seeds, and the links that a worker checked under an earlier revision of the spec.
        """
        crawls = links_to_judge(batch, self._own.crawls)
        if not crawls:
            return batch
        via = {link.via_host for place in crawls for link in batch.messages[place][1]} - {0}
        return judged(batch, crawls, await self._store.host_names(via) if via else {})

    async def outcomes(self, reports: Sequence[Delivered]) -> None:
        """Apply outcomes and accept commands, in order. The outcomes between two commands are one batch."""
        run: list[_Outcome] = []
        for report in reports:
            try:
                message = decode_report(report.data)
            except Malformed as error:
                run.append((report, error))
                continue
            if isinstance(message, Command) and report.subject != command(self._own.partition):
                # Workers may publish on the subject of outcomes. Without its payload the letter cannot be replayed.
                forged = Malformed(f"command {message.id} ({message.kind}) is not on the subject of commands")
                run.append((replace(report, data=b""), forged))
            elif isinstance(message, Command):
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
                await self._dead_letter("outcome", run[0][0], error)
                return
            middle = len(run) // 2
            await self._outcome_run(run[:middle])
            await self._outcome_run(run[middle:])
        else:
            self._stats.applied("outcome", [report for report, _ in run], self._clock.unix_ms() * 1_000_000)
            self._stats.changed(batch.changes, own.crawls, self._clock.elapsed())
            self._stats.discarded.update(batch.discarded)
            await self._end_queues(unfinished)

    async def _settle(self, run: Sequence[_Outcome]) -> tuple[OutcomeBatch, Sequence[QueueEnd]]:
        """Write the outcomes of `run` in one transaction. Return what was written, and the queues that are unfinished.

        If the outcomes show that a host is unreachable, the transaction also fails the URLs in the host's queues. One
        transaction fails only a limited number of URLs. A queue is unfinished if it may have more URLs to fail. The
        caller must pass the unfinished queues to `_end_queues`.
        """
        own = self._own
        async with self._writer.writing(TransactionKind.OUTCOMES):
            crawl_ids = {CrawlId(message.crawl) for _, message in run if isinstance(message, Outcome)}
            await self._writer.look_up(crawl_ids)
            await self._writer.load_page_counts(crawl_ids)
            await self._writer.load_queues(self._missing_queues(run), pinned=True)
            # No await between this read and the decisions: a queue may be dropped from memory at any time.
            batch = self._writer.batch(random.random)
            for report, message in run:
                match message:
                    case Malformed():
                        letter = letter_of("outcome", report, f"cannot be read: {message}")
                        batch.changes.dead_letters.append(letter)
                    case ShardUnreadable():
                        batch.unreadable(message, own.partition, report.at_ns // 1_000_000)
                    case Outcome():
                        batch.outcome(message, self.arrived.get(report.sequence))
                    case _:
                        assert_never(message)
            unfinished = await self._writer.commit(batch, self._after("outcome", run[-1][0]))
            for crawl_id in crawl_ids:
                if own.crawls.get(crawl_id) is None:  # Nothing dispatches its queues, so they would never be evicted.
                    own.hosts.drop_crawl(crawl_id)
            return batch, unfinished

    def _missing_queues(self, run: Sequence[_Outcome]) -> Sequence[tuple[CrawlId, HostId]]:
        """Return the queues of these outcomes' leases that are not in memory.

        A command, a new revision or the end of a crawl drops its queues from memory while workers have leases of them.
        The outcomes are decided by the facts of their queues, such as whether the host ever gave a page.
        """
        leases = (self._own.leases.get(LeaseId(message.lease)) for _, message in run if isinstance(message, Outcome))
        keys = {(held.row.crawl_id, held.row.host_id) for held in leases if held is not None}
        return sorted(key for key in keys if self._own.hosts.find(*key) is None)

    async def _end_queues(self, ends: Sequence[QueueEnd]) -> None:
        """Fail the remaining URLs of queues whose host is unreachable, in several transactions.

        If this is interrupted, the remaining URLs fail when the next request to their host gets no answer.
        """
        while ends:
            ends = await until_resource_available(partial(self._end_some, ends))

    async def _end_some(self, ends: Sequence[QueueEnd]) -> Sequence[QueueEnd]:
        """Fail a limited number of URLs of these queues in one transaction. Return the queues that may have more."""
        changes = self._own.new_changes()
        changes.give_up.extend(ends)
        async with self._writer.writing(TransactionKind.OUTCOMES):
            return await self._writer.apply(changes)

    async def _command(self, report: Delivered, command: Command) -> None:
        """Store a command, so that CommandRunner applies its chunks concurrently with later outcomes.

        A command that is not valid becomes a dead letter.
        """
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
            await self._dead_letter("outcome", report, error)

    async def _accept(self, report: Delivered, run: CommandRun) -> None:
        """Store a command and move the position past its message in one transaction."""
        own = self._own
        async with self._writer.writing(TransactionKind.COMMAND) as fence:
            position = self._after("outcome", report)
            accepted = await self._store.accept_command(fence, position, run, self._clock.unix_ms())
            if accepted is not None:
                own.commands.add(accepted)
            self._writer.committed(position)
            if run.kind == CommandKind.DELETE:
                own.forget_deleted(run.crawl_id, self._clock.elapsed())
            if run.kind in (CommandKind.HOST_POLICY, CommandKind.UNBLOCK_HOST):
                # Update the host even if all its URLs are out: its next outcome would write back the old facts.
                queues = own.queues_of_host(str(run.args["host"]))
                await self._writer.look_up(crawl_id for crawl_id, _ in queues)
                await self._writer.load_queues(queues, pinned=True)
        log.info("command.accepted", partition=own.partition, command=run.id, kind=run.kind, crawl=run.crawl_id)

    async def _dead_letter(self, kind: ReportKind, report: Delivered, error: Exception) -> None:
        """Store a report that can never be applied as a dead letter, and move the position past it.

        `error` becomes the evidence. The links of a report of discoveries are counted as refused.
        """
        own = self._own
        log.error(
            "report.dead_lettered", partition=own.partition, kind=kind, sequence=report.sequence, error=str(error)
        )
        letter = letter_of(kind, report, str(error))
        batch = refused(report, letter) if kind == "discovery" else None
        if batch is None or not await until_resource_available(partial(self._refuse, report, batch)):
            await until_resource_available(partial(self._skip, kind, report, Changes(dead_letters=[letter])))
        self._stats.applied(kind, [report], self._clock.unix_ms() * 1_000_000)
        self._stats.dead_lettered([letter])

    async def _skip(self, kind: ReportKind, report: Delivered, changes: Changes) -> None:
        """Write `changes` and move the position past the report in one transaction."""
        async with self._writer.writing():
            await self._writer.apply(changes, self._after(kind, report))

    async def _refuse(self, report: Delivered, batch: DiscoveryTransaction) -> bool:
        """Write `batch`, which only counts the report's links as refused, and move the position past the report.

        Return False if even that can never be written.
        """
        own = self._own
        try:
            async with self._writer.writing() as fence:
                position = self._after("discovery", report)
                await self._store.apply_found(
                    fence, position, batch, next_host=own.next_host, max_depth={}, now_ms=self._clock.unix_ms()
                )
                self._writer.committed(position)
        except Permanent:
            return False
        return True

    def _after(self, kind: ReportKind, report: Delivered) -> Position:
        """Return the partition's position after this report of the given kind."""
        return self._own.position.moved(kind, report.sequence, report.at_ns)
