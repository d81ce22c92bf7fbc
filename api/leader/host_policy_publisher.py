"""Send the commands of changed host policies to the owners of the hosts.

A change of a policy and its command are one transaction in SQL. The command is sent until the broker has it. An owner
applies a command id once, and applies the policy that SQL has then. So a repeat after a kill, or by two leaders at
once, is harmless.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.host_policies import HostPolicyCommand, command_id_of
from shared.ports.broker import Broker
from shared.ports.desired import Desired
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.control")

_LOOK_S: Final = 1.0


class HostPolicyPublisher:
    """Publishes the commands of host policies while `acting` returns True."""

    def __init__(self, desired: Desired, broker: Broker, acting: Callable[[], bool]) -> None:
        self._desired = desired
        self._broker = broker
        self._acting = acting
        self._poked = asyncio.Event()

    def wake(self) -> None:
        """Look for commands now."""
        self._poked.set()

    async def run(self) -> None:
        """Publish what waits, again and again, until cancelled."""
        while True:
            self._poked.clear()
            try:
                if self._acting():
                    await self.once()
            except Transient as error:
                log.warning("host_policies.delayed", error=str(error))
            except Permanent as error:
                log.error("host_policies.refused", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._poked.wait()

    async def once(self) -> None:
        """Publish all commands that wait, in order. One that the broker refuses for now does not hold up the others.

        Raise Transient if one was refused.
        """
        refused: Transient | None = None
        after = 0
        while waiting := await self._desired.host_policy_commands(after):
            for command in waiting:
                after = command.revision
                try:
                    await self._publish(command)
                except Transient as error:
                    refused = error
        if refused is not None:
            raise refused

    async def _publish(self, command: HostPolicyCommand) -> None:
        command_id = command_id_of(command.revision)
        message = encode(Command(command_id, CrawlId(0), CommandKind.HOST_POLICY, {"host": command.host}))
        await self._broker.publish_command(Partition(command.partition), message, command_id)
        await self._desired.host_policy_commanded(command.revision)
        log.info("host_policy.commanded", host=command.host, command=command_id)
