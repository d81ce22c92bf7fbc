"""The leader removes the drain of a member that was absent for a week, and of no other."""

import asyncio
from pathlib import Path

from api.leader.config_publisher import FORGOTTEN_AFTER_S, ConfigPublisher
from shared.adapters.local.clock import SystemClock
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.ops.config import Drains, MemberRole
from shared.wire.keys import Keys, MemberRecord, encode_record
from tests.support.api.rest_api import SOMEONE
from tests.support.engines.local_coordinator import LocalCoordinator
from tests.support.manual_clock import ManualClock

KEYS = Keys("test")
LOOK_S = 3_600.0


class WholeClock(ManualClock):
    """A clock whose time of day passes with its elapsed seconds."""

    def unix_ms(self) -> int:
        return int(self.now * 1000)


def test_old_drain_survives_restart_and_ends_after_week_of_absence(tmp_path: Path) -> None:
    """A drain older than a week was removed if its member restarted while the leader looked."""

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        desired, coordinator, clock = SqlDesired(store.executor), LocalCoordinator(SystemClock()), WholeClock()
        for name in ("w1", "w2"):
            await desired.drain(MemberRole.WORKER, name, actor=SOMEONE, now_ms=clock.unix_ms())
        clock.now += 2 * FORGOTTEN_AFTER_S
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            leads = ConfigPublisher(coordinator, leadership, KEYS, desired, clock)
            await leads.once()
            assert (await desired.drains()).workers == ("w1", "w2"), "both are absent, but not for long"
            async with coordinator.session(30.0) as worker:
                await worker.register(KEYS.worker("w1"), encode_record(MemberRecord("w1", "1", started_at_ms=1)))
                clock.now += FORGOTTEN_AFTER_S - LOOK_S
                await leads.once()
            clock.now += LOOK_S
            await leads.once()
            assert (await desired.drains()).workers == ("w1",), "w1 was there an hour ago"
            clock.now += FORGOTTEN_AFTER_S - 2 * LOOK_S
            leads = ConfigPublisher(coordinator, leadership, KEYS, desired, clock)
            await leads.once()
            clock.now += FORGOTTEN_AFTER_S - LOOK_S
            await leads.once()
            assert (await desired.drains()).workers == ("w1",), "a new leader counts anew"
            clock.now += LOOK_S
            await leads.once()
            assert await desired.drains() == Drains()
        await store.close()

    asyncio.run(story())
