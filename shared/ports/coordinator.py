"""The port to the coordinator (etcd): live members, the leader, and small records that every member watches.

The coordinator stores keys with values. Every change of a key increases a number, the *revision*. A snapshot has the
values of all keys under a prefix as of one revision. A view watches a prefix and has the newest snapshot. Members
register keys that vanish when their session ends. Only the leader writes all other keys (`Leadership.write`).

Errors: Transient if the coordinator is away or did not answer in time. Unusable if it refuses this client.
OwnershipLost if a session or a leadership is over. Calls that are safe to repeat are retried internally for a few
seconds. A leader's write is not retried. If its answer is lost, the write may have been applied, so the leader must
read the keys again.

*History.* A coordinator may be replaced by an empty or an older one (wiped, or restored from a backup). Its revisions
then start again. `Snapshot.history` counts how often this process detected that. So a snapshot with a greater history
is newer, even if its revision is lower.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from msgspec import Struct

LEADER_MARGIN_S: Final = 4.0
"""A leader that cannot renew its session stops acting this many seconds before another master could become leader."""

MARGIN_SHARE: Final = 4 / 15
"""In a session with a time to live below 15 s, this share of that time replaces LEADER_MARGIN_S.

Example: the time to live is 6 s. A leader that cannot renew its session then stops acting 1.6 s before another master
could become leader.
"""

MAX_WRITES: Final = 100
"""How many keys one `Leadership.write` may put, delete or name in `expect` (etcd allows 128 operations by default)."""


class Conflict(Exception):
    """A leader's write was refused, because each of `keys` had another revision than expected.

    Read these keys again before another write.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"changed meanwhile: {', '.join(keys)}")
        self.keys = tuple(keys)


class Entry(Struct, frozen=True):
    """A key of the coordinator and its value.

    - `revision`: the coordinator's revision at which the value was last written.
    - `created`: the revision at which the key was created. It changes if the key is deleted and created again.
    - `lease`: the id of the session with which the key vanishes, 0 if it does not depend on a session.
    """

    key: str
    value: bytes
    revision: int
    created: int
    lease: int = 0


class Snapshot(Struct, frozen=True):
    """The entries of all keys under a prefix, by key, as of the coordinator's `revision`.

    - `changed`: no key under the prefix has changed after this revision. If this process saw the last change of a key,
      it is the revision of that change. If not, it may be greater. Example: after a restart the process reads all keys
      at revision 90. The last change was at 70, but the process does not know that. So `changed` is 90.
    - `history`: how often the coordinator was replaced by an empty or older one, as far as this process detected it.
    """

    entries: Mapping[str, Entry]
    revision: int
    changed: int
    history: int = 0

    def changed_since(self, other: "Snapshot") -> bool:
        """Return True if a key changed after the snapshot `other` of the same prefix was taken."""
        return (self.history, self.changed) > (other.history, other.revision)


class ViewChange(Struct, frozen=True):
    """A key that differs between two snapshots. `before` is None if it is new, `after` is None if it was deleted.

    If both are set and have different `created`, the key was deleted and created again between the snapshots.
    """

    key: str
    before: Entry | None
    after: Entry | None


def differences(before: Snapshot, after: Snapshot) -> Iterator[ViewChange]:
    """Yield the keys that differ between two snapshots of one prefix.

    First come deleted keys, then new and changed ones. Both groups are ordered by key.
    """
    for key in sorted(before.entries.keys() - after.entries.keys()):
        yield ViewChange(key, before.entries[key], None)
    for key in sorted(after.entries.keys()):
        old, new = before.entries.get(key), after.entries[key]
        if old != new:
            yield ViewChange(key, old, new)


class View(Protocol):
    """The state of all keys under a watched prefix, which the coordinator keeps up to date."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest state of the keys that this process has received.

        It stays readable while the coordinator is away.
        """

    @property
    def answered_at(self) -> float:
        """The time (`Clock.elapsed`) when the coordinator last sent anything for this view.

        The snapshot was current then.
        """

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        """Wait until there is a snapshot newer than `after`, and return the newest one.

        If none comes within `wait_s` seconds (None: no limit), return the present snapshot. A change that came before
        the call ends the wait at once. Several writes may appear as one new snapshot, but a snapshot never has only a
        part of one write.
        """


