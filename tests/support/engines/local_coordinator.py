"""Coordination inside one process, for a crawl that needs no cluster: members, elections and watched records.

Everything runs on one event loop, and nothing is stored: revisions, sessions and elections live as long as the object.
A task renews each session, so that an event loop that stalls for longer than the session's time loses it, too.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.domain.errors import OwnershipLost, Unusable
from shared.ports.clock import Clock
from shared.ports.coordinator import LEADER_MARGIN_S, MARGIN_SHARE, MAX_WRITES, Conflict, Entry, Snapshot
from shared.runtime.latest import Latest
from shared.runtime.supervise import Tasks


@dataclass(slots=True)
class _Keys:
    """The state that a server would hold: the keys, the leases of some of them, and the watches."""

    clock: Clock
    revision: int = 1
    entries: dict[str, Entry] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)
    last_lease: int = 0
    watched: dict[Latest, str] = field(default_factory=dict)

    def under(self, prefix: str) -> dict[str, Entry]:
        return {key: entry for key, entry in self.entries.items() if key.startswith(prefix)}

    def write(self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), lease: int = 0) -> int:
        """Write all of it at one revision, and return that. Deleting an absent key changes nothing."""
        gone = [key for key in deletes if key in self.entries]
        if not puts and not gone:
            return self.revision
        self.revision += 1
        for key in gone:
            del self.entries[key]
        for key, value in puts.items():
            known = self.entries.get(key)
            created = self.revision if known is None else known.created
            self.entries[key] = Entry(key, value, self.revision, created, lease)
        for latest, prefix in self.watched.items():
            if any(key.startswith(prefix) for key in (*puts, *gone)):
                latest.publish(Snapshot(self.under(prefix), self.revision, self.revision))
        return self.revision

    def expire(self, now: float) -> None:
        """End the sessions that have expired by `now` (`Clock.elapsed`)."""
        for lease in [lease for lease, until in self.leases.items() if until <= now]:
            self.end(lease)

    def end(self, lease: int) -> None:
        """End a session and delete its keys."""
        if self.leases.pop(lease, None) is not None:
            self.write({}, [key for key, entry in self.entries.items() if entry.lease == lease])

    @contextlib.contextmanager
    def watch(self, prefix: str) -> Iterator[Latest]:
        latest = Latest(Snapshot(self.under(prefix), self.revision, self.revision))
        self.watched[latest] = prefix
        try:
            yield latest
        finally:
            del self.watched[latest]


class LocalView:
    """The keys below a prefix, kept up to date inside this process (`shared.ports.coordinator.View`)."""

    def __init__(self, latest: Latest, clock: Clock) -> None:
        self._latest = latest
        self._clock = clock

    @property
    def snapshot(self) -> Snapshot:
        return self._latest.snapshot

    @property
    def answered_at(self) -> float:
        return self._clock.elapsed()

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        return await self._latest.changed(after, wait_s)


class LocalSession:
    """A lease inside this process, and the keys that vanish with it (`shared.ports.coordinator.Session`)."""

    def __init__(self, keys: _Keys, ttl_s: float) -> None:
        keys.last_lease += 1
        self.id = keys.last_lease
        self.ttl_s = ttl_s
        self._keys = keys
        self._over = asyncio.Event()
        self._ok_until = 0.0
        self._extend()

    @property
    def ok_until(self) -> float:
        return self._ok_until

    def alive(self, now: float) -> bool:
        return not self._over.is_set() and now < self._ok_until

    async def lost(self) -> None:
        await self._over.wait()

    async def renew(self) -> None:
        """Renew the session periodically, until it is over."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.ttl_s / 3):
                    await self._over.wait()
            self._keys.expire(self._keys.clock.elapsed())
            if self.id not in self._keys.leases:
                self._over.set()
                return
            self._extend()

    async def register(self, key: str, value: bytes) -> None:
        self._check()
        known = self._keys.entries.get(key)
        if known is None or (known.value, known.lease) != (value, self.id):
            self._keys.write({key: value}, lease=self.id)

    async def campaign(self, key: str, value: bytes) -> "LocalLeadership":
        with self._keys.watch(key) as latest:
            while True:
                self._check()
                if key not in self._keys.entries:
                    return LocalLeadership(self._keys, self, key, self._keys.write({key: value}, lease=self.id))
                await _first(latest.changed(latest.snapshot, None), self.lost())

    def end(self) -> None:
        """End the session and delete its keys."""
        self._keys.end(self.id)
        self._over.set()

    def _check(self) -> None:
        now = self._keys.clock.elapsed()
        self._keys.expire(now)
        if not self.alive(now):
            self._over.set()
            raise OwnershipLost(f"session {self.id} is over")

    def _extend(self) -> None:
        self._ok_until = self._keys.leases[self.id] = self._keys.clock.elapsed() + self.ttl_s

    def __repr__(self) -> str:
        return f"<LocalSession {self.id}{' over' if self._over.is_set() else ''}>"


