"""The exclusions that operators declare, on SQL.

A transaction that changes an exclusion also writes the audit log, and a request for a command EXCLUDE. The leader
publishes the command later. The command applies the exclusion to the URLs that are queued already.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from shared.adapters.sql.catalog import access
from shared.adapters.sql.engine.access_schema import command_requests, exclusion_list, exclusions
from shared.domain.crawl.exclusions import MAX_EXCLUSIONS, MAX_EXCLUSIONS_BYTES
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId
from shared.domain.ops.exclusions import ExclusionList, ExclusionTerms, StoredExclusion
from shared.domain.reads.declared import Actor, Repeatable
from shared.ports.catalog import Exists, Full, Missing, Stale

_LOCK: Final = text(
    "INSERT INTO exclusion_list (id, revision) VALUES (1, 0)"
    " ON CONFLICT (id) DO UPDATE SET revision = exclusion_list.revision"
)
"""Locks the list of exclusions for other writers until the transaction ends. It does not change the list's revision."""

_NEXT: Final = text("UPDATE exclusion_list SET revision = revision + 1 WHERE id = 1 RETURNING revision")
"""Increases the revision of the list and returns it. Run `_LOCK` before, which creates the row of the list."""


def listing(
    connection: Connection, *, after: int, max_count: int, target: str | None = None
) -> Sequence[StoredExclusion]:
    """Return up to `max_count` exclusions after the id `after`, ordered by id, ended ones included.

    `target`: return only the exclusion of this target, given in its canonical form.
    """
    query = select(exclusions).where(exclusions.c.id > after).order_by(exclusions.c.id).limit(max_count)
    if target is not None:
        query = query.where(exclusions.c.target == target)
    return [_stored(row) for row in connection.execute(query)]


def one(connection: Connection, exclusion_id: int) -> StoredExclusion:
    """Return the exclusion with this id, ended or not. Raise Missing if there is none."""
    row = connection.execute(select(exclusions).where(exclusions.c.id == exclusion_id)).first()
    if row is None:
        raise Missing(f"there is no exclusion {exclusion_id}")
    return _stored(row)


def add(
    connection: Connection,
    target: str,
    terms: ExclusionTerms,
    partitions: int,
    *,
    actor: Actor,
    now_ms: int,
    repeatable: Repeatable | None = None,
) -> StoredExclusion:
    """Store an exclusion of the canonical `target`. Request the command that applies it in `partitions` partitions.

    Return the exclusion. A repeat of the request `repeatable` returns it as it was created. Raise Exists if another
    exclusion has the target, and Full if the exclusions would be too many, or their targets too long in total.
    """
    connection.execute(_LOCK)
    if repeatable is not None and (before := access.answered(connection, actor, repeatable, now_ms)) is not None:
        return msgspec.json.decode(before, type=StoredExclusion)
    here = exclusions.c.target == target
    if (known := connection.execute(select(exclusions.c.id).where(here)).scalar()) is not None:
        raise Exists(f"exclusion {known} has the target {target}: replace that one")
    count, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(func.length(exclusions.c.target)), 0))
    ).one()
    if count >= MAX_EXCLUSIONS or size + len(target) > MAX_EXCLUSIONS_BYTES:
        raise Full(
            f"there are {count} exclusions with {size} bytes of targets; at most {MAX_EXCLUSIONS} with "
            f"{MAX_EXCLUSIONS_BYTES} bytes are kept",
            "delete exclusions that have ended",
        )
    revision = int(connection.execute(_NEXT).scalar_one())
    values = {"target": target, "created_at_ms": now_ms, "created_by": str(actor), "revision": revision}
    exclusion_id = int(
        connection.execute(
            insert(exclusions).values(**values, **_values(terms)).returning(exclusions.c.id)
        ).scalar_one()
    )
    stored = StoredExclusion(exclusion_id, target, terms, revision, now_ms, str(actor))
    if repeatable is not None:
        access.answer(connection, actor, repeatable, msgspec.json.encode(stored).decode(), now_ms)
    access.record(connection, actor, "exclusion.create", target, None, _described(terms), now_ms)
    _ask(connection, stored, partitions, actor, now_ms)
    return stored


