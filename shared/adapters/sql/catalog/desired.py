"""Desired state on SQL: the hot configuration, the members to drain, exclusions, host policies and seed sets."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, text

from shared.adapters.sql.catalog import access
from shared.adapters.sql.catalog import exclusions as stored_exclusions
from shared.adapters.sql.catalog import host_policies as stored_policies
from shared.adapters.sql.catalog import seed_sets as stored_seed_sets
from shared.adapters.sql.engine.access_schema import config_revisions, drains
from shared.adapters.sql.engine.executor import SqlAdapter, polled, read, write
from shared.domain.errors import Refused
from shared.domain.ops.config import (
    AS_STARTED,
    MAX_DRAINS,
    Drains,
    HotConfig,
    MemberRole,
    StoredConfig,
    decode_config,
    encode_config,
)
from shared.domain.reads.declared import Actor
from shared.ports.catalog import Missing, Stale

_LEADER: Final = Actor("", "leader", "")
_FULL_S: Final = 60.0


# --- the hot configuration --------------------------------------------------------------------------------------------


def _newest(connection: Connection) -> StoredConfig:
    query = select(config_revisions).order_by(config_revisions.c.revision.desc()).limit(1)
    row = connection.execute(query).first()
    return StoredConfig(0, AS_STARTED) if row is None else _stored(row)


def _revision(connection: Connection, revision: int) -> StoredConfig:
    row = connection.execute(select(config_revisions).where(config_revisions.c.revision == revision)).first()
    if row is None:
        raise Missing(f"there is no revision {revision} of the configuration")
    return _stored(row)


def _revisions(connection: Connection, *, before: int, max_count: int) -> Sequence[StoredConfig]:
    table = config_revisions
    query = select(table).where(table.c.revision < before).order_by(table.c.revision.desc()).limit(max_count)
    return [_stored(row) for row in connection.execute(query)]


def _put(
    connection: Connection,
    wanted: HotConfig,
    *,
    expected: frozenset[str] | None,
    actor: Actor,
    now_ms: int,
    document: str | None = None,
) -> tuple[StoredConfig, bool]:
    """Store `wanted` as a new revision, unless it equals the newest. Return the newest revision, and True if it is new.

    - `document`: the text to store. None: `wanted` as JSON.
    - `expected`: tags (HTTP ETags). Raise Stale if the newest revision has none of them. None: no condition.

    The table is locked, so concurrent calls make consecutive revisions.
    """
    if connection.dialect.name == "postgresql":  # SQLite has one writer
        connection.execute(text("LOCK TABLE config_revisions IN SHARE ROW EXCLUSIVE MODE"))
    stored = _newest(connection)
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    if stored.config == wanted:
        return stored, False
    made = StoredConfig(stored.revision + 1, wanted, now_ms, str(actor))
    document = encode_config(wanted).decode() if document is None else document
    connection.execute(
        insert(config_revisions).values(
            revision=made.revision, document=document, changed_at_ms=now_ms, changed_by=made.changed_by
        )
    )
    access.record(connection, actor, "config.replace", f"revision {made.revision}", stored.text, document, now_ms)
    return made, True


def _stored(row: Row[Any]) -> StoredConfig:
    document = str(row.document)
    return StoredConfig(
        int(row.revision), decode_config(document), int(row.changed_at_ms), str(row.changed_by), document
    )


# --- drains -----------------------------------------------------------------------------------------------------------


def _drains(connection: Connection) -> Drains:
    members: dict[str, list[str]] = {role: [] for role in MemberRole}
    for role, member in connection.execute(select(drains.c.role, drains.c.member).order_by(drains.c.member)):
        members.setdefault(role, []).append(member)
    return Drains(masters=tuple(members[MemberRole.MASTER]), workers=tuple(members[MemberRole.WORKER]))


def _drain(connection: Connection, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
    here = (drains.c.role == role) & (drains.c.member == member)
    if connection.execute(select(drains.c.member).where(here)).first() is not None:
        return False
    if connection.execute(select(func.count()).select_from(drains)).scalar_one() >= MAX_DRAINS:
        raise Refused(
            f"{MAX_DRAINS} members are drained already: undrain members that no longer exist", retry_in=_FULL_S
        )
    connection.execute(insert(drains).values(role=role, member=member, since_ms=now_ms, asked_by=str(actor)))
    access.record(connection, actor, f"{role}.drain", member, None, None, now_ms)
    return True


def _undrain(connection: Connection, role: MemberRole, member: str, *, actor: Actor, now_ms: int) -> bool:
    here = (drains.c.role == role) & (drains.c.member == member)
    if not connection.execute(delete(drains).where(here)).rowcount:
        return False
    access.record(connection, actor, f"{role}.undrain", member, None, None, now_ms)
    return True


def _forget(connection: Connection, missing: Drains, *, before_ms: int, now_ms: int) -> Drains:
    forgotten: dict[MemberRole, list[str]] = {role: [] for role in MemberRole}
    old = select(drains.c.role, drains.c.member).where(drains.c.since_ms < before_ms).order_by(drains.c.member)
    for role, member in connection.execute(old).all():
        if member in missing.of(MemberRole(role)):
            _undrain(connection, MemberRole(role), member, actor=_LEADER, now_ms=now_ms)
            forgotten[MemberRole(role)].append(member)
    return Drains(masters=tuple(forgotten[MemberRole.MASTER]), workers=tuple(forgotten[MemberRole.WORKER]))


class SqlDesired(SqlAdapter):
    """Implements the port `shared.ports.desired.Desired` on SQL.

    It stores the hot configuration, the members to drain, exclusions, host policies and seed sets.
    """

    config = polled(_newest)
    config_revision = read(_revision)
    config_revisions = read(_revisions)
    put_config = write(_put)
    drains = polled(_drains)
    drain = write(_drain)
    undrain = write(_undrain)
    forget_drains = write(_forget)
    exclusions = read(stored_exclusions.listing)
    exclusion = read(stored_exclusions.one)
    add_exclusion = write(stored_exclusions.add)
    put_exclusion = write(stored_exclusions.put)
    delete_exclusion = write(stored_exclusions.remove)
    exclusions_revision = read(stored_exclusions.revision_of)
    exclusions_in_force = read(stored_exclusions.in_force)
    exclusion_commanded = write(stored_exclusions.commanded)
    host_policies = read(stored_policies.listing)
    host_policy = read(stored_policies.one)
    put_host_policy = write(stored_policies.put)
    delete_host_policy = write(stored_policies.remove)
    host_policy_commands = polled(stored_policies.commands)
    host_policy_commanded = write(stored_policies.commanded)
    seed_sets = read(stored_seed_sets.listing)
    seed_set = read(stored_seed_sets.one)
    put_seed_set = write(stored_seed_sets.put)
    delete_seed_set = write(stored_seed_sets.remove)
    seed_set_commands = polled(stored_seed_sets.commands)
    seed_set_commanded = write(stored_seed_sets.commanded)
