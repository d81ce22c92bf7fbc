"""The rounds in which the leader publishes commands to the owners of partitions, for every kind of resource.

One transaction in SQL stores a change and its command. A publisher sends the command until the broker has stored it. An
owner applies each command id once, so a repeated message is harmless.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from shared.domain.errors import Permanent, Transient
from shared.runtime.wake_up import WakeUp

log = structlog.get_logger("orb.control")

LOOK_S: Final = 1.0
"""Maximum seconds between two rounds. So commands that other masters stored are found without a `wake`."""

MAX_LOGGED: Final = 5
"""Maximum reasons for which a round logs refused commands. There is one log line for each reason."""

CommandErrors = Mapping[str, Transient | Permanent]
"""The errors of a round, by the id of the command that could not be published. The next round tries it again."""


class CommandRounds:
    """Publishes the commands of one kind of resource in rounds, while this master leads.

    - `of`: the kind of resource, for the log.
    - `once`: runs a round. It publishes all commands that wait, and returns the refused ones with their errors.
    - `acting` returns True while this master leads. Otherwise the round is left out.

    A round runs after each `wake`, and at least every LOOK_S.
    """

    def __init__(self, of: str, once: Callable[[], Awaitable[CommandErrors]], acting: Callable[[], bool]) -> None:
        self._of = of
        self._once = once
        self._acting = acting
        self._work = WakeUp()

    def wake(self) -> None:
        """Start a round now, or when the present one ends."""
        self._work.notify()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            seen = self._work.revision
            await self.attempt()
            await self._work.changed(seen, LOOK_S)

    async def attempt(self) -> None:
        """Run a round if this master may act. Log the commands that were refused, or the error that ended the round."""
        if not self._acting():
            return
        try:
            self._log_refused(await self._once())
        except Transient as error:
            log.warning("commands.delayed", of=self._of, error=str(error))
        except Permanent as error:
            log.error("commands.refused", of=self._of, error=str(error))

    def _log_refused(self, errors: CommandErrors) -> None:
        """Log each reason once, with the first command that was refused for it and the number of such commands.

        At most `MAX_LOGGED` reasons are logged. Permanent errors come first.
        """
        refused: dict[tuple[bool, str], list[str]] = {}
        for command, error in errors.items():
            refused.setdefault((isinstance(error, Permanent), str(error)), []).append(command)
        # What is refused for good comes first: it may be one command among many that only wait.
        for (for_good, reason), commands in sorted(refused.items(), key=lambda each: not each[0][0])[:MAX_LOGGED]:
            first, count, reasons = commands[0], len(commands), len(refused)
            if for_good:
                log.error("commands.refused", of=self._of, error=reason, command=first, count=count, reasons=reasons)
            else:
                log.warning("commands.delayed", of=self._of, error=reason, command=first, count=count, reasons=reasons)
