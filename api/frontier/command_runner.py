"""Run the commands in progress of a partition, chunk by chunk, between its outcomes.

The outcome reader only accepts a command, in the transaction that moves the position past it. Each chunk is a
transaction of its own and stores the command's progress, so that a new owner continues with the next chunk. Between two
chunks other transactions of the partition may run. A master runs one chunk at a time over all its partitions, so an
outcome waits for two chunks at most.

Marks keep the order of commands and reports. A row that an outcome or a discovery writes after a command in progress
carries the command's number, and the command does not touch it (docs/decisions).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from api.frontier.dead_letter_replay import publish_letters
from api.frontier.outcome_batch import OutcomeBatch
from api.frontier.ownership import Ownership
from api.frontier.stats import TransactionKind
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.command_progress import hosts_of_chunk
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.store_model import CommandRun, DeadLetterRow
from shared.domain.ids import CrawlId
from shared.runtime.retry import until_resource_available
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.frontier")

_SEEDS: Final = (CommandKind.DELETE_SEEDS, CommandKind.DELETE_SEEDS_BETWEEN)
_EVIDENCE_CHARS: Final = 2000


class CommandRunner:
    """The runner of one partition's commands. The owners of a master share `turn`."""

    def __init__(self, own: Ownership, turn: asyncio.Lock) -> None:
        self._own = own
        self._turn = turn
        self._through: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        """Apply one chunk of each crawl's oldest command in turn, until cancelled."""
        own = self._own
        while True:
            ready = [run for run in own.commands.heads() if await self._ready(run)]
            for run in ready:
                await self._advance(run)
            if not ready:
                # Check again even without a wake-up: the stream may have come back shorter.
                with suppress(TimeoutError):
                    async with asyncio.timeout(own.settings.sweep_interval_s if len(own.commands) else None):
                        await own.commands.woken()

    async def _ready(self, run: CommandRun) -> bool:
        """Return True if the command may run.

        A deletion of seeds must also delete those that were accepted before it. So it waits until they are applied, and
        delays nothing else.
        """
        own = self._own
        applied = own.position.discovery_seq
        if run.kind not in _SEEDS or applied >= run.sequence:
            return True
        now = own.clock.elapsed()
        through, asked_at = self._through.get(run.id, (0, float("-inf")))
        if now - asked_at >= own.settings.sweep_interval_s:
            try:
                through = await own.broker.last_report(own.partition, "discovery")
            except Transient as error:
                log.warning("command.delayed", partition=own.partition, command=run.id, error=str(error))
                return False
            self._through[run.id] = (through, now)
        return own.position.discovery_seq >= min(through, run.sequence)

    async def _advance(self, run: CommandRun) -> None:
        """Apply the next chunk of a command."""
        try:
            sent, upto = await publish_letters(self._own, run) if run.kind == CommandKind.REPLAY else ([], None)
            await until_resource_available(partial(self._chunk, run, sent, upto))
        except Permanent as error:
            await until_resource_available(partial(self._give_up, run, error))

    async def _chunk(self, run: CommandRun, sent: Sequence[int], upto: int | None) -> None:
        """Apply one chunk in one transaction."""
        own = self._own
        async with self._turn, own.writing(TransactionKind.COMMAND) as fence:
            if not own.commands.current(run):
                return  # A later command has ended it.
            if run.kind in _SEEDS:
                await self._recall_ungranted(run)
                fence = own.fence
            rest = await own.store.run_command(fence, run, own.clock.unix_ms(), sent=sent, upto=upto)
            own.commands.advance(run, rest)
            await own.committed()
            self._remember(run, applied=rest is None)
        if rest is None:
            self._through.pop(run.id, None)
            log.info("command.applied", partition=own.partition, command=run.id, kind=run.kind, crawl=run.crawl_id)

    async def _recall_ungranted(self, run: CommandRun) -> None:
        """End leases that no worker has begun, so that their URLs are queued again (within `writing`).

        The rows get no mark, because the command applies to them. Only hosts of the next chunk are considered: their
        leases are bounded in number, unlike those of the crawl.
        """
        own = self._own
        unbegun = [held for held in own.leases.of_crawl(run.crawl_id) if held.grant is None]
        hosts = hosts_of_chunk(run, {held.row.host_id: held.row.host for held in unbegun})
        unbegun = [held for held in unbegun if held.row.host_id in hosts]
        if unbegun:
            now, now_ms = own.clock.elapsed(), own.clock.unix_ms()
            batch = OutcomeBatch(own.leases, own.front, own.crawls, now, now_ms, lambda: 0.5)
            for held in unbegun:
                batch.end(held)
            await own.store.apply(own.fence, own.position, batch.changes)
            batch.commit()
            await own.committed()
            own.strays_suspected = True

    def _remember(self, run: CommandRun, *, applied: bool) -> None:
        """Update memory after a chunk (within `writing`).

        Queues that are not in memory are read soon after each chunk, and all queues of the crawl after the last one.
        """
        own = self._own
        if run.kind == CommandKind.DELETE:
            if applied:
                forget_deleted(own, run.crawl_id)
            return
        if own.crawls.get(run.crawl_id) is not None:
            if applied:
                own.front.mark_stale(run.crawl_id)
            else:
                own.front.mark_incomplete(run.crawl_id)

    async def _give_up(self, run: CommandRun, error: Permanent) -> None:
        """Make a command that can never be applied a dead letter, in one transaction."""
        own = self._own
        message = encode(Command(id=run.id, crawl=run.crawl_id, kind=run.kind, args=run.args))
        now_ms = own.clock.unix_ms()
        letter = DeadLetterRow(run.crawl_id or None, "outcome", now_ms, str(error)[:_EVIDENCE_CHARS], payload=message)
        async with own.writing(TransactionKind.COMMAND) as fence:
            if not own.commands.current(run):
                return
            changes = own.changes()
            changes.dead_letters.append(letter)
            changes.commands_given_up.append(run.id)
            await own.store.apply(fence, own.position, changes)
            own.commands.advance(run, None)
            await own.committed()
        own.tally.buried([letter])
        log.error("command.dead_lettered", partition=own.partition, command=run.id, kind=run.kind, error=str(error))


def forget_deleted(own: Ownership, crawl_id: CrawlId) -> None:
    """Forget a deleted crawl's leases and queues, so that its late outcomes are stale (within `writing`).

    A granted lease keeps its host's slot until its grant expires. Then the sweep ends it.
    """
    own.strays_suspected = True
    for held in own.leases.of_crawl(crawl_id):
        unbegun = held.grant is None
        own.leases.settle(held.row.lease_id, {}, freed=unbegun)
        host = own.front.host(held.row.host_id)
        if host is not None and unbegun:
            own.front.release(host, held.row.slot, own.clock.elapsed(), held.row.delay_ms / 1000)
    own.front.drop_crawl(crawl_id)
