"""A hold on the reports of a running cluster (shared.domain.holds), taken on its database and kept up."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from shared.adapters.sql import holds
from shared.adapters.sql.store import Executor
from shared.domain.errors import Transient
from shared.domain.holds import BEAT_S, held_until
from shared.ports.clock import Clock
from shared.supervise import Tasks

log = structlog.get_logger("orb.backup")


class Hold:
    """A hold that beats."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._holder = f"backup-{uuid.uuid4().hex}"
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<Hold {self._holder}>"

    def check(self) -> None:
        """Transient unless owners have heeded it from its beginning until now."""
        if self._clock.elapsed() >= self._until:
            raise Transient("the hold on the reports was lost: this process or the database stood still for too long")

    async def take(self) -> None:
        began = self._clock.elapsed()
        await self._executor.write(lambda c: holds.take(c, self._holder, self._clock.unix_ms()))
        self._until = held_until(began)

    async def beat(self) -> None:
        """Keep it up until cancelled. What cannot be written is tried again; `check` says whether that was too late."""
        while True:
            await asyncio.sleep(BEAT_S)
            self.check()
            began = self._clock.elapsed()
            try:
                there = await self._executor.write(lambda c: holds.beat(c, self._holder))
            except Transient as error:
                log.warning("hold.beat_failed", error=str(error))
                continue
            if not there:
                raise Transient("somebody has removed the hold on the reports")
            self.check()  # one that came too late does not make up for the time before it
            self._until = held_until(began)

    async def release(self) -> None:
        with suppress(Transient):  # owners heed a silent one no longer than its time
            await self._executor.write(lambda c: holds.release(c, self._holder))


@asynccontextmanager
async def held(executor: Executor, clock: Clock) -> AsyncIterator[Hold]:
    """Owners purge no reports while the block runs; `check` before you rely on that."""
    hold = Hold(executor, clock)
    try:
        await hold.take()
        async with Tasks() as tasks:
            tasks.start("hold.beat", hold.beat())
            yield hold
    finally:
        await hold.release()
