"""Transactions on declared API keys, certificates that are identities, the last use of keys, and shared secrets."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, insert, select, text, update

from shared.adapters.sql.catalog.access import (
    audited,
    bounds_of,
    insert_key,
    key_of,
    lock_keys,
    record,
    require_other_admin,
    revoke_key,
)
from shared.adapters.sql.engine.access_schema import api_keys, cluster_secrets
from shared.adapters.sql.engine.access_schema import declared_keys as names
from shared.domain.ops.access import ApiKey, IdentityKind, Role
from shared.domain.reads.declared import Actor
from shared.ports.catalog import Exists, Missing, Stale

_OF_NAME = select(api_keys).join(names, names.c.key_id == api_keys.c.key_id)
_NEW_SECRET = text("INSERT INTO cluster_secrets (name, secret) VALUES (:name, :secret) ON CONFLICT (name) DO NOTHING")


def put_key(
    connection: Connection, wanted: ApiKey, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
) -> tuple[ApiKey, bool]:
    """Store the declared key `wanted` under its name (Catalog.put_key)."""
    lock_keys(connection)
    row = connection.execute(_OF_NAME.where(names.c.name == wanted.name)).first()
    if row is None:
        if expected is not None:
            raise Missing(f"there is no key {wanted.name!r}")
        _claim(connection, wanted)
        insert_key(connection, wanted)
        proof = {"name": wanted.name, "key_id": wanted.key_id, "certificate": _proof(wanted)}
        connection.execute(insert(names).values(proof))
        record(connection, actor, "key.create", wanted.key_id, None, audited(wanted), now_ms)
        return wanted, True
    stored = key_of(row)
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    changed = replace(
        stored,
        role=wanted.role,
        kind=wanted.kind,
        expires_at_ms=wanted.expires_at_ms,
        networks=wanted.networks,
        certificate=wanted.certificate,
        spec=wanted.spec,
    )
    if changed == stored:
        return stored, False
    changed = replace(changed, version=stored.version + 1)
    if stored.role is Role.ADMIN and (changed.role is not Role.ADMIN or changed.expires_at_ms is not None):
        require_other_admin(connection, stored, now_ms)
    _claim(connection, changed)
    connection.execute(
        update(api_keys).where(api_keys.c.key_id == stored.key_id).values(role=str(changed.role), **bounds_of(changed))
    )
    connection.execute(update(names).where(names.c.key_id == stored.key_id).values(certificate=_proof(changed)))
    record(connection, actor, "key.update", stored.key_id, audited(stored), audited(changed), now_ms)
    return changed, False


def declared_key(connection: Connection, name: str) -> ApiKey:
    """Return the declared key of that name (Catalog.declared_key)."""
    row = connection.execute(_OF_NAME.where(names.c.name == name)).first()
    if row is None:
        raise Missing(f"there is no key {name!r}")
    return key_of(row)


def listing(connection: Connection, *, after: str, max_count: int) -> Sequence[ApiKey]:
    """Return declared keys after the name `after` (Catalog.declared_keys)."""
    query = _OF_NAME.where(names.c.name > after).order_by(names.c.name).limit(max_count)
    return [key_of(row) for row in connection.execute(query)]


def delete_declared_key(
    connection: Connection, name: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
) -> ApiKey:
    """Revoke the declared key of that name (Catalog.delete_declared_key)."""
    lock_keys(connection)
    key_id = declared_key(connection, name).key_id
    return revoke_key(connection, key_id, actor=actor, now_ms=now_ms, expected=expected)


def key_of_certificate(connection: Connection, certificate_names: frozenset[str]) -> ApiKey | None:
    """Return the identity that one of these names proves (Catalog.key_of_certificate)."""
    query = _OF_NAME.where(names.c.certificate.in_(sorted(certificate_names)), api_keys.c.revoked_at_ms.is_(None))
    found = [key_of(row) for row in connection.execute(query)]
    return min(found, key=lambda each: (not str(each.certificate).startswith("sha256:"), each.name), default=None)


def note_uses(connection: Connection, uses: Mapping[str, int]) -> None:
    """Record the last use of keys (Catalog.note_uses)."""
    earlier = api_keys.c.last_used_at_ms.is_(None) | (api_keys.c.last_used_at_ms < bindparam("used"))
    statement = update(api_keys).where(api_keys.c.key_id == bindparam("used_id"), earlier)
    rows = [{"used_id": key_id, "used": at_ms} for key_id, at_ms in sorted(uses.items())]
    if rows:
        connection.execute(statement.values(last_used_at_ms=bindparam("used")), rows)


def secret(connection: Connection, name: str) -> bytes:
    """Return the shared secret of that name (Catalog.secret)."""
    query = select(cluster_secrets.c.secret).where(cluster_secrets.c.name == name)
    kept = connection.execute(query).scalar()
    if kept is None:  # another master may make it at the same moment: the first one stays
        connection.execute(_NEW_SECRET, {"name": name, "secret": secrets.token_bytes(32)})
        kept = connection.execute(query).scalar_one()
    return bytes(kept)


def _proof(kept: ApiKey) -> str | None:
    """Return the certificate that alone proves this identity, if any."""
    return kept.certificate if kept.kind is IdentityKind.CERTIFICATE else None


def _claim(connection: Connection, wanted: ApiKey) -> None:
    """Raise Exists if another identity is proved by the same certificate."""
    proof = _proof(wanted)
    if proof is None:
        return
    other = select(names.c.name).where(names.c.certificate == proof, names.c.name != wanted.name)
    holder = connection.execute(other).scalar()
    if holder is not None:
        raise Exists(f"the certificate {proof} is the identity of {holder!r}")
