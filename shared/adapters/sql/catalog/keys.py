"""Transactions on API keys, client certificates that identify a client, the last use of keys, and shared secrets.

Of all keys with the same name, at most one is not revoked. Each writer locks the table and checks this first.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, bindparam, insert, select, text, tuple_, update

from shared.adapters.sql.catalog.access import answer, answered, record
from shared.adapters.sql.engine.access_schema import api_keys, cluster_secrets
from shared.adapters.sql.engine.point_query import PointQuery
from shared.domain.ops.access import ApiKey, IdentityKind, Role
from shared.domain.reads.declared import Actor, Repeatable
from shared.ports.catalog import Exists, LastAdmin, Missing, NoSecret, Stale

BY_ID: Final = PointQuery(select(api_keys).where(api_keys.c.key_id == bindparam("wanted_id")))
"""The query that finds a key by its id. Every request with a key runs it, even with a wrong key."""

_LIVE = api_keys.c.revoked_at_ms.is_(None)
_NEW_SECRET = text("INSERT INTO cluster_secrets (name, secret) VALUES (:name, :secret) ON CONFLICT (name) DO NOTHING")


def add_key(connection: Connection, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
    """Store a new API key and write it to the audit log.

    Raise Exists if its name or its certificate belongs to another key. Raise Exists also if the request `repeatable`
    was handled before: its answer had the secret, which is shown only once.
    """
    _lock(connection)
    if repeatable is not None:
        if (before := answered(connection, actor, repeatable, key.created_at_ms)) is not None:
            raise Exists(f"this request made the key {before!r} before, and its secret is not shown again")
        answer(connection, actor, repeatable, key.name, key.created_at_ms)
    if _live(connection, key.name) is not None:
        raise Exists(f"there is a key {key.name!r} already")
    _create(connection, key, actor)


def add_first_key(connection: Connection, key: ApiKey) -> bool:
    """Store the API key if the database has no key at all.

    Return True if the database now has this key, because this call or an earlier one stored it.
    """
    _lock(connection)  # masters may start together
    if connection.execute(select(api_keys.c.key_id).limit(1)).first() is not None:
        kept = select(api_keys.c.key_id).where(api_keys.c.key_id == key.key_id)
        return connection.execute(kept).first() is not None
    _create(connection, key, Actor("", "first start", ""))
    return True


def put_key(
    connection: Connection,
    wanted: ApiKey,
    *,
    expected: frozenset[str] | None,
    actor: Actor,
    now_ms: int,
    new: bool = False,
) -> tuple[ApiKey, bool]:
    """Create the key `wanted`. If a key that is not revoked has that name, replace the declared values of that key.

    Return the key, and True if it is new. If `expected` is not None, a key with one of these HTTP ETags must exist. The
    call then creates no key.

    Errors:

    - Missing: `expected` is given, but no key has the name.
    - Stale: the stored key has none of the ETags in `expected`, or the caller wants a new key (`new`).
    - Exists: another key has the certificate.
    - NoSecret: the stored key is a client certificate without a secret, but `wanted` is a key with a secret. Only a new
      key can get a secret.
    - LastAdmin: an admin key would lose its role or expire sooner, and no other admin key is valid for as long.
    """
    _lock(connection)
    stored = _live(connection, wanted.name)
    if stored is None:
        if expected is not None:
            raise Missing(f"there is no key {wanted.name!r}")
        _create(connection, wanted, actor)
        return wanted, True
    _check_seen(stored, frozenset() if new else expected)
    if not stored.may_become(wanted.kind):
        raise NoSecret(f"{wanted.name!r} is a client certificate")
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
    if stored.role is Role.ADMIN and (changed.role is not Role.ADMIN or _ends_before(changed, stored)):
        _require_other_admin(connection, stored, now_ms)
    _require_unused_certificate(connection, changed)
    connection.execute(update(api_keys).where(api_keys.c.key_id == stored.key_id).values(_declared(changed)))
    record(connection, actor, "key.replace", stored.name, _audited(stored), _audited(changed), now_ms)
    return changed, False


def revoke_key(
    connection: Connection, name: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
) -> ApiKey:
    """Revoke the API key `name` and return it.

    Raise Missing if there is none. Raise LastAdmin if it is an admin key, and no other admin key is valid for at least
    as long. Raise Stale if its HTTP ETag is not in `expected` (None: no condition).
    """
    _lock(connection)
    stored = key_named(connection, name)
    _check_seen(stored, expected)
    if stored.role is Role.ADMIN:
        _require_other_admin(connection, stored, now_ms)
    connection.execute(update(api_keys).where(api_keys.c.key_id == stored.key_id).values(revoked_at_ms=now_ms))
    record(connection, actor, "key.revoke", name, _audited(stored), None, now_ms)
    return replace(stored, revoked_at_ms=now_ms)


def with_id(rows: Sequence[Any]) -> ApiKey | None:
    """Return the API key from `rows`, the result of the query BY_ID, revoked or not. None if there is no row."""
    return _key_of(rows[0]) if rows else None


def key_named(connection: Connection, name: str) -> ApiKey:
    """Return the API key of this name that is not revoked. Raise Missing if there is none."""
    stored = _live(connection, name)
    if stored is None:
        raise Missing(f"there is no key {name!r}")
    return stored


def keys(connection: Connection, *, after: tuple[str, str], max_count: int, revoked: bool = False) -> Sequence[ApiKey]:
    """Return at most `max_count` API keys after `after`, a pair of name and id, ordered by name and id.

    `revoked`: include revoked keys.
    """
    place = tuple_(api_keys.c.name, api_keys.c.key_id)
    query = select(api_keys).where(place > after).order_by(api_keys.c.name, api_keys.c.key_id).limit(max_count)
    return [_key_of(row) for row in connection.execute(query if revoked else query.where(_LIVE))]


def key_of_certificate(connection: Connection, certificate_names: frozenset[str]) -> ApiKey | None:
    """Return the identity that is declared for a client certificate with one of these names. None if there is none.

    Revoked identities are ignored. If several identities match, one that is declared by the fingerprint of the
    certificate (`sha256:...`) is preferred.
    """
    proved = api_keys.c.certificate.in_(sorted(certificate_names)) & (api_keys.c.kind == IdentityKind.CERTIFICATE)
    found = [_key_of(row) for row in connection.execute(select(api_keys).where(proved, _LIVE))]
    return min(found, key=lambda each: (not str(each.certificate).startswith("sha256:"), each.name), default=None)


def note_uses(connection: Connection, uses: Mapping[str, int]) -> None:
    """Record the last use of keys: `uses` has the time (Unix ms) by key id. Ignore times before the stored time."""
    earlier = api_keys.c.last_used_at_ms.is_(None) | (api_keys.c.last_used_at_ms < bindparam("used"))
    statement = update(api_keys).where(api_keys.c.key_id == bindparam("used_id"), earlier)
    rows = [{"used_id": key_id, "used": at_ms} for key_id, at_ms in sorted(uses.items())]
    if rows:
        connection.execute(statement.values(last_used_at_ms=bindparam("used")), rows)


def secret(connection: Connection, name: str) -> bytes:
    """Return the shared secret of this name, 32 random bytes. The first call creates it."""
    query = select(cluster_secrets.c.secret).where(cluster_secrets.c.name == name)
    kept = connection.execute(query).scalar()
    if kept is None:  # another master may make it at the same moment: the first one stays
        connection.execute(_NEW_SECRET, {"name": name, "secret": secrets.token_bytes(32)})
        kept = connection.execute(query).scalar_one()
    return bytes(kept)


def _lock(connection: Connection) -> None:
    """Lock the table of keys for other writers until the transaction ends. SQLite has one writer and needs no lock."""
    # With locks on single rows, two admins could revoke each other's keys, or give one name to two keys.
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE api_keys IN SHARE ROW EXCLUSIVE MODE"))


def _live(connection: Connection, name: str) -> ApiKey | None:
    row = connection.execute(select(api_keys).where(api_keys.c.name == name, _LIVE)).first()
    return None if row is None else _key_of(row)


def _check_seen(stored: ApiKey, expected: frozenset[str] | None) -> None:
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)


def _ends_before(changed: ApiKey, stored: ApiKey) -> bool:
    """Return True if the key `changed` expires before the key `stored`, which may have no expiry."""
    if changed.expires_at_ms is None:
        return False
    return stored.expires_at_ms is None or changed.expires_at_ms < stored.expires_at_ms


def _require_other_admin(connection: Connection, stored: ApiKey, now_ms: int) -> None:
    """Raise LastAdmin if no other admin key is valid for at least as long as the admin key `stored`.

    Revoked keys do not count. Do not raise if `stored` has expired already.
    """
    until_ms = stored.expires_at_ms
    if until_ms is not None and until_ms <= now_ms:
        return
    as_long: ColumnElement[bool] = api_keys.c.expires_at_ms.is_(None)
    if until_ms is not None:
        as_long |= api_keys.c.expires_at_ms >= until_ms
    other = (api_keys.c.role == Role.ADMIN) & (api_keys.c.key_id != stored.key_id) & as_long
    if connection.execute(select(api_keys.c.key_id).where(other, _LIVE).limit(1)).first() is not None:
        return
    if until_ms is None:
        raise LastAdmin(f"{stored.name!r} is the last key with the role admin that has no end")
    raise LastAdmin(f"no other key with the role admin is valid as long as {stored.name!r}")


def _require_unused_certificate(connection: Connection, wanted: ApiKey) -> None:
    """Raise Exists if the client certificate of `wanted` already identifies another key. Write nothing.

    A client certificate may identify only one key. Revoked keys do not count. Do not raise if `wanted` has no client
    certificate. The caller stores `wanted` after this check.
    """
    if wanted.kind is not IdentityKind.CERTIFICATE:
        return
    proved = (api_keys.c.certificate == wanted.certificate) & (api_keys.c.kind == IdentityKind.CERTIFICATE)
    holder = connection.execute(select(api_keys.c.name).where(proved, _LIVE, api_keys.c.name != wanted.name)).scalar()
    if holder is not None:
        raise Exists(f"the certificate {wanted.certificate} is the identity of {holder!r}")


def _create(connection: Connection, wanted: ApiKey, actor: Actor) -> None:
    """Store a new key and write it to the audit log. Raise Exists if another key has its certificate."""
    _require_unused_certificate(connection, wanted)
    row = {
        "key_id": wanted.key_id,
        "name": wanted.name,
        "digest": wanted.digest,
        "created_at_ms": wanted.created_at_ms,
        "created_by": wanted.created_by,
    }
    connection.execute(insert(api_keys).values(row | _declared(wanted)))
    record(connection, actor, "key.create", wanted.name, None, _audited(wanted), wanted.created_at_ms)


def _audited(kept: ApiKey) -> str:
    """Return a key as JSON for the audit log: id and role, and kind, expiry, networks and certificate if set."""
    bounds = {
        "kind": None if kept.kind is IdentityKind.KEY else str(kept.kind),
        "expires_at_ms": kept.expires_at_ms,
        "networks": list(kept.networks),
        "certificate": kept.certificate,
    }
    given = {name: value for name, value in bounds.items() if value}
    return json.dumps({"id": kept.key_id, "role": str(kept.role), **given})


def _declared(kept: ApiKey) -> dict[str, Any]:
    """Return the values of the columns of `api_keys` that a declaration sets."""
    return {
        "role": str(kept.role),
        "kind": str(kept.kind),
        "expires_at_ms": kept.expires_at_ms,
        "networks": ",".join(kept.networks) or None,
        "certificate": kept.certificate,
        "spec": kept.spec,
        "version": kept.version,
    }


def _key_of(row: Any) -> ApiKey:
    """Return the key that a row of `api_keys`, or of the query BY_ID, stores."""
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