class Leadership(Protocol):
    """The right to act as the leader, won in one election. Once resigned or lost, it is over for good.

    To lead again, call `Session.campaign`.
    """

    @property
    def revision(self) -> int:
        """The coordinator's revision at which the election was won. A later leadership has a greater one."""

    def acting(self, now: float) -> bool:
        """Return True if the leader may act at the time `now` (`Clock.elapsed`).

        Return False in two cases:
        - The leadership is over.
        - Another master could become leader soon: the session's `ok_until` is at most the leader's margin away. After
          a renewal of the session the result is True again.

        The margin is LEADER_MARGIN_S. In a short session it is MARGIN_SHARE of the session's time to live.
        """

    async def lost(self) -> None:
        """Wait until the leadership is over: the session has ended, or the leader's key is no longer this master's."""

    async def write(
        self, puts: Mapping[str, bytes], deletes: Sequence[str] = (), expect: Mapping[str, int] | None = None
    ) -> int:
        """Write and delete keys, all or none of them, while this leadership lasts. Return the revision of the write.

        `expect` maps keys to the revision of their last write, 0 for a key that must not exist. Errors:
        - Conflict: a key had another revision than expected. Nothing was written.
        - OwnershipLost: the leadership is over or may not act (`acting`). Nothing was written.
        - Transient: the keys may or may not have been written. The call does not retry.
        - ValueError: the call names more than MAX_WRITES keys.
        """

    async def barrier(self) -> int:
        """Return the coordinator's newest revision.

        Reads at this revision or later include the writes of all earlier leaders. Raise OwnershipLost if the leadership
        is over or may not act.
        """

    async def resign(self) -> None:
        """Give up the leadership at once, so that another master can win it. Do nothing if it is already lost.

        Raise Transient if the leader's key may still exist. It vanishes at the end of the session at the latest.
        """


class Session(Protocol):
    """A member's session at the coordinator, with the keys that vanish when it ends.

    It ends when its time to live passes without a renewal. It is renewed automatically at every third of that time. A
    session that was lost never becomes alive again.
    """

    @property
    def id(self) -> int:
        """The number of the session. Entries of its keys have it as `Entry.lease`."""

    @property
    def ok_until(self) -> float:
        """The time (`Clock.elapsed`) until which no other member can get what this session has, such as the leadership.

        It is the time at which the last answered renewal was *sent*, plus the session's time to live.
        """

    def alive(self, now: float) -> bool:
        """Return True if the session is not lost and `now` (`Clock.elapsed`) is before `ok_until`."""

    async def lost(self) -> None:
        """Wait until the session is over: it expired by this process's clock, or the coordinator no longer has it."""

    async def register(self, key: str, value: bytes) -> None:
        """Set `key` to `value` until the session ends. A later call with the same key changes its value.

        If several sessions register the same key, the last call determines its value and session. Raise OwnershipLost
        if the session is over.
        """

    async def campaign(self, key: str, value: bytes) -> Leadership:
        """Wait, without a time limit, until `key` does not exist, and create it with `value`.

        Return the leadership won. Raise OwnershipLost if the session ends first. If the call is cancelled, it leaves no
        key behind.
        """


class Coordinator(Protocol):
    """A connection to the coordinator (etcd in a cluster). It reads and watches keys, and opens sessions."""

    async def list(self, prefix: str) -> Snapshot:
        """Return a snapshot of all keys that start with `prefix`.

        It includes every write acknowledged before the call.
        """

    async def get(self, key: str) -> Entry | None:
        """Return the present entry of `key`, or None if the key does not exist."""

    def watch(self, prefix: str) -> AbstractAsyncContextManager[View]:
        """Open a view of all keys that start with `prefix`, for the `with` block.

        Raise Transient if it cannot be opened.
        """

    def session(self, ttl_s: float) -> AbstractAsyncContextManager[Session]:
        """Open a session with a time to live of `ttl_s` seconds, for the `with` block.

        At the end of the block the session's keys are deleted at once. Raise Transient if the session cannot be opened.
        """

    async def close(self) -> None: ...