class LocalLeadership:
    """A won election inside this process (`shared.ports.coordinator.Leadership`)."""

    def __init__(self, keys: _Keys, session: LocalSession, key: str, revision: int) -> None:
        self._keys = keys
        self._session = session
        self._key = key
        self.revision = revision

    def acting(self, now: float) -> bool:
        margin = min(LEADER_MARGIN_S, self._session.ttl_s * MARGIN_SHARE)
        return self._held() and self._session.alive(now) and now < self._session.ok_until - margin

    async def lost(self) -> None:
        with self._keys.watch(self._key) as latest:
            while self._held() and self._session.alive(self._keys.clock.elapsed()):
                await _first(latest.changed(latest.snapshot, None), self._session.lost())

    async def write(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Mapping[str, int] | None = None
    ) -> int:
        expected = dict(expect or {})
        touched = len({*puts, *deletes, *expected})
        if touched > MAX_WRITES:
            raise ValueError(f"{touched} keys in one write, at most {MAX_WRITES} are allowed")
        self._check()
        moved = [key for key, revision in expected.items() if self._revision_of(key) != revision]
        if moved:
            raise Conflict(moved)
        return self._keys.write(puts, deletes)

    async def barrier(self) -> int:
        self._check()
        return self._keys.revision

    async def resign(self) -> None:
        if self._held():
            self._keys.write({}, [self._key])

    def _check(self) -> None:
        now = self._keys.clock.elapsed()
        self._keys.expire(now)
        if not self.acting(now):
            raise OwnershipLost(f"the leadership of {self._key} won at {self.revision} is over")

    def _held(self) -> bool:
        holder = self._keys.entries.get(self._key)
        return holder is not None and holder.created == self.revision

    def _revision_of(self, key: str) -> int:
        entry = self._keys.entries.get(key)
        return 0 if entry is None else entry.revision


class LocalCoordinator:
    """Members, elections and watched records inside one process (`shared.ports.coordinator.Coordinator`).

    All users in the process share one object.
    """

    def __init__(self, clock: Clock) -> None:
        self._keys = _Keys(clock)
        self._closed = False

    async def list(self, prefix: str) -> Snapshot:
        self._open()
        return Snapshot(self._keys.under(prefix), self._keys.revision, self._keys.revision)

    async def get(self, key: str) -> Entry | None:
        self._open()
        return self._keys.entries.get(key)

    @contextlib.asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[LocalView]:
        self._open()
        with self._keys.watch(prefix) as latest:
            yield LocalView(latest, self._keys.clock)

    @contextlib.asynccontextmanager
    async def session(self, ttl_s: float) -> AsyncIterator[LocalSession]:
        self._open()
        session = LocalSession(self._keys, ttl_s)
        async with Tasks() as tasks:
            tasks.start("local.renew", session.renew())
            try:
                yield session
            finally:
                session.end()

    async def close(self) -> None:
        self._closed = True

    def _open(self) -> None:
        if self._closed:
            raise Unusable("the coordinator is closed")
        self._keys.expire(self._keys.clock.elapsed())

    def __repr__(self) -> str:
        return f"<LocalCoordinator revision={self._keys.revision} keys={len(self._keys.entries)}>"


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of `waits` has ended, and cancel the others."""
    async with Tasks() as tasks:
        running = {tasks.start("local.wait", wait) for wait in waits}
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