def put(
    connection: Connection,
    exclusion_id: int,
    terms: ExclusionTerms,
    partitions: int,
    *,
    expected: frozenset[str] | None,
    actor: Actor,
    now_ms: int,
) -> StoredExclusion:
    """Replace the terms of an exclusion (all but its target), and return it. Request the command that applies it.

    If the terms are equal, change nothing. Raise Missing if there is no such exclusion, and Stale
    if its HTTP ETag is not in `expected` (None: no condition).
    """
    connection.execute(_LOCK)
    stored = one(connection, exclusion_id)
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    if stored.terms == terms:
        return stored
    _drop_unsent(connection, stored)
    revision = int(connection.execute(_NEXT).scalar_one())
    here = exclusions.c.id == exclusion_id
    connection.execute(update(exclusions).where(here).values(revision=revision, **_values(terms)))
    before, after = _described(stored.terms), _described(terms)
    access.record(connection, actor, "exclusion.replace", stored.target, before, after, now_ms)
    made = StoredExclusion(exclusion_id, stored.target, terms, revision, stored.created_at_ms, stored.created_by)
    _ask(connection, made, partitions, actor, now_ms)
    return made


def remove(
    connection: Connection, exclusion_id: int, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
) -> None:
    """Delete an exclusion. Raise Missing if it does not exist.

    Raise Stale if its HTTP ETag is not in `expected` (None: no condition).
    """
    connection.execute(_LOCK)
    stored = one(connection, exclusion_id)
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)
    _drop_unsent(connection, stored)
    connection.execute(_NEXT)
    connection.execute(delete(exclusions).where(exclusions.c.id == exclusion_id))
    access.record(connection, actor, "exclusion.delete", stored.target, _described(stored.terms), None, now_ms)


def revision_of(connection: Connection) -> int:
    """Return the revision of the list of exclusions: 0 if it was never changed."""
    return int(connection.execute(select(exclusion_list.c.revision)).scalar() or 0)


def in_force(connection: Connection, now_ms: int) -> ExclusionList:
    """Return the exclusions for the leader, which publishes the result. The result has two lists:

    - `targets`: the targets of all exclusions that are in force, because they have not ended at `now_ms`.
    - `to_command`: the exclusions whose command EXCLUDE was not sent to the owners yet. An exclusion stays in this list
      until its command is sent, even if the exclusion has ended.
    """
    stored = [_stored(row) for row in connection.execute(select(exclusions).order_by(exclusions.c.id))]
    active = [each for each in stored if not each.ended(now_ms)]
    waiting = select(exclusions.c.id).where(exclusions.c.commanded < exclusions.c.revision)
    ids = set(connection.execute(waiting).scalars())
    return ExclusionList(
        revision_of(connection),
        [each.target for each in active],
        min((each.terms.until_ms for each in active if each.terms.until_ms is not None), default=None),
        [each for each in stored if each.exclusion_id in ids],
    )


def commanded(connection: Connection, exclusion_id: int, revision: int) -> None:
    """Record that the command EXCLUDE for this revision of an exclusion was sent to all its partitions."""
    here = (exclusions.c.id == exclusion_id) & (exclusions.c.commanded < revision)
    connection.execute(update(exclusions).where(here).values(commanded=revision))


def _drop_unsent(connection: Connection, stored: StoredExclusion) -> None:
    """Delete the request of the exclusion's command if the leader has not sent it to all its partitions.

    Call it before the exclusion is changed or deleted. The leader sends only the command of the latest revision.
    """
    here = (exclusions.c.id == stored.exclusion_id) & (exclusions.c.commanded < stored.revision)
    if connection.execute(select(exclusions.c.id).where(here)).first() is not None:
        connection.execute(delete(command_requests).where(command_requests.c.id == stored.command_id))


def _ask(connection: Connection, stored: StoredExclusion, partitions: int, actor: Actor, now_ms: int) -> None:
    args = msgspec.json.encode({"target": stored.target, "withdraw": stored.terms.withdraw}).decode()
    access.ask(
        connection,
        stored.command_id,
        CrawlId(0),
        CommandKind.EXCLUDE,
        args,
        partitions,
        actor=actor,
        now_ms=now_ms,
    )


def _values(terms: ExclusionTerms) -> dict[str, Any]:
    return {
        "reason": terms.reason,
        "requested_by": terms.requested_by,
        "until_ms": terms.until_ms,
        "withdraw": terms.withdraw,
    }


def _described(terms: ExclusionTerms) -> str:
    return msgspec.json.encode(_values(terms)).decode()


def _stored(row: Row[Any]) -> StoredExclusion:
    terms = ExclusionTerms(row.reason, row.requested_by, row.until_ms, bool(row.withdraw))
    return StoredExclusion(row.id, row.target, terms, row.revision, row.created_at_ms, row.created_by)
