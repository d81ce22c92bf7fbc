"""Send the changes of seed sets to the owners of their URLs: first the seeds that were added, then the command.

An owner applies each message once, also if it is sent again. It applies the command after the seeds. The command
withdraws the removed URLs that no seed set has at that moment.
"""

from collections import defaultdict

import structlog

from api.crawls.seed_messages import SeedLink, seed_messages
from api.crawls.seed_places import Place, pieces
from api.leader.command_rounds import CommandErrors
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.seed_sets import SeedSetCommand, command_id_of, located, part_of, producer_of
from shared.domain.web.url import host_of, partition_of
from shared.ports.broker import Broker
from shared.ports.desired import Desired
from shared.wire.messages import Command, Link, encode

log = structlog.get_logger("orb.control")


class SeedSetPublisher:
    """Publishes the changes of seed sets. `CommandRounds` runs it."""

    def __init__(self, desired: Desired, broker: Broker, partitions: int) -> None:
        self._desired = desired
        self._broker = broker
        self._partitions = partitions

    async def once(self) -> CommandErrors:
        """Publish all changes that wait. Return the commands of those that were refused.

        The changes of one crawl are published in order. So after a refused change, the crawl's later changes wait for
        the next round.
        """
        errors: dict[str, Transient | Permanent] = {}
        held: set[CrawlId] = set()
        after = 0
        while waiting := await self._desired.seed_set_commands(after):
            for change in waiting:
                after = change.revision
                if change.crawl_id in held:
                    continue
                try:
                    await self._publish(change)
                except (Transient, Permanent) as error:
                    errors[command_id_of(change.revision)] = error
                    held.add(change.crawl_id)
        return errors

    async def _publish(self, change: SeedSetCommand) -> None:
        links: dict[Partition, list[SeedLink]] = defaultdict(list)
        for seed in change.added:
            partition = partition_of(host_of(seed.url), self._partitions)
            links[partition].append((Link(seed.url, 0, 0, seed.priority), seed.context))
        producer = producer_of(change.revision)
        for partition, part in links.items():
            for message in seed_messages(change.crawl_id, change.spec, producer, part, of_set=True):
                message_id = f"{producer}.{partition}.{message.n}"
                await self._broker.publish_report(partition, "discovery", encode(message), message_id)
        places: dict[Partition, list[Place]] = {partition: [] for partition in links}
        for at in located(change.removed):
            places.setdefault(partition_of(at.host, self._partitions), []).append((at.host, at.fingerprint))
        for partition, here in places.items():
            await self._command(change, partition, here)
        await self._desired.seed_set_commanded(change.revision)
        log.info("seed_set.commanded", crawl=change.crawl_id, name=change.name, command=command_id_of(change.revision))

    async def _command(self, change: SeedSetCommand, partition: Partition, here: list[Place]) -> None:
        """Send a command to the owner of a partition: withdraw the URLs that a change of a seed set removed.

        - `change`: the change, which may concern URLs of many partitions.
        - `here`: the URLs of this partition that the change removed, each as host and fingerprint. It may be empty.

        If `here` is too large for one command, several commands are sent.
        """
        # The last command has the id that the API shows for the change, because the owner applies it last.
        parts = pieces(here)
        for left, part in zip(range(len(parts), 0, -1), parts, strict=True):
            command_id = part_of(command_id_of(change.revision), left)
            command = Command(command_id, change.crawl_id, CommandKind.SEED_SET, {"places": list(part)})
            await self._broker.publish_command(partition, encode(command), f"{command_id}.{partition}")
