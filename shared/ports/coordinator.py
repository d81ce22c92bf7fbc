"""The port to the coordinator (etcd): the live members, the leader, and the few small records that every member
watches.

A coordinator holds keys with values and a *revision*: a number that every change of any key increases. A view shows the
complete state as of a revision; the difference of two snapshots shows what happened. So a reader that misses snapshots
misses no state. Only a leader writes (`Leadership.write`). Every other member registers keys that vanish with its
session.

Errors: Transient if the coordinator is away or did not answer in time, Unusable if it refuses this client,
OwnershipLost if a session or a leadership is over. Calls that are safe to repeat are repeated internally for a few
seconds. A leader's write is not: if its answer is lost it may have happened. Read again, then decide.

*History.* A coordinator may be replaced by an empty or an older one (wiped, restored from a backup). Its revisions then
start again. `Snapshot.history` counts how often this was noticed, so that no earlier state is taken for newer. The
terms of owners do not depend on it being noticed: they carry an epoch (`shared.wire.keys.EpochRecord`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

LEADER_MARGIN_S: Final = 4.0
"""Seconds before its lease could pass to another master at which a leader stops acting by itself."""

MARGIN_SHARE: Final = 4 / 15
"""The largest share of a lease's time used as margin. For a lease shorter than 15 s the margin is below 4 s."""

MAX_WRITES: Final = 100
"""Keys that one `Leadership.write` may touch, expectations included (etcd's own default limit is 128 operations)."""


class Conflict(Exception):
    """A leader's write was not applied: `keys` are not at the revisions that it expected. Read again, then decide."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"changed meanwhile: {', '.join(keys)}")
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its present value. `revision` is the coordinator's revision of its last write.

    `created` is the revision of its creation. A key that is deleted and created again has another one. `lease` is the
    id of the session it vanishes with, 0 for none.
    """

    key: str
    value: bytes
    revision: int
    created: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The value of every key under a prefix as of `revision`.

    `changed`: none of the keys has changed since this revision. `history`: how often the coordinator was seen to be
    replaced.
    """

    entries: Mapping[str, Entry]
    revision: int
    changed: int
    history: int = 0

    def changed_since(self, other: "Snapshot") -> bool:
        """Return True if a key changed between `other` and this snapshot, both of the same prefix."""
        return (self.history, self.changed) > (other.history, other.revision)


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A key that differs between two snapshots. `before` is None if it is new, `after` is None if it is gone.

    If both have different `created`, the key was deleted and created again in between.
    """

    key: str
    before: Entry | None
    after: Entry | None


def differences(before: Snapshot, after: Snapshot) -> Iterator[ViewChange]:
    """Yield the keys that differ between two snapshots: gone ones, then new and changed ones, each ordered by key."""
    for key in sorted(before.entries.keys() - after.entries.keys()):
        yield ViewChange(key, before.entries[key], None)
    for key in sorted(after.entries.keys()):
        old, new = before.entries.get(key), after.entries[key]
        if old != new:
            yield ViewChange(key, old, new)


class View(Protocol):
    """All keys under a watched prefix, kept up to date."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest known state of all keys under the prefix. It stays available while the coordinator is away."""

    @property
    def answered_at(self) -> float:
        """When the coordinator last sent anything for this view (`Clock.elapsed`). The snapshot is no older."""

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        """Wait until a snapshot is newer than `after`, at most `wait_s` seconds (None: without limit). Return the
        newest one.

        No wake-up can be lost: a change before the call counts. A snapshot may contain several changes, but never a
        part of one write.
        """


class Leadership(Protocol):
    """The right to act as the leader, won in one election. Once resigned or lost it is over: campaign again."""

    @property
    def revision(self) -> int:
        """The coordinator's revision at which the election was won. It grows from one leadership to the next."""

    def acting(self, now: float) -> bool:
        """Return True if the leader may still act at `now` (`Clock.elapsed`).

        It is False from LEADER_MARGIN_S before the coordinator could give the leadership to another master, computed
        from when the last answered renewal was *sent*. It becomes True again when a renewal is answered in time.
        """

    async def lost(self) -> None:
        """Wait until the leadership is over: the session was lost, or the leader's key is gone or another master's."""

    async def write(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Mapping[str, int] | None = None
    ) -> int:
        """Write and delete keys, all or nothing, only while this leadership lasts. Return the revision of the write.

        `expect` gives the revisions that keys must be at, 0 for a key that must not exist.
        - Conflict: a key was at another revision. Nothing was written.
        - OwnershipLost: the leadership is over or may not act (`acting`). Nothing was written.
        - Transient: it may or may not have been written. It is not repeated.
        - ValueError: more than MAX_WRITES keys.
        """

    async def barrier(self) -> int:
        """Return the coordinator's newest revision. Reads from now on include every earlier leader's writes.

        Raise OwnershipLost as `write` does.
        """

    async def resign(self) -> None:
        """Give up the leadership at once, so that another master can win. Harmless if it is lost already.

        If this raises Transient, the leadership ends with the session, at the latest.
        """


class Session(Protocol):
    """A member's session at the coordinator. It ends after its time to live, unless it is renewed: at every third of
    that.

    A lost session never returns, and the keys registered with it vanish.
    """

    @property
    def id(self) -> int:
        """The number of the session, which its keys have as `Entry.lease`."""

    @property
    def ok_until(self) -> float:
        """Until when (`Clock.elapsed`) no other member can hold what depends on the session, such as the leadership.

        This is the time the last answered renewal was *sent*, plus the session's time to live.
        """

    def alive(self, now: float) -> bool:
        """Return True if the session is not lost and `now` (`Clock.elapsed`) is before `ok_until`."""

    async def lost(self) -> None:
        """Wait until the session is over: expired by this process's clock, or no longer present in the coordinator."""

    async def register(self, key: str, value: bytes) -> None:
        """Set the key to this value for as long as the session lives. A repeat changes the value.

        If several sessions register a key, the last one has it. Raise OwnershipLost if the session is over.
        """

    async def campaign(self, key: str, value: bytes) -> Leadership:
        """Wait without limit until the key does not exist, then create it and return the leadership won by that.

        Raise OwnershipLost if the session ends meanwhile. A cancelled call holds nothing.
        """


class Coordinator(Protocol):
    """A connection to the coordinator (etcd in a cluster): reads and watches keys, and opens sessions."""

    async def list(self, prefix: str) -> Snapshot:
        """Return all keys that start with `prefix`, with their values. Writes acknowledged before are included."""

    async def get(self, key: str) -> Entry | None:
        """Return one key's present entry, or None if it does not exist."""

    def watch(self, prefix: str) -> AbstractAsyncContextManager[View]:
        """Open a view of all keys under a prefix for the `with` block. Raise Transient if that fails."""

    def session(self, ttl_s: float) -> AbstractAsyncContextManager[Session]:
        """Open a session for the `with` block; at its end its keys vanish at once. Raise Transient if that fails."""

    async def close(self) -> None: ...
