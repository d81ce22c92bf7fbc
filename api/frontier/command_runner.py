"""Apply the commands in progress of a partition, in chunks.

When a command's message is read, the command is only stored. This module applies stored commands. Each chunk is a
transaction of its own and stores the command's progress, so that a new owner continues with the next chunk. Between two
chunks other transactions of the partition may run. A master applies one chunk at a time over all its partitions.

Outcomes and discoveries may write rows while a command is in progress. They mark such rows with the command's number.
The command skips these rows, because their reports came after the command (docs/decisions).

A REPLAY publishes the messages of dead letters again. Each message has an id made from its dead letter. The letter is
deleted after the broker acknowledged the message. If the process ends in between, the message is published once more.
Owners apply the message only once, as they do with any repeated message.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from api.frontier.leases import TrackedLease
from api.frontier.rediscovery import Rediscovery
from api.frontier.stats import TransactionKind
from api.frontier.writer import PartitionWriter
from shared.domain.crawl.scope_change import ChangedScope
from shared.domain.crawl.wider_scope import Rediscovered
from shared.domain.errors import Permanent, Refused, Transient
from shared.domain.frontier.command_progress import hosts_of_chunk, passes_again
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.store_model import CommandRun, DeadLetterRow, MessageDeadLetter
from shared.ports.archive import PageArchive
from shared.ports.broker import Broker, ReportKind
from shared.runtime.retry import until_resource_available
from shared.wire.items import crawl_of
from shared.wire.messages import Command, Malformed, decode_discoveries, decode_report, encode

log = structlog.get_logger("orb.frontier")

_SEEDS: Final = (CommandKind.DELETE_SEEDS, CommandKind.DELETE_SEEDS_BETWEEN, CommandKind.SEED_SET)
_EVIDENCE_CHARS: Final = 2000
_LETTERS_AT_ONCE: Final = 50
_LEASES_AT_ONCE: Final = 50
_LEASED_AGAIN_S: Final = 0.5


class CommandRunner:
    """Applies the commands in progress of one partition, one chunk at a time.

    - `turn`: a lock that the owners of a master share, so that only one of them applies a chunk at a time.
    - `archive`: the archive of pages, None if this master cannot read it.
    """

    def __init__(
        self, writer: PartitionWriter, broker: Broker, turn: asyncio.Lock, archive: PageArchive | None = None
    ) -> None:
        self._own, self._commands = writer.own, writer.own.commands
        self._writer, self._store, self._clock = writer, writer.store, writer.clock
        self._broker = broker
        self._turn = turn
        self._rediscovery = Rediscovery(archive, broker, self._own.settings.partitions)
        self._without_archive: set[str] = set()
        self._through: dict[str, tuple[int, float]] = {}
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Apply one chunk of each crawl's oldest command in turn, until cancelled."""
        own, commands = self._own, self._commands
        while True:
            seen = own.moved.revision
            ready = [run for run in commands.heads() if await self._ready(run)]
            for run in ready:
                await self._advance(run)
            if not ready:
                # Check again even without a wake-up: the stream may have come back shorter, and grants end.
                await own.moved.changed(seen, own.settings.sweep_interval_s if len(commands) else None)

    async def _ready(self, run: CommandRun) -> bool:
        """Return True if the command may run now. A command that waits delays only later commands of its crawl.

        - A deletion of seeds, also by a SEED_SET, waits until the seeds that were accepted before it are applied.
        - EXCLUDE and RESCOPE wait until no worker may request a URL that they forbid.
        - A SEED_SET goes through its list of removed seeds twice. The first pass withdraws the seeds that are not
          leased. The second pass withdraws the leased ones, so each chunk waits until no worker may request its seeds.
        - REDISCOVER waits until no worker compares links with an earlier scope.
        """
        own = self._own
        if self._clock.elapsed() < self._not_before.get(run.id, 0.0):
            return False
        if run.kind == CommandKind.EXCLUDE:
            return self._exclude_may_run(run)
        if run.kind == CommandKind.RESCOPE:
            return await self._rescope_may_run(run)
        if run.kind == CommandKind.REDISCOVER:
            return await self._prepare_rediscover(run)
        applied = own.position.discovery_seq
        if passes_again(run) and not await self._seed_set_may_run(run):
            return False
        if run.kind not in _SEEDS or applied >= run.sequence:
            return True
        now = self._clock.elapsed()
        through, asked_at = self._through.get(run.id, (0, float("-inf")))
        if now - asked_at >= own.settings.sweep_interval_s:
            try:
                through = await self._broker.last_report(own.partition, "discovery")
            except Transient as error:
                log.warning("command.delayed", partition=own.partition, command=run.id, error=str(error))
                return False
            self._through[run.id] = (through, now)
        return own.position.discovery_seq >= min(through, run.sequence)

    def _exclude_may_run(self, run: CommandRun) -> bool:
        """Return True if this EXCLUDE may run: no worker can still request a URL that the new exclusion covers.

        Both of these must be true:

        - This owner has read the new exclusion. So the owner gives no new grant for a URL that the exclusion covers.
        - No shard with a live grant contains such a URL.
        """
        # The second check does not tell the rules apart. So the command also waits for live grants of shards with a URL
        # that another exclusion covers, or that the crawl's scope excludes.
        exclusions, now = self._own.crawls.exclusions, self._clock.elapsed()
        if exclusions.revision < int(str(run.args["revision"])):
            return False
        return not any(held.live(now) and held.excluded(exclusions) for held in self._own.leases)

    async def _seed_set_may_run(self, run: CommandRun) -> bool:
        """Return True if the next chunk of this SEED_SET may run: no worker has a URL that the chunk withdraws.

        A worker has the URLs of a lease once the lease has got a grant. If a worker has a URL that the chunk withdraws,
        mark its lease as `recalled`, and return False. The owner then answers `stop` when the worker asks to extend its
        grant. If SQL cannot be read now, return False.
        """
        own = self._own
        try:
            withdrawn = await self._store.leased_seeds(run)
        except Transient as error:
            log.warning("command.delayed", partition=own.partition, command=run.id, error=str(error))
            return False
        leases = [held for held in own.leases.of_crawl(run.crawl_id) if held.grant is not None]
        recalled = [held for held in leases if not held.row.urls.keys().isdisjoint(withdrawn)]
        for held in recalled:
            held.recalled = True
        return not recalled

    async def _rescope_may_run(self, run: CommandRun) -> bool:
        """Return True if this RESCOPE may run: no worker may still fetch a URL that the changed scope excludes.

        Return False in these cases:

        - This owner does not use the changed scope yet.
        - A worker was given a shard that contains a URL that the changed scope excludes, and the lease is not over.
        - SQL cannot be read now.

        If the crawl is deleted, return True: there is nothing to wait for.
        """
        # The sweep ends a lease with such a URL after its grant has expired. The URLs return to the queue.
        own = self._own
        try:
            await self._writer.look_up([run.crawl_id])
            crawl = own.crawls.find(run.crawl_id)
            if crawl is None:
                return True
            if crawl.revision < int(str(run.args["revision"])) or crawl.refused is not None:
                return False
            leases = own.leases.of_crawl(run.crawl_id)
            await self._writer.judge(leases)
        except Transient as error:
            log.warning("command.delayed", partition=own.partition, command=run.id, error=str(error))
            return False
        return not any(held.grant is not None and held in own.leases and held.outside for held in leases)

    async def _prepare_rediscover(self, run: CommandRun) -> bool:
        """Return True if the next chunk of this REDISCOVER may run now. If leases prevent that, try to remove them.

        Return False in these cases:

        - This owner does not use the wider scope yet.
        - The crawl has a lease of an earlier spec revision that a worker has begun. The chunk waits for its end.
        - The crawl has leases of an earlier spec revision, but no worker has begun any of these leases. Then this call
          puts their URLs back into the queue, for at most `_LEASES_AT_ONCE` leases. A later call returns True.
        - The next chunk must read pages, and this master cannot read the archive.
        - SQL cannot be read now.

        If the crawl is deleted, return True: there is nothing to wait for.
        """
        # Links of pages that are stored from then on are judged by the wider scope, so those pages need not be read.
        own = self._own
        try:
            await self._writer.look_up([run.crawl_id])
            crawl = own.crawls.find(run.crawl_id)
            if crawl is None:
                return True
            if crawl.revision < int(str(run.args["revision"])) or crawl.refused is not None:
                return False
            earlier = self._earlier_leases(run)
            if any(held.grant is not None for held in earlier):
                return False
            if not earlier:
                return self._rediscovery.archive is not None or await self._needs_no_archive(run)
        except Transient as error:
            log.warning("command.delayed", partition=own.partition, command=run.id, error=str(error))
            return False
        await self._recall(earlier)
        return False

    async def _needs_no_archive(self, run: CommandRun) -> bool:
        """Return True if the next chunk of this REDISCOVER reads no page. Call this on a master without an archive.

        If the chunk reads a page: return False, and log that this master cannot read the archive. The log is written
        once for each command.
        """
        if not (await self._store.readable_pages(run)).pages:
            return True
        if run.id not in self._without_archive:
            self._without_archive.add(run.id)
            error = "this master cannot read the archive: start it with --archive"
            log.warning("command.delayed", partition=self._own.partition, command=run.id, error=error)
        return False

    def _earlier_leases(self, run: CommandRun) -> list[TrackedLease]:
        """Return the crawl's leases that were made under a spec revision before the revision that the command names."""
        revision = int(str(run.args["revision"]))
        return [held for held in self._own.leases.of_crawl(run.crawl_id) if held.row.spec < revision]

    async def _recall(self, leases: Sequence[TrackedLease]) -> None:
        """End each lease that no worker has begun, and put its URLs back into the queue.

        The URLs are then leased again under the present spec revision. Leases that a worker has begun are skipped. One
        call ends at most `_LEASES_AT_ONCE` leases.
        """
        own = self._own

        async def recall() -> None:
            async with self._writer.writing(TransactionKind.COMMAND):
                unbegun = [held for held in leases if held in own.leases and held.grant is None][:_LEASES_AT_ONCE]
                batch = self._writer.batch(marked=False)
                for held in unbegun:
                    batch.end(held)
                if unbegun:
                    await self._writer.commit(batch)
                    own.suspect_orphans()

        await until_resource_available(recall)

    async def _found_again(self, run: CommandRun) -> Rediscovered | None:
        """Read the pages of the next chunk of a REDISCOVER, and publish their links that the present scope admits.

        Return None if the crawl is deleted. Raise Transient if the archive or the broker is not available.
        """
        await self._writer.look_up([run.crawl_id])
        crawl = self._own.crawls.find(run.crawl_id)
        if crawl is None:
            return None
        return await self._rediscovery.chunk(run, crawl, await self._store.readable_pages(run))

    async def _advance(self, run: CommandRun) -> None:
        """Apply the next chunk of a command.

        If a REDISCOVER cannot read or publish now, return without applying it, and try again later. A command that can
        never be applied becomes a dead letter.
        """
        found = None
        if run.kind == CommandKind.REDISCOVER:
            try:
                found = await self._found_again(run)
            except Transient as error:
                log.warning("command.delayed", partition=self._own.partition, command=run.id, error=str(error))
                self._not_before[run.id] = self._clock.elapsed() + error.retry_in
                return
            except Permanent as error:
                await until_resource_available(partial(self._give_up, run, error))
                return
        try:
            sent, upto = await self._publish_letters(run) if run.kind == CommandKind.REPLAY else ([], None)
            await until_resource_available(partial(self._chunk, run, sent, upto, found))
        except Permanent as error:
            await until_resource_available(partial(self._give_up, run, error))

    async def _chunk(self, run: CommandRun, sent: Sequence[int], upto: int | None, found: Rediscovered | None) -> None:
        """Apply the next chunk of a command in one transaction.

        Do nothing if the command has ended. If leases must end first, return without applying the chunk: it is tried
        again.

        - `sent`, `upto`: for a REPLAY, the dead letters that were published, and the last id of the chunk. Otherwise
          empty and None.
        - `found`: for a REDISCOVER, the links that were found and published. Otherwise None.
        """
        own, writer = self._own, self._writer
        async with self._turn, writer.writing(TransactionKind.COMMAND):
            if not self._commands.current(run):
                return  # A later command has ended it.
            if run.kind == CommandKind.REDISCOVER and self._earlier_leases(run):
                return  # Dispatch was under way when the scope changed. The chunk is repeated after that visit.
            if run.kind in _SEEDS:
                await self._recall_ungranted(run)
            if run.kind in (CommandKind.EXCLUDE, CommandKind.RESCOPE):
                unbegun = [held for held in own.leases if held.grant is None]
                if await writer.exclude_covered(unbegun, _LEASES_AT_ONCE):
                    own.orphans_suspected = True
                    return
            changed = None
            if run.kind == CommandKind.RESCOPE:
                await writer.look_up([run.crawl_id])
                crawl = own.crawls.find(run.crawl_id)
                if crawl is not None and crawl.refused is not None:
                    return
                if crawl is not None:
                    changed = ChangedScope(crawl.scope, crawl.spec.recrawl.used, crawl.host_specs)
            rest = await self._store.run_command(
                writer.fence,
                run,
                self._clock.unix_ms(),
                sent=sent,
                upto=upto,
                exclusions=own.crawls.exclusions,
                changed=changed,
                found=found,
            )
            if passes_again(run) and rest == run.after:  # Meanwhile a URL was leased that must be withdrawn.
                self._not_before[run.id] = self._clock.elapsed() + _LEASED_AGAIN_S
            own.chunk_applied(run, rest, self._clock.elapsed())
            writer.committed()
        if rest is None:
            self._through.pop(run.id, None)
            self._not_before.pop(run.id, None)
            log.info("command.applied", partition=own.partition, command=run.id, kind=run.kind, crawl=run.crawl_id)

    async def _recall_ungranted(self, run: CommandRun) -> None:
        """End the crawl's leases that no worker has begun, if their host belongs to the next chunk of the command.

        Call it inside `PartitionWriter.writing`. The URLs of these leases return to the queue, and the command applies
        to them. Leases on other hosts stay.
        """
        own = self._own
        unbegun = [held for held in own.leases.of_crawl(run.crawl_id) if held.grant is None]
        hosts = hosts_of_chunk(run, {held.row.host_id: held.row.host for held in unbegun})
        unbegun = [held for held in unbegun if held.row.host_id in hosts]
        if unbegun:
            batch = self._writer.batch(marked=False)  # A mark would make the command skip these URLs.
            for held in unbegun:
                batch.end(held)
            await self._writer.commit(batch)
            own.suspect_orphans()

    async def _give_up(self, run: CommandRun, error: Permanent) -> None:
        """Store a command that can never be applied as a dead letter, and end the command, in one transaction.

        `error` says why it cannot be applied.
        """
        own = self._own
        message = encode(Command(id=run.id, crawl=run.crawl_id, kind=run.kind, args=run.args))
        now_ms = self._clock.unix_ms()
        letter = DeadLetterRow(run.crawl_id or None, "outcome", now_ms, str(error)[:_EVIDENCE_CHARS], payload=message)
        async with self._writer.writing(TransactionKind.COMMAND):
            if not self._commands.current(run):
                return
            changes = own.new_changes()
            changes.dead_letters.append(letter)
            changes.commands_given_up.append(run.id)
            await self._writer.apply(changes)
            self._commands.advance(run, None)
        self._writer.stats.dead_lettered([letter])
        log.error("command.dead_lettered", partition=own.partition, command=run.id, kind=run.kind, error=str(error))

    async def _publish_letters(self, run: CommandRun) -> tuple[list[int], int]:
        """Publish the next messages of a REPLAY. Return the published letters' ids, and the last id of the chunk.

        A message that the broker refuses stays a dead letter.
        """
        letters = await self._store.message_letters(run, _LETTERS_AT_ONCE)
        sent = [letter.id for letter in letters if await self._published(letter)]
        return sent, letters[-1].id if len(letters) == _LETTERS_AT_ONCE else run.through

    async def _published(self, letter: MessageDeadLetter) -> bool:
        while True:
            try:
                await self._publish(letter, f"letter-{letter.id}")
                return True
            except (Refused, Permanent) as error:
                partition = self._own.partition
                log.warning("dead_letter_replay.refused", partition=partition, dead_letter=letter.id, error=str(error))
                return False
            except Transient as error:
                await asyncio.sleep(error.retry_in)

    async def _publish(self, letter: MessageDeadLetter, message_id: str) -> None:
        """Publish the message of a dead letter again, on the subject where it first arrived.

        Do nothing for an unreadable URL shard, because the owner sends the URLs of its lease again anyway.
        `message_id`: the broker drops another message with the same id within two minutes.
        """
        if letter.kind == "items":
            await self._broker.publish_items(crawl_of(letter.payload), letter.payload, message_id)
        elif letter.kind != "shard":
            kind: ReportKind = "discovery" if letter.kind == "discovery" else "outcome"
            data = _renamed(letter.payload, message_id) if kind == "discovery" else letter.payload
            if kind == "outcome" and _is_command(data):
                await self._broker.publish_command(self._own.partition, data, message_id)
            else:
                await self._broker.publish_report(self._own.partition, kind, data, message_id)


def _is_command(data: bytes) -> bool:
    try:
        return isinstance(decode_report(data), Command)
    except Malformed:
        return False


def _renamed(data: bytes, producer: str) -> bytes:
    """Return the encoded discoveries with `producer` as the name of their producer, and 1 as their message number.

    With its original producer and number, the owner would ignore the message as a repeat. If `data` cannot be read,
    return it unchanged.
    """
    try:
        message = decode_discoveries(data)
    except Malformed:
        return data
    links = sum(len(origin.links) for origin in message.origins)
    return encode(msgspec.structs.replace(message, producer=producer, n=1, total=links))
