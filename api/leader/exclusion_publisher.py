"""Publish the exclusions in force to the members, and send commands that apply them to the owners of partitions.

The members apply the published exclusions at once. For each exclusion a command then excludes the URLs that are queued
already. The leader calls `ExclusionPublisher.once` repeatedly. Each call compares the published record in etcd with
SQL, so it completes what a crash interrupted. An owner applies each command once, even if it is sent again.
"""

from collections.abc import Sequence

import structlog

from api.leader.command_rounds import CommandErrors, CommandRounds
from shared.domain.crawl.exclusions import TargetRefused, partitions_with, stored_target
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId
from shared.domain.ops.exclusions import StoredExclusion
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership
from shared.ports.desired import Desired
from shared.wire.desired_state import exclusions_record
from shared.wire.keys import EXCLUSIONS, Keys
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.control")


class ExclusionPublisher:
    """Publishes the exclusions until its leadership ends.

    `commands` sends the command of each published exclusion to the owners. The caller must run `commands.run`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        leadership: Leadership,
        keys: Keys,
        desired: Desired,
        broker: Broker,
        clock: Clock,
        partitions: int,
    ) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._key = keys.setting(EXCLUSIONS)
        self._desired = desired
        self._broker = broker
        self._clock = clock
        self._partitions = partitions
        self._written: bytes | None = None
        self._revision = -1
        self._ends_ms: int | None = None
        self._to_send: Sequence[StoredExclusion] = ()
        self.commands = CommandRounds("exclusions", self._send_all, lambda: leadership.acting(clock.elapsed()))

    async def once(self) -> None:
        """Publish the exclusions in force if they differ from the published ones, and wake `commands`.

        Raise Conflict if the published record was changed meanwhile, OwnershipLost if this master may no longer lead,
        and Transient if SQL or etcd does not answer.
        """
        now_ms = self._clock.unix_ms()
        revision = await self._desired.exclusions_revision()
        entry = await self._coordinator.get(self._key)
        published = None if entry is None else entry.value
        same = revision == self._revision and published == self._written
        if same and (self._ends_ms is None or now_ms < self._ends_ms):
            return
        listed = await self._desired.exclusions_in_force(now_ms)
        value = exclusions_record(listed.revision, listed.targets)
        if value != published and (listed.revision or entry is not None):
            expected = 0 if entry is None else entry.revision
            await self._leadership.write({self._key: value}, expect={self._key: expected})
            log.info("exclusions.published", revision=listed.revision, count=len(listed.targets))
            published = value
        self._written, self._revision, self._ends_ms = published, listed.revision, listed.ends_ms
        self._to_send = listed.to_command
        self.commands.wake()

    async def _send_all(self) -> CommandErrors:
        """Send the commands of new and changed exclusions that are published. Return the commands that were refused.

        A refused command does not delay the others.
        """
        errors: dict[str, Transient | Permanent] = {}
        sent: set[str] = set()
        for stored in self._to_send:
            try:
                await self._send(stored)
                sent.add(stored.command_id)
            except (Transient, Permanent) as error:
                errors[stored.command_id] = error
        # Meanwhile `once` may have listed what this round has sent.
        self._to_send = [stored for stored in self._to_send if stored.command_id not in sent]
        return errors

    async def _send(self, stored: StoredExclusion) -> None:
        try:
            target = stored_target(stored.target)
        except TargetRefused as error:
            at = f"exclusion {stored.exclusion_id}"
            raise Permanent(f"the target of {at} {error}: delete {at}, or upgrade the masters") from error
        args = {"target": stored.target, "revision": stored.revision, "withdraw": stored.terms.withdraw}
        message = encode(Command(stored.command_id, CrawlId(0), CommandKind.EXCLUDE, args))
        for partition in partitions_with(target, self._partitions):
            message_id = f"{stored.command_id}.{partition}"
            await self._broker.publish_command(partition, message, message_id)
        await self._desired.exclusion_commanded(stored.exclusion_id, stored.revision)
        log.info("exclusion.commanded", target=stored.target, command=stored.command_id)
