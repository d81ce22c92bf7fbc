"""Transactions on API keys, the audit log, answers to repeated requests, and commands that operators requested."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from shared.adapters.sql.engine.access_schema import (
    api_keys,
    audit_log,
    command_requests,
    declared_keys,
    idempotency,
)
from shared.adapters.sql.engine.schema import commands
from shared.domain.ids import CrawlId
from shared.domain.ops.access import ApiKey, IdentityKind, Role
from shared.domain.reads.declared import Actor, CommandProgress, Repeatable
from shared.ports.catalog import Exists, LastAdmin, Missing, ReusedKey, Stale

REMEMBERED_MS: Final = 24 * 3600 * 1000
"""How long an answer is stored, in ms, so that a repeat of its request gets the same answer."""


def answered(connection: Connection, actor: Actor, request: Repeatable) -> str | None:
    """Return the stored answer if this request was answered before, else None.

    Raise ReusedKey if its idempotency key was used for another request.
    """
    table = idempotency
    row = connection.execute(select(table).where(table.c.actor == actor.key_id, table.c.key == request.key)).first()
    if row is None:
        return None
    if bytes(row.digest) != request.digest:
        raise ReusedKey("this idempotency key was used for another request")
    return str(row.answer)


def answer(connection: Connection, actor: Actor, request: Repeatable, reply: str, now_ms: int) -> None:
    """Store `reply` for repeats of a request, in the transaction that applies it. Delete answers that are too old."""
    connection.execute(delete(idempotency).where(idempotency.c.at_ms < now_ms - REMEMBERED_MS))
    connection.execute(
        insert(idempotency).values(
            actor=actor.key_id, key=request.key, digest=request.digest, answer=reply, at_ms=now_ms
        )
    )


def record(
    connection: Connection, actor: Actor, action: str, target: str, before: str | None, after: str | None, now_ms: int
) -> None:
    """Write a line of the audit log: who (`actor`) did what (`action`) to which object (`target`)."""
    connection.execute(
        insert(audit_log).values(
            at_ms=now_ms,
            actor=str(actor),
            request=actor.request_id,
            action=action,
            target=target,
            before=before,
            after=after,
        )
    )


def add_key(connection: Connection, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
    """Store an API key and write it to the audit log. Raise Exists if this repeats a create (Catalog.add_key)."""
    if repeatable is not None:
        if (before := answered(connection, actor, repeatable)) is not None:
            raise Exists(f"this request made key {before} before")
        answer(connection, actor, repeatable, key.key_id, key.created_at_ms)
    insert_key(connection, key)
    record(connection, actor, "key.create", key.key_id, None, audited(key), key.created_at_ms)


def add_first_key(connection: Connection, key: ApiKey) -> bool:
    """Store the API key if there is none at all. Return True if it is stored, now or before (Catalog.add_first_key)."""
    lock_keys(connection)  # masters may start together
    if connection.execute(select(api_keys.c.key_id).limit(1)).first() is not None:
        kept = select(api_keys.c.key_id).where(api_keys.c.key_id == key.key_id)
        return connection.execute(kept).first() is not None
    insert_key(connection, key)
    record(connection, Actor("", "first start", ""), "key.create", key.key_id, None, str(key.role), key.created_at_ms)
    return True


def key(connection: Connection, key_id: str) -> ApiKey | None:
    """Return the API key with this id, revoked or not, or None if there is none (Catalog.key)."""
    row = connection.execute(select(api_keys).where(api_keys.c.key_id == key_id)).first()
    return None if row is None else key_of(row)


def keys(connection: Connection, *, after: str, max_count: int, revoked: bool = False) -> Sequence[ApiKey]:
    """Return at most `max_count` API keys after the id `after`, ordered by id.

    `revoked` adds revoked keys (Catalog.keys).
    """
    query = select(api_keys).where(api_keys.c.key_id > after).order_by(api_keys.c.key_id).limit(max_count)
    if not revoked:
        query = query.where(api_keys.c.revoked_at_ms.is_(None))
    return [key_of(row) for row in connection.execute(query)]


def revoke_key(
    connection: Connection, key_id: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
) -> ApiKey:
    """Revoke the API key and return it. Raise Missing, Stale or LastAdmin. A repeat is harmless.

    (Catalog.revoke_key)
    """
    lock_keys(connection)
    row = connection.execute(select(api_keys).where(api_keys.c.key_id == key_id)).first()
    if row is None:
        raise Missing(f"there is no key {key_id!r}")
    stored = key_of(row)
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    if stored.revoked_at_ms is not None:
        return stored
    if stored.role is Role.ADMIN:
        require_other_admin(connection, stored, now_ms)
    connection.execute(update(api_keys).where(api_keys.c.key_id == key_id).values(revoked_at_ms=now_ms))
    connection.execute(delete(declared_keys).where(declared_keys.c.key_id == key_id))
    record(connection, actor, "key.revoke", key_id, None, None, now_ms)
    return replace(stored, revoked_at_ms=now_ms)


def lock_keys(connection: Connection) -> None:
    """Let writers of keys take turns until the transaction ends. SQLite has one writer anyway.

    With locks on their rows alone, two admins could revoke each other's keys.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE api_keys IN SHARE ROW EXCLUSIVE MODE"))


