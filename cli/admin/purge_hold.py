"""The purge hold of a backup: a row in the cluster's database that keeps owners from purging reports."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from shared.adapters.sql.engine.executor import Executor
from shared.adapters.sql.frontier import purge_holds as holds
from shared.domain.errors import Transient
from shared.domain.frontier.purge_holds import BEAT_S, held_until
from shared.ports.clock import Clock
from shared.runtime.supervise import Tasks

log = structlog.get_logger("orb.backup")


class PurgeHold:
    """A row in the database that keeps owners from purging reports while `beat` renews it regularly."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._holder = f"backup-{uuid.uuid4().hex}"
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<PurgeHold {self._holder}>"

    def check(self) -> None:
        """Raise Transient if the hold may have lapsed. Otherwise owners have purged no reports since the hold began."""
        if self._clock.elapsed() >= self._until:
            raise Transient("the hold on the reports was lost: this process or the database stalled for too long")

    async def take(self) -> None:
        began = self._clock.elapsed()
        await self._executor.write(lambda c: holds.take(c, self._holder, self._clock.unix_ms()))
        self._until = held_until(began)

    async def beat(self) -> None:
        """Renew the hold regularly until cancelled. Retry writes that fail.

        Raise Transient if the hold may have lapsed, or if its row was removed.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            self.check()
            began = self._clock.elapsed()
            try:
                there = await self._executor.write(lambda c: holds.beat(c, self._holder, self._clock.unix_ms()))
            except Transient as error:
                log.warning("purge_hold.delayed", error=str(error))
                continue
            if not there:
                raise Transient("the hold on the reports was removed")
            self.check()  # a late beat does not cover the time before it
            self._until = held_until(began)

    async def release(self) -> None:
        with suppress(Transient):  # without beats the hold expires by itself
            await self._executor.write(lambda c: holds.release(c, self._holder))


@asynccontextmanager
async def held(executor: Executor, clock: Clock) -> AsyncIterator[PurgeHold]:
    """Keep owners from purging reports until the `with` block ends. Yield the hold.

    The hold may lapse in the block. So the caller must call `check` of the hold after it has read the reports.
    """
    hold = PurgeHold(executor, clock)
    try:
        await hold.take()
        async with Tasks() as tasks:
            tasks.start("hold.beat", hold.beat())
            yield hold
    finally:
        await hold.release()
