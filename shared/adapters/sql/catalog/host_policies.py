"""Host policies on SQL.

A transaction that changes a policy also writes the audit log, and a request for a command HOST_POLICY. The leader
publishes the command later. The command makes the owner of the host apply the policy.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from shared.adapters.sql.catalog import access
from shared.adapters.sql.engine.access_schema import host_policies, host_policy_commands
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.host_policies import (
    MAX_HOST_POLICIES,
    HostLimits,
    HostPolicyCommand,
    HostPolicySpec,
    StoredHostPolicy,
    command_id_of,
)
from shared.domain.reads.declared import Actor, PutOutcome
from shared.ports.catalog import Full, Missing, Stale

AT_ONCE: Final = 100
"""The most commands that one read returns."""


def listing(connection: Connection, *, after: str, max_count: int) -> Sequence[StoredHostPolicy]:
    """Return up to `max_count` host policies after the host `after`, ordered by host."""
    query = select(host_policies).where(host_policies.c.host > after).order_by(host_policies.c.host).limit(max_count)
    return [_stored(row) for row in connection.execute(query)]


def one(connection: Connection, host: str) -> StoredHostPolicy:
    """Return the policy of a host. Raise Missing if it has none."""
    stored = _find(connection, host)
    if stored is None:
        raise Missing(f"there is no policy of the host {host!r}")
    return stored


def put(
    connection: Connection,
    host: str,
    partition: Partition,
    spec: HostPolicySpec,
    limits: HostLimits,
    *,
    expected: frozenset[str] | None,
    actor: Actor,
    now_ms: int,
    new: bool = False,
) -> tuple[StoredHostPolicy, PutOutcome]:
    """Store `spec` as the policy of a host. Return the policy, and what was done. Request the command that applies it.

    - `partition`: the partition of the host.
    - `limits`: the delay, the end of the block, and the slots, computed from `spec` (`limits_of`).
    - `expected`: tags (HTTP ETags). Raise Stale if the policy has none of them, Missing if there is none. None: no
      condition.
    - `new`: raise Stale if the host has a policy already.

    Write nothing if the spec is unchanged. Raise Full at MAX_HOST_POLICIES.
    """
    _lock(connection)
    before = _find(connection, host)
    if expected is not None:
        if before is None:
            raise Missing(f"there is no policy of the host {host!r}")
        if before.tag not in expected:
            raise Stale(before.tag)
    if new and before is not None:
        raise Stale(before.tag)
    if before is not None and before.spec == spec:
        return before, PutOutcome.UNCHANGED
    if before is None and (count := _count(connection)) >= MAX_HOST_POLICIES:
        raise Full(
            f"there are {count} host policies, and at most {MAX_HOST_POLICIES} are kept",
            "delete host policies that are no longer needed",
        )
    revision = _command(connection, host, partition, actor, now_ms)
    document = msgspec.json.encode(spec).decode()
    values: dict[str, Any] = {
        "spec": document,
        "delay_ms": limits.delay_ms,
        "blocked_until_ms": limits.blocked_until_ms,
        "slots": limits.slots,
        "reason": None if spec.block is None else spec.block.reason,
        "revision": revision,
        "changed_at_ms": now_ms,
        "changed_by": str(actor),
    }
    if before is None:
        made = values | {"host": host, "partition": partition, "created_at_ms": now_ms, "created_by": str(actor)}
        connection.execute(insert(host_policies).values(**made))
    else:
        connection.execute(update(host_policies).where(host_policies.c.host == host).values(**values))
    action, outcome = "host_policy.replace", PutOutcome.REPLACED
    if before is None:
        action, outcome = "host_policy.create", PutOutcome.CREATED
    earlier = None if before is None else msgspec.json.encode(before.spec).decode()
    access.record(connection, actor, action, host, earlier, document, now_ms)
    return one(connection, host), outcome


def remove(connection: Connection, host: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int) -> str:
    """Delete the policy of a host. Return the id of the command that makes the host's owner apply the deletion.

    Raise Missing if the host has no policy, Stale if its HTTP ETag is not in `expected`
    (None: no condition).
    """
    _lock(connection)
    stored = one(connection, host)
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    partition = connection.execute(
        delete(host_policies).where(host_policies.c.host == host).returning(host_policies.c.partition)
    ).scalar_one()
    revision = _command(connection, host, Partition(partition), actor, now_ms)
    before = msgspec.json.encode(stored.spec).decode()
    access.record(connection, actor, "host_policy.delete", host, before, None, now_ms)
    return command_id_of(revision)


def commands(connection: Connection, after: int) -> Sequence[HostPolicyCommand]:
    """Return up to AT_ONCE commands that are not published yet, with revisions above `after`, ordered by revision.

    Each makes the owner of a host apply its changed policy.
    """
    table = host_policy_commands
    query = select(table).where(table.c.revision > after).order_by(table.c.revision).limit(AT_ONCE)
    return [HostPolicyCommand(row.revision, row.host, row.partition) for row in connection.execute(query)]


def commanded(connection: Connection, revision: int) -> None:
    """Delete a published command from the table of commands to publish, so that it is not published again.

    `revision`: the number of the change to a host policy. Each change has its own revision and its own command.
    """
    connection.execute(delete(host_policy_commands).where(host_policy_commands.c.revision == revision))


def _command(connection: Connection, host: str, partition: Partition, actor: Actor, now_ms: int) -> int:
    """Request a command that makes the owner apply the changed policy of `host`. Return the revision of the change.

    The leader publishes the command later.
    """
    query = insert(host_policy_commands).values(host=host, partition=partition)
    revision = int(connection.execute(query.returning(host_policy_commands.c.revision)).scalar_one())
    args = msgspec.json.encode({"host": host}).decode()
    access.ask(
        connection,
        command_id_of(revision),
        CrawlId(0),
        CommandKind.HOST_POLICY,
        args,
        1,
        actor=actor,
        now_ms=now_ms,
    )
    return revision


def _lock(connection: Connection) -> None:
    """Lock the table for other writers until the transaction ends, so that two cannot create the same policy.

    SQLite has one writer and needs no lock.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE host_policies IN SHARE ROW EXCLUSIVE MODE"))


def _count(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(host_policies)).scalar_one())


def _find(connection: Connection, host: str) -> StoredHostPolicy | None:
    row = connection.execute(select(host_policies).where(host_policies.c.host == host)).first()
    return None if row is None else _stored(row)


def _stored(row: Row[Any]) -> StoredHostPolicy:
    return StoredHostPolicy(
        host=row.host,
        spec=msgspec.json.decode(row.spec, type=HostPolicySpec),
        limits=HostLimits(row.delay_ms, row.blocked_until_ms, row.slots),
        revision=row.revision,
        created_at_ms=row.created_at_ms,
        created_by=row.created_by,
        changed_at_ms=row.changed_at_ms,
        changed_by=row.changed_by,
    )
