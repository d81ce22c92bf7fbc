"""The port to coordination: who is alive, who leads, and the few small records that everybody watches.

A coordinator holds keys with values and a *revision*: a number that every change of any key increases. Everything is
level-triggered: a view shows what is, completely, as of a revision, and what happened is the difference of two
snapshots. Only a leader writes (`Leadership.write`); everyone else registers keys that vanish with their session.

Errors: Transient when the coordinator is away or did not answer in time, Unusable when it will not let us in,
OwnershipLost when a session or a leadership is over. A call that may be repeated without harm is repeated inside for a
few seconds; of a leader's write, whose answer got lost, nobody knows whether it happened: read again, then decide.

*History.* A coordinator may be replaced by an empty or an older one (wiped, restored from a backup): its revisions
then start again. `Snapshot.history` counts how often this was noticed, so that nothing of before is taken for newer.
The terms of owners do not depend on it being noticed: they carry an epoch (`shared.wire.keys.EpochRecord`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

LEADER_MARGIN_S: Final = 4.0
"""So long before its lease could be given away a leader stops acting by itself."""

MARGIN_SHARE: Final = 4 / 15
"""The most of a lease's time that the margin takes: less than 4 s where a lease is shorter than 15 s."""

MOST_WRITES: Final = 100
"""Keys that one `Leadership.write` may touch, expectations included (etcd's own default limit is 128 operations)."""


class Conflict(Exception):
    """A leader's write was not applied: `keys` are not at the revision the writer had seen. Read, then decide."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"changed meanwhile: {', '.join(keys)}")
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it is. `revision`: when it was written last; `created`: when it came to be (deleted and made again, it
    has another). `lease` names the session it lives with, 0 none."""

    key: str
    value: bytes
    revision: int
    created: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every key under a prefix as of `revision`, nothing missing.

    `changed`: nothing happened after this revision, up to `revision`.
    """

    entries: Mapping[str, Entry]
    revision: int
    changed: int
    history: int = 0

    def changed_since(self, other: "Snapshot") -> bool:
        """Whether something happened between `other` and this one, both of the same prefix."""
        return (self.history, self.changed) > (other.history, other.revision)


@dataclass(frozen=True, slots=True)
class Change:
    """A key that differs between two snapshots: `before` None means it is new, `after` None that it is gone.

    Both with different `created`: it was deleted and made again in between.
    """

    key: str
    before: Entry | None
    after: Entry | None


def differences(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """What to do to get from one snapshot to another: the gone, then the new and the changed, each in order of keys."""
    for key in sorted(before.entries.keys() - after.entries.keys()):
        yield Change(key, before.entries[key], None)
    for key in sorted(after.entries.keys()):
        known, found = before.entries.get(key), after.entries[key]
        if known != found:
            yield Change(key, known, found)


class View(Protocol):
    """A watched prefix."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest complete one; it is kept while the coordinator is away."""
        ...

    @property
    def heard_at(self) -> float:
        """When the coordinator last said something on this view (`Clock.elapsed`): how old the snapshot may be."""
        ...

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        """The newest snapshot, as soon as something changed after `after`, or when wait_s are over (None: never).

        No wake-up can be lost: what changed before the call counts. Several changes may be seen at once, never half of
        one write.
        """
        ...


class Leadership(Protocol):
    """One won election, until it is resigned or lost. It never comes back: campaign again."""

    @property
    def revision(self) -> int:
        """At which it was won: grows from one leadership to the next."""
        ...

    def acting(self, now: float) -> bool:
        """Whether a leader may still act at `now` (`Clock.elapsed`).

        False from LEADER_MARGIN_S before the coordinator could give the leadership to somebody else, reckoned from when
        the last answered renewal was *sent*. It becomes true again when a renewal is answered in time.
        """
        ...

    async def lost(self) -> None:
        """Wait until it is over: the session was lost, or the key is gone or somebody else's."""
        ...

    async def write(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Mapping[str, int] | None = None
    ) -> int:
        """Write all of it or nothing, only while this leadership lasts; the revision of the write.

        `expect`: the revisions that keys must be at, 0 for a key that must not exist; else Conflict, and nothing was
        written. OwnershipLost, nothing written: not acting any more, or deposed. Transient: nobody knows whether it was
        written; it is not repeated. ValueError above MOST_WRITES keys.
        """
        ...

    async def barrier(self) -> int:
        """The newest revision: whatever an earlier leader wrote is read from now on. OwnershipLost as for `write`."""
        ...

    async def resign(self) -> None:
        """Let another one win, now. Harmless when lost already. Transient: it ends with the session, at latest."""
        ...


class Session(Protocol):
    """A sign of life that is renewed at a third of its time. Lost is lost: its keys go, open a new one."""

    @property
    def id(self) -> int:
        """Stands as `Entry.lease` on the session's keys."""
        ...

    @property
    def ok_until(self) -> float:
        """`Clock.elapsed` until which nobody else can have been given what hangs on it: the time the last answered
        renewal was *sent*, plus the session's time to live."""
        ...

    def alive(self, now: float) -> bool:
        """Not lost, and before `ok_until`."""
        ...

    async def lost(self) -> None:
        """Wait until the session is over: expired by our own clock, or the coordinator does not know it any more."""
        ...

    async def register(self, key: str, value: bytes) -> None:
        """Let the key have this value for as long as the session lives; again changes the value.

        Whoever registers a key last has it, in the order of calls. OwnershipLost when the session is over.
        """
        ...

    async def campaign(self, key: str, value: bytes) -> Leadership:
        """Wait for as long as it takes, then lead: the key did not exist, and is now ours.

        OwnershipLost when the session ends meanwhile. Cancelled, it holds nothing.
        """
        ...


class Coordinator(Protocol):
    """A connection to the coordinator."""

    async def list(self, prefix: str) -> Snapshot:
        """Every key that starts with `prefix`, as of now: no older than anything acknowledged to anybody before."""
        ...

    async def get(self, key: str) -> Entry | None:
        """One key as of now, None when it does not exist."""
        ...

    def watch(self, prefix: str) -> AbstractAsyncContextManager[View]:
        """A view of a prefix that follows every change until the context ends. Transient when it cannot be opened."""
        ...

    def session(self, ttl_s: float) -> AbstractAsyncContextManager[Session]:
        """A session until the context ends; its keys then vanish at once. Transient when it cannot be opened."""
        ...

    async def close(self) -> None: ...
