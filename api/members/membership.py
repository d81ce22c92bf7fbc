"""Register this master in etcd, and read the registered members, the leader and the owners of partitions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
import structlog

from api.members.control_plane import Members
from shared.domain.ids import Partition
from shared.ports.coordinator import Coordinator, Entry, Session, Snapshot
from shared.runtime.registration import Registration
from shared.wire.keys import (
    Keys,
    LeaderRecord,
    MemberRecord,
    PartitionRecord,
    Record,
    decode_record,
    encode_record,
)
from shared.wire.messages import Malformed

log = structlog.get_logger("orb.control")

R = TypeVar("R", bound=Record)


class Membership:
    """Keeps the record of this master (`masters/<id>`) in etcd while `run` runs.

    The record vanishes when the master's session in etcd ends. A lost session is replaced by a new one.
    """

    def __init__(self, member: MemberRecord, coordinator: Coordinator, keys: Keys, *, ttl_s: float) -> None:
        self.member = member
        self.registration = Registration(
            coordinator, keys.master(member.id), encode_record(member), ttl_s=ttl_s, on_error=self._log_lost
        )

    def drain(self, draining: bool) -> None:
        """Record in etcd that this master drains (`draining` is True), or that it takes on work again."""
        self.member = msgspec.structs.replace(self.member, draining=draining)
        self.registration.change(encode_record(self.member))

    async def run(self, attached: Callable[[Session], Awaitable[None]]) -> None:
        """Stay registered until cancelled.

        Call `attached` once in each session of etcd, with the session as its argument. If the session is lost,
        `attached` is cancelled. The next session is opened after `attached` has ended.
        """
        await self.registration.run(attached)

    def _log_lost(self, reason: str) -> None:
        log.warning("master.unregistered", master=self.member.id, reason=reason)


def members_in(snapshot: Snapshot, keys: Keys) -> Members:
    """Return the members whose records are in the snapshot. Records that cannot be read are logged and left out."""
    return Members(
        masters=_named(snapshot, keys.master_of, MemberRecord),
        workers=_named(snapshot, keys.worker_of, MemberRecord),
    )


def leader_in(snapshot: Snapshot, keys: Keys) -> LeaderRecord | None:
    """Return the leader's record in the snapshot; None without a leader, or if the record cannot be read."""
    entry = snapshot.entries.get(keys.leader)
    return None if entry is None else read_record(entry, LeaderRecord)


def assignments_in(snapshot: Snapshot, keys: Keys) -> Mapping[Partition, tuple[PartitionRecord, Entry]]:
    """Return the record of each assigned partition, and the entry of the snapshot from which the record was read."""
    assigned = {}
    for key, entry in snapshot.entries.items():
        partition = keys.partition_of(key)
        if partition is not None and (record := read_record(entry, PartitionRecord)) is not None:
            assigned[partition] = (record, entry)
    return assigned


def read_record(entry: Entry, kind: type[R]) -> R | None:
    """Return the record in an entry. If it cannot be read, log that and return None."""
    try:
        return decode_record(kind, entry.value)
    except Malformed as error:
        log.error("control_record.rejected", key=entry.key, error=str(error))
        return None


def _named(
    snapshot: Snapshot, name_of: Callable[[str], str | None], kind: type[MemberRecord]
) -> Mapping[str, MemberRecord]:
    records = {}
    for key, entry in snapshot.entries.items():
        name = name_of(key)
        if name is not None and (record := read_record(entry, kind)) is not None:
            records[name] = record
    return records
