"""Encodes and decodes the records by which the leader publishes the members' desired state through the coordinator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from shared.domain.crawl.exclusions import Exclusions
from shared.domain.ops.config import AS_STARTED, Drains, StoredConfig, decode_config
from shared.ports.coordinator import Entry, Snapshot
from shared.wire.keys import DRAINS, SETTINGS, ConfigRecord, Keys, decode_record, encode_record
from shared.wire.messages import Malformed


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The hot configuration with its revision, and the members that must drain."""

    config: StoredConfig
    drains: Drains


NOTHING_SAID: Final = DesiredState(StoredConfig(0, AS_STARTED), Drains())
"""The desired state of a member that has seen no record yet."""


def desired_state_after(before: DesiredState, snapshot: Snapshot, keys: Keys) -> tuple[DesiredState, list[str]]:
    """Return the desired state that the records in `snapshot` publish, and a message for each unreadable record.

    If a record is missing or unreadable, keep its part of `before` (the hot configuration or the drains).
    """
    state, complaints = before, []
    try:
        if (entry := snapshot.entries.get(keys.setting(SETTINGS))) is not None:
            state = replace(state, config=config_of(entry))
    except Malformed as error:
        complaints.append(f"the published configuration cannot be read: {error}")
    try:
        if (entry := snapshot.entries.get(keys.setting(DRAINS))) is not None:
            state = replace(state, drains=drains_of(entry))
    except Malformed as error:
        complaints.append(f"the published drains cannot be read: {error}")
    return state, complaints


def config_record(stored: StoredConfig) -> bytes:
    """Encode the hot configuration as the record for the key `SETTINGS`."""
    return encode_record(
        ConfigRecord(msgspec.Raw(stored.text.encode()), stored.changed_at_ms, stored.changed_by, stored.revision)
    )


def drains_record(drains: Drains) -> bytes:
    """Encode the members that must drain as the record for the key `DRAINS`."""
    return encode_record(ConfigRecord(msgspec.Raw(msgspec.json.encode(drains))))


def config_of(entry: Entry) -> StoredConfig:
    """Return the hot configuration from the entry of the key `SETTINGS`. Raise Malformed if it cannot be decoded."""
    record = decode_record(ConfigRecord, entry.value)
    try:
        config = decode_config(bytes(record.value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
    return StoredConfig(record.revision, config, record.changed_at_ms, record.changed_by)


def drains_of(entry: Entry) -> Drains:
    """Decode the entry of the key `DRAINS`. Return the members that must drain.

    Raise Malformed if the entry cannot be decoded.
    """
    record = decode_record(ConfigRecord, entry.value)
    try:
        return msgspec.json.decode(bytes(record.value), type=Drains)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error


def exclusions_record(revision: int, targets: Sequence[str]) -> bytes:
    """Encode the exclusions in force as the record for the key `EXCLUSIONS`.

    `revision` is their revision in the database.
    """
    return encode_record(ConfigRecord(msgspec.Raw(msgspec.json.encode(targets)), revision=revision))


def exclusions_of(entry: Entry) -> Exclusions:
    """Return the exclusions from the entry of the key `EXCLUSIONS`. Raise Malformed if it cannot be decoded.

    A target that this version of the program cannot read is in `unread` of the result.
    """
    record = decode_record(ConfigRecord, entry.value)
    try:
        return Exclusions(record.revision, msgspec.json.decode(bytes(record.value), type=list[str]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
