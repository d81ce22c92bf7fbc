"""This master's sign of life, and what it sees of the others."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
import structlog

from api.control.plane import Members
from shared.domain.ids import Partition
from shared.ports.coordinator import Coordinator, Entry, Session, Snapshot
from shared.ports.registering import Registration
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
    """Keeps `masters/<id>` for as long as this master lives: on a new session whenever one is lost."""

    def __init__(self, member: MemberRecord, coordinator: Coordinator, keys: Keys, *, ttl_s: float) -> None:
        self.member = member
        self.registration = Registration(
            coordinator, keys.master(member.id), encode_record(member), ttl_s=ttl_s, told=self._told
        )

    def drain(self, draining: bool) -> None:
        """Say whether this master wants to own nothing more."""
        self.member = msgspec.structs.replace(self.member, draining=draining)
        self.registration.change(encode_record(self.member))

    async def run(self, attached: Callable[[Session], Awaitable[None]]) -> None:
        """Until cancelled; `attached` runs on each session and ends before the next one begins."""
        await self.registration.run(attached)

    def _told(self, reason: str) -> None:
        log.warning("master.unregistered", master=self.member.id, reason=reason)


def members_in(snapshot: Snapshot, keys: Keys) -> Members:
    """Who is registered."""
    return Members(
        masters=_named(snapshot, keys.master_of, MemberRecord),
        workers=_named(snapshot, keys.worker_of, MemberRecord),
    )


def leader_in(snapshot: Snapshot, keys: Keys) -> LeaderRecord | None:
    """Who is the leader, if anybody is."""
    entry = snapshot.entries.get(keys.leader)
    return None if entry is None else read_record(entry, LeaderRecord)


def assignments_in(snapshot: Snapshot, keys: Keys) -> Mapping[Partition, tuple[PartitionRecord, Entry]]:
    """Who is named the owner of which partition, with the entry that says so."""
    found = {}
    for key, entry in snapshot.entries.items():
        partition = keys.partition_of(key)
        if partition is not None and (record := read_record(entry, PartitionRecord)) is not None:
            found[partition] = (record, entry)
    return found


def read_record(entry: Entry, kind: type[R]) -> R | None:
    """The entry's record; None, and a word in the log, for one that cannot be read: it counts as absent."""
    try:
        return decode_record(kind, entry.value)
    except Malformed as error:
        log.error("control.malformed", key=entry.key, error=str(error))
        return None


def _named(
    snapshot: Snapshot, name_of: Callable[[str], str | None], kind: type[MemberRecord]
) -> Mapping[str, MemberRecord]:
    found = {}
    for key, entry in snapshot.entries.items():
        name = name_of(key)
        if name is not None and (record := read_record(entry, kind)) is not None:
            found[name] = record
    return found
