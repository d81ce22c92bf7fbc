"""Publish the hot configuration, and which members must drain, from SQL to the members.

The leader calls `ConfigPublisher.once` repeatedly. Each call compares the published records in etcd with SQL, so it
completes what a crash interrupted.
"""

from typing import Final

import structlog

from api.members.membership import members_in
from shared.domain.ops.config import Drains
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership
from shared.ports.desired import Desired
from shared.wire.desired_state import config_record, drains_record
from shared.wire.keys import DRAINS, SETTINGS, Keys

log = structlog.get_logger("orb.control")

FORGOTTEN_AFTER_MS: Final = 7 * 24 * 3600 * 1000
"""Milliseconds after which a request to drain is deleted if its member is not registered. Otherwise the names of lost
members would be kept forever."""

_LOOK_S: Final = 600.0


class ConfigPublisher:
    """Publishes the hot configuration, and which members must drain, until its leadership ends."""

    def __init__(
        self, coordinator: Coordinator, leadership: Leadership, keys: Keys, desired: Desired, clock: Clock
    ) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._keys = keys
        self._desired = desired
        self._clock = clock
        self._looked_at: float | None = None

    async def once(self) -> None:
        """Publish the records that differ from SQL.

        At the first call, and then at most once in `_LOOK_S` seconds, also delete old requests to drain members that
        are gone.
        """
        stored = await self._desired.config()
        if await self._write(SETTINGS, config_record(stored)):
            log.info("config.published", revision=stored.revision, changed_by=stored.changed_by)
        await self._forget_old()
        drains = await self._desired.drains()
        if await self._write(DRAINS, drains_record(drains)):
            log.info("drains.published", masters=list(drains.masters), workers=list(drains.workers))

    async def _write(self, name: str, value: bytes) -> bool:
        """Set the record `name` to `value`. Return False if it has this value already, otherwise True.

        Raise Conflict if the record was changed meanwhile, OwnershipLost if this master may no longer lead, and
        Transient if etcd does not answer.
        """
        key = self._keys.setting(name)
        entry = await self._coordinator.get(key)
        if entry is not None and entry.value == value:
            return False
        await self._leadership.write({key: value}, expect={key: 0 if entry is None else entry.revision})
        return True

    async def _forget_old(self) -> None:
        now = self._clock.elapsed()
        if self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        now_ms = self._clock.unix_ms()
        living = members_in(await self._coordinator.list(self._keys.root), self._keys)
        forgotten = await self._desired.forget_drains(
            Drains(masters=tuple(living.masters), workers=tuple(living.workers)),
            before_ms=now_ms - FORGOTTEN_AFTER_MS,
            now_ms=now_ms,
        )
        if forgotten != Drains():
            log.info("drains.expired", masters=list(forgotten.masters), workers=list(forgotten.workers))
