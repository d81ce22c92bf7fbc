"""Send the commands of fired schedules to the owners of all partitions."""

import asyncio
from typing import Final

from api.leader.command_rounds import CommandErrors
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import Partition
from shared.domain.schedules.stored import WaitingCommand
from shared.ports.broker import Broker
from shared.ports.schedules import Schedules
from shared.wire.messages import Command, encode

AT_ONCE: Final = 200
"""Maximum commands that one query reads."""

PUBLISHING: Final = 16
"""Maximum commands that are published at the same time."""


class ScheduleCommandPublisher:
    """Publishes the commands of fired schedules, at most `PUBLISHING` of them at once. `CommandRounds` runs it."""

    def __init__(self, schedules: Schedules, broker: Broker, partitions: int) -> None:
        self._schedules = schedules
        self._broker = broker
        self._partitions = partitions

    async def once(self) -> CommandErrors:
        """Publish the commands that wait, each to all partitions. Return the commands that were refused.

        A command that a partition refuses waits for the next round, and delays no other command.
        """
        errors: dict[str, Transient | Permanent] = {}
        turns = asyncio.Semaphore(PUBLISHING)
        after = None
        while waiting := await self._schedules.commands(after, AT_ONCE):
            after = waiting[-1].place
            # All are awaited, also after an error: none of them runs on while the next round publishes it again.
            ended = await asyncio.gather(*(self._publish(each, turns) for each in waiting), return_exceptions=True)
            for command, error in zip(waiting, ended, strict=True):
                if isinstance(error, Transient | Permanent):
                    errors[command.command] = error
                elif error is not None:
                    raise error
        return errors

    async def _publish(self, command: WaitingCommand, turns: asyncio.Semaphore) -> None:
        async with turns:
            message = encode(Command(command.command, command.crawl_id, CommandKind.RETRY_FAILED))
            for number in range(self._partitions):
                message_id = f"{command.command}.{number}"
                await self._broker.publish_command(Partition(number), message, message_id)
            await self._schedules.commanded(command)
