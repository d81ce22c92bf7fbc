"""What operators want of the members, as the leader publishes it and every member reads it (pure)."""

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from shared.domain.config import AS_STARTED, Drains, StoredConfig, decode_config
from shared.ports.coordinator import Entry, Snapshot
from shared.wire.keys import DRAINS, SETTINGS, ConfigRecord, Keys, decode_record, encode_record
from shared.wire.messages import Malformed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The hot configuration at its revision, and who is to drain."""

    config: StoredConfig
    drains: Drains


NOTHING_SAID: Final = Wanted(StoredConfig(0, AS_STARTED), Drains())
"""What a member goes by that has seen no record yet."""


def wanted_after(before: Wanted, snapshot: Snapshot, keys: Keys) -> tuple[Wanted, list[str]]:
    """What is wanted now, and complaints about what cannot be read.

    What is absent or unreadable stays as it was `before`: a coordinator that lost everything, or a record of a version
    that this one does not understand, turns nothing back.
    """
    wanted, complaints = before, []
    try:
        if (entry := snapshot.entries.get(keys.setting(SETTINGS))) is not None:
            wanted = replace(wanted, config=config_of(entry))
    except Malformed as error:
        complaints.append(f"the published configuration cannot be read: {error}")
    try:
        if (entry := snapshot.entries.get(keys.setting(DRAINS))) is not None:
            wanted = replace(wanted, drains=drains_of(entry))
    except Malformed as error:
        complaints.append(f"the published drains cannot be read: {error}")
    return wanted, complaints


def config_record(stored: StoredConfig) -> bytes:
    """The value under `SETTINGS`."""
    return encode_record(
        ConfigRecord(msgspec.Raw(stored.text.encode()), stored.changed_at_ms, stored.changed_by, stored.revision)
    )


def drains_record(drains: Drains) -> bytes:
    """The value under `DRAINS`."""
    return encode_record(ConfigRecord(msgspec.Raw(msgspec.json.encode(drains))))


def config_of(entry: Entry) -> StoredConfig:
    """The configuration in an entry. Malformed."""
    record = decode_record(ConfigRecord, entry.value)
    try:
        config = decode_config(bytes(record.value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from error
    return StoredConfig(record.revision, config, record.changed_at_ms, record.changed_by)


def drains_of(entry: Entry) -> Drains:
    """The drains in an entry. Malformed."""
    record = decode_record(ConfigRecord, entry.value)
    try:
        return msgspec.json.decode(bytes(record.value), type=Drains)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from error
