"""Ingest: keeps the tables equal to what the partition's two report subjects say, each report once and in order.

Every batch is one transaction that also moves the position. A batch that can never be written is cut in two until the
culprit stands alone; it becomes a dead letter in the transaction that moves the position past it. What a full disk
refuses is tried again where it stands, and the partition's grants go on meanwhile: were it loaded anew for every try,
nobody would extend them.
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import assert_never

import structlog

from api.frontier.burying import letter_of, refused
from api.frontier.command_runner import forget_deleted
from api.frontier.discoveries import gather
from api.frontier.ownership import Ownership
from api.frontier.settle import Draft
from api.frontier.tally import Work
from shared.domain.command import CommandKind, check_command
from shared.domain.errors import Permanent, StreamReplaced, Transient
from shared.domain.frontier import Position
from shared.domain.ids import CrawlId
from shared.domain.ledger import Changes, CommandRun, Found, FoundBatch, QueueEnd
from shared.ports.broker import Delivered, ReportKind
from shared.ports.retrying import until_there_is_room
from shared.wire.messages import Command, Malformed, Outcome, Unreadable, decode_report

_Outcome = tuple[Delivered, Outcome | Unreadable | Malformed]

log = structlog.get_logger("orb.frontier")


def parts(reports: Sequence[Delivered], most_bytes: int) -> Iterator[Sequence[Delivered]]:
    """The reports in their order, cut where a part would hold more than `most_bytes`; a part holds one at least.

    A small report names a few URLs and one of an upload hundreds: it is their bytes that a transaction's time follows.
    """
    begun, held = 0, 0
    for place, report in enumerate(reports):
        if place > begun and held + len(report.data) > most_bytes:
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
                    except Transient as error:  # what is in hand is applied first
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
        """Wait before the next read. Raise StreamReplaced, so that the owner loads anew and compares its position."""
        if isinstance(error, StreamReplaced):
            raise error
        log.warning("ingest.waits", partition=self._own.partition, kind=kind, error=str(error))
        await asyncio.sleep(error.retry_in)

    async def discoveries(self, reports: Sequence[Delivered]) -> None:
        """Apply discoveries, in parts where a command in progress was accepted between them."""
        begun = 0
        for sequence in self._own.commands.sequences():
            place = bisect_left(reports, sequence, begun, key=attrgetter("sequence"))
            if place > begun:
                await self._discoveries(reports[begun:place])
                begun = place
        if reports[begun:]:
            await self._discoveries(reports[begun:])

    async def _discoveries(self, reports: Sequence[Delivered]) -> None:
        """Apply discoveries, in halves where they cannot be written together."""
        own = self._own
        batch = gather(reports, own.partition, own.settings.partitions)
        try:
            found = await until_there_is_room(partial(self._find, reports[-1], batch))
        except Permanent as error:
            await self._halve("discovery", reports, error)
            return
        own.tally.applied("discovery", reports, own.clock.unix_ms() * 1_000_000)
        own.tally.found(found, batch.dead_letters)
        if found.gaps:
            log.error("ingest.gap", partition=own.partition, gaps=found.gaps)
        for letter in batch.dead_letters:
            log.warning("ingest.malformed", partition=own.partition, evidence=letter.evidence)

    async def _find(self, last: Delivered, batch: FoundBatch) -> Found:
        """One transaction."""
        own = self._own
        async with own.writing(Work.DISCOVERIES) as fence:
            position = own.position.moved("discovery", last.sequence, last.at_ns)
            crawl_ids = {mark.crawl_id for mark, _, _ in batch.messages}
            await own.look_up(crawl_ids)
            found = await own.store.apply_found(
                fence,
                position,
                batch,
                next_host=own.next_host,
                max_depth=own.crawls.max_depths(crawl_ids),
                now_ms=own.clock.unix_ms(),
                marks=own.commands.marks(last.sequence),
            )
            own.next_host = found.next_host
            for lease_id, fingerprint, depth in found.lowered:
                own.leases.lower(lease_id, fingerprint, depth)
            unheld = [key for key, n in found.queues.items() if not own.front.added(*key, n)]
            await own.offer_queues(unheld)
            await own.committed(position)
            return found

    async def outcomes(self, reports: Sequence[Delivered]) -> None:
        """Apply outcomes and commands in their order: what lies between two commands is one batch."""
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
            draft, unfinished = await until_there_is_room(partial(self._settle, run))
        except Permanent as error:
            if len(run) == 1:
                await self._bury("outcome", run[0][0], error)
                return
            middle = len(run) // 2
            await self._outcome_run(run[:middle])
            await self._outcome_run(run[middle:])
        else:
            own.tally.applied("outcome", [report for report, _ in run], own.clock.unix_ms() * 1_000_000)
            own.tally.changed(draft.changes, own.crawls, own.clock.elapsed())
            own.tally.discarded.update(draft.discarded)
            await self._end_queues(unfinished)

    async def _settle(self, run: Sequence[_Outcome]) -> tuple[Draft, Sequence[QueueEnd]]:
        """One transaction."""
        own = self._own
        async with own.writing(Work.OUTCOMES) as fence:
            await own.look_up(CrawlId(message.crawl) for _, message in run if isinstance(message, Outcome))
            now, now_ms = own.clock.elapsed(), own.clock.unix_ms()
            draft = Draft(own.leases, own.front, own.crawls, now, now_ms, random.random, own.changes())
            for report, message in run:
                match message:
                    case Malformed():
                        letter = letter_of("outcome", report, f"cannot be read: {message}")
                        draft.changes.dead_letters.append(letter)
                    case Unreadable():
                        draft.unreadable(message, own.partition, report.at_ns // 1_000_000, own.settings)
                    case Outcome():
                        draft.outcome(message, own.settings)
                    case _:
                        assert_never(message)
            position = _after(own.position, "outcome", run[-1][0])
            unfinished = await own.store.apply(fence, position, draft.changes)
            draft.commit()
            await own.committed(position)
            return draft, unfinished

    async def _end_queues(self, ends: Sequence[QueueEnd]) -> None:
        """Go on with hosts that were given up, others in between. Broken off, what is left is given up with the next
        request that their hosts do not answer."""
        while ends:
            ends = await until_there_is_room(partial(self._end_some, ends))

    async def _end_some(self, ends: Sequence[QueueEnd]) -> Sequence[QueueEnd]:
        """One transaction; what is left."""
        own = self._own
        changes = own.changes()
        changes.give_up.extend(ends)
        async with own.writing(Work.OUTCOMES) as fence:
            left = await own.store.apply(fence, own.position, changes)
            await own.committed()
        return left

    async def _command(self, report: Delivered, command: Command) -> None:
        """Accept a command; its chunks follow beside the outcomes (CommandRunner)."""
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
            await until_there_is_room(partial(self._accept, report, run))
        except (Permanent, ValueError) as error:
            await self._bury("outcome", report, error)

    async def _accept(self, report: Delivered, run: CommandRun) -> None:
        """One transaction."""
        own = self._own
        async with own.writing(Work.COMMAND) as fence:
            position = _after(own.position, "outcome", report)
            accepted = await own.store.accept_command(fence, position, run, own.clock.unix_ms())
            if accepted is not None:
                own.commands.add(accepted)
            await own.committed(position)
            if run.kind == CommandKind.DELETE:
                forget_deleted(own, run.crawl_id)
            if run.kind in (CommandKind.BLOCK_HOST, CommandKind.HOST_DELAY):
                # Also where all of the host's URLs are out: its next outcome would write back what was known before.
                host = own.front.named(str(run.args["host"]))
                if host is not None:
                    keys = [(crawl.crawl_id, host.host_id) for crawl in own.crawls]
                    await own.offer_queues(keys, pinned=True)
        log.info("command.accepted", partition=own.partition, id=run.id, kind=run.kind, crawl=run.crawl_id)

    async def _halve(self, kind: ReportKind, reports: Sequence[Delivered], error: Permanent) -> None:
        if len(reports) == 1:
            await self._bury(kind, reports[0], error)
            return
        middle = len(reports) // 2
        await self._discoveries(reports[:middle])
        await self._discoveries(reports[middle:])

    async def _bury(self, kind: ReportKind, report: Delivered, error: Exception) -> None:
        """Move past one report that can never be applied."""
        own = self._own
        log.error("ingest.buried", partition=own.partition, kind=kind, sequence=report.sequence, error=str(error))
        letter = letter_of(kind, report, str(error))
        batch = refused(report, letter) if kind == "discovery" else None
        if batch is None or not await until_there_is_room(partial(self._refuse, report, batch)):
            await until_there_is_room(partial(self._pass_by, kind, report, Changes(dead_letters=[letter])))
        own.tally.applied(kind, [report], own.clock.unix_ms() * 1_000_000)
        own.tally.buried([letter])

    async def _pass_by(self, kind: ReportKind, report: Delivered, changes: Changes) -> None:
        """One transaction."""
        own = self._own
        async with own.writing() as fence:
            position = _after(own.position, kind, report)
            await own.store.apply(fence, position, changes)
            await own.committed(position)

    async def _refuse(self, report: Delivered, batch: FoundBatch) -> bool:
        """Move past discoveries with none of their links; False when even that cannot be written."""
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
