"""Send the commands of changed host policies to the owners of the hosts.

A command contains only the host. The owner reads the policy from SQL when it applies the command.
"""

import structlog

from api.leader.command_rounds import CommandErrors
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.host_policies import HostPolicyCommand, command_id_of
from shared.ports.broker import Broker
from shared.ports.desired import Desired
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.control")


class HostPolicyPublisher:
    """Publishes the commands of changed host policies. `CommandRounds` runs it."""

    def __init__(self, desired: Desired, broker: Broker) -> None:
        self._desired = desired
        self._broker = broker

    async def once(self) -> CommandErrors:
        """Publish all commands that wait, in the order of the changes. Return the commands that were refused.

        A refused command does not delay the others.
        """
        errors: dict[str, Transient | Permanent] = {}
        after = 0
        while waiting := await self._desired.host_policy_commands(after):
            for command in waiting:
                after = command.revision
                try:
                    await self._publish(command)
                except (Transient, Permanent) as error:
                    errors[command_id_of(command.revision)] = error
        return errors

    async def _publish(self, command: HostPolicyCommand) -> None:
        command_id = command_id_of(command.revision)
        message = encode(Command(command_id, CrawlId(0), CommandKind.HOST_POLICY, {"host": command.host}))
        await self._broker.publish_command(Partition(command.partition), message, command_id)
        await self._desired.host_policy_commanded(command.revision)
        log.info("host_policy.commanded", host=command.host, command=command_id)