def require_other_admin(connection: Connection, stored: ApiKey, now_ms: int) -> None:
    """Raise LastAdmin unless another identity has the role admin, is not revoked, and has no end.

    A key that has ended already may go in any case.
    """
    if stored.expires_at_ms is not None and stored.expires_at_ms <= now_ms:
        return
    valid = (api_keys.c.role == Role.ADMIN) & api_keys.c.revoked_at_ms.is_(None) & (api_keys.c.key_id != stored.key_id)
    lasting = valid & api_keys.c.expires_at_ms.is_(None)
    if connection.execute(select(api_keys.c.key_id).where(lasting).limit(1)).first() is None:
        raise LastAdmin(f"{stored.name!r} is the last key with the role admin that has no end")


def ask(
    connection: Connection,
    command_id: str,
    crawl_id: CrawlId,
    kind: str,
    args: str,
    partitions: int,
    *,
    actor: Actor,
    now_ms: int,
) -> None:
    """Record a requested command and its line of the audit log (Catalog.ask). A repeat changes nothing."""
    table = command_requests
    if connection.execute(select(table.c.id).where(table.c.id == command_id)).first() is not None:
        return
    connection.execute(
        insert(table).values(
            id=command_id,
            crawl_id=crawl_id,
            kind=kind,
            args=args,
            partitions=partitions,
            at_ms=now_ms,
            actor=str(actor),
        )
    )
    record(connection, actor, f"command.{kind}", str(crawl_id), None, args, now_ms)


def command(connection: Connection, command_id: str) -> CommandProgress | None:
    """Return the progress of a command: in how many partitions it is applied. Return None if it is unknown.

    (Catalog.command)
    """
    row = connection.execute(select(command_requests).where(command_requests.c.id == command_id)).first()
    if row is None:
        return None
    applied = connection.execute(
        select(func.count()).select_from(commands).where(commands.c.id == command_id)
    ).scalar_one()
    return CommandProgress(row.id, row.kind, CrawlId(row.crawl_id), applied, row.partitions, row.at_ms)


def audited(kept: ApiKey) -> str:
    """Return what the audit log shows of a key: role and name, and as JSON what bounds it."""
    bounds = {
        "kind": None if kept.kind is IdentityKind.KEY else str(kept.kind),
        "expires_at_ms": kept.expires_at_ms,
        "networks": list(kept.networks),
        "certificate": kept.certificate,
    }
    given = {name: value for name, value in bounds.items() if value}
    if not given:
        return f"{kept.role} {kept.name}"
    return json.dumps({"role": str(kept.role), "name": kept.name, **given})


def insert_key(connection: Connection, kept: ApiKey) -> None:
    """Store a new key."""
    connection.execute(
        insert(api_keys).values(
            key_id=kept.key_id,
            name=kept.name,
            role=kept.role,
            digest=kept.digest,
            created_at_ms=kept.created_at_ms,
            created_by=kept.created_by,
            **bounds_of(kept),
        )
    )


def bounds_of(kept: ApiKey) -> dict[str, Any]:
    """Return the columns of what bounds a key, and of its declaration."""
    return {
        "kind": str(kept.kind),
        "expires_at_ms": kept.expires_at_ms,
        "networks": ",".join(kept.networks) or None,
        "certificate": kept.certificate,
        "spec": kept.spec,
        "version": kept.version,
    }


def key_of(row: Row[Any]) -> ApiKey:
    """Return the key of a row of `api_keys`."""
    return ApiKey(
        key_id=row.key_id,
        name=row.name,
        role=Role(row.role),
        digest=bytes(row.digest),
        created_at_ms=row.created_at_ms,
        created_by=row.created_by,
        revoked_at_ms=row.revoked_at_ms,
        kind=IdentityKind(row.kind),
        expires_at_ms=row.expires_at_ms,
        networks=tuple(row.networks.split(",")) if row.networks else (),
        certificate=row.certificate,
        spec=row.spec,
        version=row.version,
        last_used_at_ms=row.last_used_at_ms,
    )
