"""Publish the hot configuration, and which members must drain, from SQL to the members.

The leader calls `ConfigPublisher.once` repeatedly. Each call compares the published records in etcd with SQL, so it
completes what a crash interrupted.
"""

from typing import Final

import structlog

from api.members.membership import members_in
from shared.domain.ops.config import Drains, MemberRole
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership
from shared.ports.desired import Desired
from shared.wire.desired_state import config_record, drains_record
from shared.wire.keys import DRAINS, SETTINGS, Keys

log = structlog.get_logger("orb.control")

FORGOTTEN_AFTER_S: Final = 7 * 24 * 3600.0
"""Seconds after which a request to drain is deleted if its member was not registered in all that time.

Otherwise the names of lost members would be kept forever.
"""

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
        self._missing_since: dict[tuple[MemberRole, str], float] = {}

    async def once(self) -> None:
        """Publish the records that differ from SQL.

        At the first call, and then at most once in `_LOOK_S` seconds, also delete the requests to drain members that
        are gone for long.
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
        """Delete the requests to drain members that were missing at each look of the last FORGOTTEN_AFTER_S seconds.

        The time counts from the first look of this leadership at which the member was missing.
        """
        now = self._clock.elapsed()
        if self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        living = members_in(await self._coordinator.list(self._keys.root), self._keys)
        registered = {MemberRole.MASTER: living.masters, MemberRole.WORKER: living.workers}
        drains = await self._desired.drains()
        missing = [(role, name) for role in MemberRole for name in drains.of(role) if name not in registered[role]]
        self._missing_since = {member: self._missing_since.get(member, now) for member in missing}
        over = [member for member, since in self._missing_since.items() if now - since >= FORGOTTEN_AFTER_S]
        if not over:
            return
        now_ms = self._clock.unix_ms()
        forgotten = await self._desired.forget_drains(
            Drains(
                masters=tuple(name for role, name in over if role is MemberRole.MASTER),
                workers=tuple(name for role, name in over if role is MemberRole.WORKER),
            ),
            before_ms=now_ms - int(FORGOTTEN_AFTER_S * 1000),
            now_ms=now_ms,
        )
        if forgotten != Drains():
            log.info("drains.expired", masters=list(forgotten.masters), workers=list(forgotten.workers))
