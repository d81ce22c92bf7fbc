"""Runs the commands in progress of a partition, chunk by chunk, between its outcomes.

The outcome reader only accepts a command, in the transaction that moves the position past it. Its chunks are
transactions of their own, each of which keeps how far the command is, so that a takeover goes on with the next one.
Between two chunks the partition is free for whatever waits, and a master runs one chunk at a time over all its
partitions: an outcome waits for two chunks at most.

The order with the outcomes is kept by marks. A row that an outcome or a discovery writes behind a command in progress
carries the command's number, and the command does not touch it (docs/decisions).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from api.frontier.ownership import Ownership
from api.frontier.replaying import publish_letters
from api.frontier.settle import Draft
from api.frontier.tally import Work
from shared.domain.command import CommandKind
from shared.domain.command_progress import hosts_of_chunk
from shared.domain.errors import Permanent, Transient
from shared.domain.ids import CrawlId
from shared.domain.ledger import CommandRun, DeadLetter
from shared.ports.retrying import until_there_is_room
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.frontier")

_SEEDS: Final = (CommandKind.DELETE_SEEDS, CommandKind.DELETE_SEEDS_BETWEEN)
_EVIDENCE_CHARS: Final = 2000


class CommandRunner:
    """Applies the commands in progress of one partition. `turn` is shared by the owners of a master."""

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
                # Without a wake-up look again all the same: the stream may have come back shorter.
                with suppress(TimeoutError):
                    async with asyncio.timeout(own.settings.sweep_s if len(own.commands) else None):
                        await own.commands.woken()

    async def _ready(self, run: CommandRun) -> bool:
        """Return True if the command may go on. Seeds that were accepted before their deletion was asked for are there
        to be deleted, so it waits until they are applied; nothing else waits with it."""
        own = self._own
        applied = own.position.discovery_seq
        if run.kind not in _SEEDS or applied >= run.sequence:
            return True
        now = own.clock.elapsed()
        through, asked_at = self._through.get(run.id, (0, float("-inf")))
        if now - asked_at >= own.settings.sweep_s:
            try:
                through = await own.broker.last_report(own.partition, "discovery")
            except Transient as error:
                log.warning("command.waits", partition=own.partition, id=run.id, error=str(error))
                return False
            self._through[run.id] = (through, now)
        return own.position.discovery_seq >= min(through, run.sequence)

    async def _advance(self, run: CommandRun) -> None:
        """Apply the next chunk of a command."""
        try:
            sent, upto = await publish_letters(self._own, run) if run.kind == CommandKind.REPLAY else ([], None)
            await until_there_is_room(partial(self._chunk, run, sent, upto))
        except Permanent as error:
            await until_there_is_room(partial(self._give_up, run, error))

    async def _chunk(self, run: CommandRun, sent: Sequence[int], upto: int | None) -> None:
        """One transaction."""
        own = self._own
        async with self._turn, own.writing(Work.COMMAND) as fence:
            if not own.commands.current(run):
                return  # A later command has ended it.
            if run.kind in _SEEDS:
                await self._call_back(run)
                fence = own.fence
            rest = await own.store.run_command(fence, run, own.clock.unix_ms(), sent=sent, upto=upto)
            own.commands.advance(run, rest)
            await own.committed()
            self._remember(run, applied=rest is None)
        if rest is None:
            self._through.pop(run.id, None)
            log.info("command.applied", partition=own.partition, id=run.id, kind=run.kind, crawl=run.crawl_id)

    async def _call_back(self, run: CommandRun) -> None:
        """Queue again what is out in leases that no worker has begun (within `writing`). It bears no mark: the command
        means it.

        Only the hosts at which the next chunk may look count: their leases are a bounded number, those of a crawl not.
        """
        own = self._own
        unbegun = [held for held in own.leases.of_crawl(run.crawl_id) if held.grant is None]
        meant = hosts_of_chunk(run, {held.row.host_id: held.row.host for held in unbegun})
        unbegun = [held for held in unbegun if held.row.host_id in meant]
        if unbegun:
            now, now_ms = own.clock.elapsed(), own.clock.unix_ms()
            draft = Draft(own.leases, own.front, own.crawls, now, now_ms, lambda: 0.5)
            for held in unbegun:
                draft.end(held)
            await own.store.apply(own.fence, own.position, draft.changes)
            draft.commit()
            await own.committed()
            own.strays_suspected = True

    def _remember(self, run: CommandRun, *, applied: bool) -> None:
        """Have the rows that a chunk changed read anew (within `writing`): soon, and behind the last one for sure."""
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
        """One transaction: a command that can never be applied becomes a dead letter."""
        own = self._own
        message = encode(Command(id=run.id, crawl=run.crawl_id, kind=run.kind, args=run.args))
        now_ms = own.clock.unix_ms()
        letter = DeadLetter(run.crawl_id or None, "outcome", now_ms, str(error)[:_EVIDENCE_CHARS], payload=message)
        async with own.writing(Work.COMMAND) as fence:
            if not own.commands.current(run):
                return
            changes = own.changes()
            changes.dead_letters.append(letter)
            changes.commands_given_up.append(run.id)
            await own.store.apply(fence, own.position, changes)
            own.commands.advance(run, None)
            await own.committed()
        own.tally.buried([letter])
        log.error("command.given_up", partition=own.partition, id=run.id, kind=run.kind, error=str(error))


def forget_deleted(own: Ownership, crawl_id: CrawlId) -> None:
    """Forget what is remembered of a deleted crawl, so that its late outcomes are stale (within `writing`).

    A lease that was granted keeps its host's slot while its grant may last; the sweep ends it then.
    """
    own.strays_suspected = True
    for held in own.leases.of_crawl(crawl_id):
        unbegun = held.grant is None
        own.leases.settle(held.row.lease_id, {}, freed=unbegun)
        host = own.front.host(held.row.host_id)
        if host is not None and unbegun:
            own.front.released(host, held.row.slot, own.clock.elapsed(), held.row.delay_ms / 1000)
    own.front.drop_crawl(crawl_id)
