"""The leadership that a session wins in an election in etcd: its guarded writes, and how it ends.

A session is an etcd lease that this process renews. It wins an election by creating the leader's key under the lease.
A guarded write is a transaction that etcd refuses once another leader has won.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shared.adapters.etcd import requests
from shared.adapters.etcd.connection import EtcdConnection
from shared.adapters.etcd.watching import follow
from shared.domain.errors import OwnershipLost
from shared.ports.clock import Clock
from shared.ports.coordinator import LEADER_MARGIN_S, MARGIN_SHARE, MAX_WRITES, Conflict, Entry
from shared.runtime.retry import until_answered
from shared.runtime.supervise import Tasks


class LeaderSession(Protocol):
    """The etcd session of a leader. This process can be the leader only while this session is alive.

    A session is an etcd lease that this process renews. The leader's key in etcd belongs to the lease. When the lease
    ends, etcd deletes the key, and another process can become the leader.

    This protocol has only those properties and methods of a session that EtcdLeadership uses.
    """

    @property
    def id(self) -> int: ...

    @property
    def ok_until(self) -> float: ...

    @property
    def ttl_s(self) -> float: ...

    def alive(self, now: float) -> bool: ...

    async def lost(self) -> None: ...


class EtcdLeadership:
    """The leadership that a session won in etcd at `revision` (`shared.ports.coordinator.Leadership`)."""

    def __init__(
        self, connection: EtcdConnection, clock: Clock, session: LeaderSession, key: str, revision: int
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._session = session
        self._key = key
        self._over = asyncio.Event()
        self.revision = revision

    def acting(self, now: float) -> bool:
        session = self._session
        margin = min(LEADER_MARGIN_S, session.ttl_s * MARGIN_SHARE)
        return not self._over.is_set() and session.alive(now) and now < session.ok_until - margin

    async def lost(self) -> None:
        await self._over.wait()

    async def guard(self) -> None:
        """Watch the session and the leader's key in etcd, and return when the leadership has ended.

        The leadership ends when the session ends, or when the leader's key is deleted or belongs to another leadership.
        From then on, `lost` returns and `acting` returns False. Run this method in a background task for as long as the
        leadership is used.
        """
        async with Tasks() as tasks:
            tasks.start(f"etcd.leader_session {self._key}", self._session_lost())
            tasks.start(f"etcd.leader_key {self._key}", until_answered(self._key_lost))
            await self._over.wait()

    async def _session_lost(self) -> None:
        await self._session.lost()
        self._over.set()

    async def _key_lost(self) -> None:
        async with follow(self._connection, self._clock, self._key) as view:
            snapshot = view.snapshot
            while self._ours(snapshot.entries.get(self._key)):
                snapshot = await view.changed(snapshot, None)
        self._over.set()

    async def write(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Mapping[str, int] | None = None
    ) -> int:
        """Put and delete all these keys, or none, while this leadership lasts. Return the revision of the write.

        `expect` maps keys to the revision of their last write, 0 for a key that must not exist. Errors:

        - Conflict: a key has another revision than expected.
        - OwnershipLost: the leadership is over, or `acting` is False.
        - Transient: the result is unknown.
        - ValueError: there are more than MAX_WRITES keys.
        """
        expected = dict(expect or {})
        touched = len({*puts, *deletes, *expected})
        if touched > MAX_WRITES:
            raise ValueError(f"{touched} keys in one write, at most {MAX_WRITES} are allowed")
        self._check_acting()
        compare = self._still_ours()
        compare += [requests.written_at(key, revision) for key, revision in expected.items()]
        then = [requests.put(key, value) for key, value in puts.items()] + [requests.delete(key) for key in deletes]
        # Not repeated: if the first attempt succeeded but its answer was lost, the second would report a conflict.
        answer = await self._connection.call(
            "KV.Txn", requests.txn(compare, then, [self._key, *expected]), repeat=False
        )
        if answer.succeeded:
            return int(answer.header.revision)
        holder, *entries = requests.otherwise_entries(answer)
        self._check(holder)
        moved = [key for key, entry in zip(expected, entries, strict=True) if _revision(entry) != expected[key]]
        raise Conflict(moved)

    async def barrier(self) -> int:
        self._check_acting()
        answer = await self._connection.call("KV.Range", requests.read(self._key), repeat=True)
        self._check(requests.entry_of(answer.kvs[0]) if answer.kvs else None)
        return int(answer.header.revision)

    async def resign(self) -> None:
        self._over.set()
        request = requests.txn(self._still_ours(), [requests.delete(self._key)])
        await self._connection.call("KV.Txn", request, repeat=True)

    def _still_ours(self) -> list[Any]:
        """Return the conditions of an etcd transaction that are true only while this leadership lasts.

        They compare the leader key's lease, and the revision at which the key was created.
        """
        # The revision alone is not enough: after etcd was restored, another leader may have won at the same revision.
        return [requests.created_at(self._key, self.revision), requests.held_by(self._key, self._session.id)]

    def _ours(self, holder: Entry | None) -> bool:
        return holder is not None and (holder.created, holder.lease) == (self.revision, self._session.id)

    def _check_acting(self) -> None:
        if not self.acting(self._clock.elapsed()):
            raise OwnershipLost(f"the leadership of {self._key} won at {self.revision} is over")

    def _check(self, holder: Entry | None) -> None:
        if not self._ours(holder):
            self._over.set()
            raise OwnershipLost(f"the leadership of {self._key} won at {self.revision} is lost")

    def __repr__(self) -> str:
        return f"<EtcdLeadership {self._key} won at {self.revision}{' over' if self._over.is_set() else ''}>"


def _revision(entry: Entry | None) -> int:
    return 0 if entry is None else entry.revision
