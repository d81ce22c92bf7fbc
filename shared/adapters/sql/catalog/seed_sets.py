"""Seed sets on SQL.

A transaction that changes a seed set also writes the audit log, and stores the change for the leader. The leader
publishes each change later: the added URLs as seeds, and a command SEED_SET that withdraws the removed URLs.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, insert, literal_column, select, update

from shared.adapters.sql.catalog import access
from shared.adapters.sql.engine.access_schema import seed_set_commands, seed_set_urls, seed_sets
from shared.adapters.sql.engine.schema import crawls
from shared.adapters.sql.frontier.crawl_gc import drop_seed_set_changes
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.seed_sets import (
    MAX_SEED_SETS,
    SeedSetChange,
    SeedSetCommand,
    SeedSetSpec,
    SetSeed,
    StoredSeedSet,
    change_between,
    command_id_of,
    fingerprints_of,
)
from shared.domain.reads.declared import Actor, PutOutcome
from shared.domain.web.url import partition_of
from shared.ports.catalog import Full, Missing, Stale

AT_ONCE: Final = 4
"""How many changes `commands` returns at most. Each of them may have many seeds."""

_SHOWN: Final = 20
_NAMES_A_STATEMENT: Final = 500
_SEEDS: Final = msgspec.json.Decoder(tuple[SetSeed, ...])
_URLS: Final = msgspec.json.Decoder(tuple[str, ...])
_NOT_DELETED: Final = crawls.c.state != literal_column("'deleted'")
_LEFT: Final = delete(seed_set_urls).where(
    seed_set_urls.c.set_id == bindparam("of_set"),
    seed_set_urls.c.fingerprint.in_(bindparam("fingerprints", expanding=True)),
)
_COLUMNS: Final = [column for column in seed_sets.c if column.name not in ("document", "canonical")]


def listing(connection: Connection, crawl: str, *, after: str, max_count: int) -> Sequence[StoredSeedSet]:
    """Return up to `max_count` seed sets of a crawl after the name `after`, ordered by name, without their seeds.

    Raise Missing if there is no such crawl.
    """
    here = (seed_sets.c.crawl_id == _crawl(connection, crawl)) & (seed_sets.c.name > after)
    rows = connection.execute(select(*_COLUMNS).where(here).order_by(seed_sets.c.name).limit(max_count))
    return [_stored(row) for row in rows]


def one(connection: Connection, crawl: str, name: str) -> StoredSeedSet:
    """Return the seed set `name` of a crawl. Raise Missing if there is no such crawl or set."""
    return _stored(_found(_find(connection, _crawl(connection, crawl), name), crawl, name))


def put(
    connection: Connection,
    crawl: str,
    name: str,
    spec: SeedSetSpec,
    partitions: int,
    *,
    expected: frozenset[str] | None,
    new: bool,
    actor: Actor,
    now_ms: int,
) -> tuple[StoredSeedSet, PutOutcome]:
    """Create or replace a seed set, and store the change for the leader to publish. Return the set, and what was done.

    - `partitions`: the number of partitions of the cluster.
    - `expected`: tags (HTTP ETags). Raise Stale if the set has none of them, Missing if it does not exist. None: no
      condition.
    - `new`: raise Stale if the set exists already.

    Write nothing if the document is unchanged. Raise Full at MAX_SEED_SETS.
    """
    crawl_id = _crawl(connection, crawl, lock=True)
    row = _find(connection, crawl_id, name)
    if expected is not None:
        _expect(_stored(_found(row, crawl, name)), expected)
    if row is not None and new:
        raise Stale(_stored(row).tag)
    if row is not None and json.loads(row.document) == json.loads(spec.document):
        return _stored(row), PutOutcome.UNCHANGED
    before: tuple[SetSeed, ...] = () if row is None else _SEEDS.decode(row.canonical)
    change = change_between(before, spec.seeds)
    if row is None and (count := _count(connection, crawl_id)) >= MAX_SEED_SETS:
        raise Full(
            f"the crawl has {count} seed sets, and at most {MAX_SEED_SETS} are kept",
            "delete seed sets of the crawl that are no longer needed",
        )
    revision = _command(connection, crawl_id, name, change, partitions, actor, now_ms)
    values: dict[str, Any] = {
        "document": spec.document,
        "canonical": msgspec.json.encode(spec.seeds).decode(),
        "seeds": spec.count,
        "revision": revision,
        "changed_at_ms": now_ms,
        "changed_by": str(actor),
    }
    if row is None:
        made = values | {"crawl_id": crawl_id, "name": name, "created_at_ms": now_ms, "created_by": str(actor)}
        set_id = connection.execute(insert(seed_sets).values(**made).returning(seed_sets.c.set_id)).scalar_one()
    else:
        set_id = row.set_id
        connection.execute(update(seed_sets).where(seed_sets.c.set_id == set_id).values(**values))
    _replace_urls(connection, set_id, before, spec.seeds, change)
    action, outcome = "seed_set.replace", PutOutcome.REPLACED
    if row is None:
        action, outcome = "seed_set.create", PutOutcome.CREATED
    earlier = None if row is None else _shown(row.seeds, before)
    access.record(connection, actor, action, f"{crawl}/{name}", earlier, _shown(spec.count, spec.seeds), now_ms)
    return one(connection, crawl, name), outcome


def remove(
    connection: Connection,
    crawl: str,
    name: str,
    partitions: int,
    *,
    expected: frozenset[str] | None,
    actor: Actor,
    now_ms: int,
) -> str:
    """Delete a seed set. Return the id of the command that withdraws its seeds.

    `partitions`: the number of partitions of the cluster. Raise Missing if there is no such crawl or set, and Stale if
    the set's HTTP ETag is not in `expected` (None: no condition).
    """
    crawl_id = _crawl(connection, crawl, lock=True)
    row = _found(_find(connection, crawl_id, name), crawl, name)
    if expected is not None:
        _expect(_stored(row), expected)
    before = _SEEDS.decode(row.canonical)
    connection.execute(delete(seed_set_urls).where(seed_set_urls.c.set_id == row.set_id))
    connection.execute(delete(seed_sets).where(seed_sets.c.set_id == row.set_id))
    revision = _command(connection, crawl_id, name, change_between(before, ()), partitions, actor, now_ms)
    access.record(connection, actor, "seed_set.delete", f"{crawl}/{name}", _shown(row.seeds, before), None, now_ms)
    return command_id_of(revision)


def move(connection: Connection, before: CrawlId, after: CrawlId, partitions: int, actor: Actor, now_ms: int) -> None:
    """Move the seed sets of the crawl `before` to the crawl `after`, which replaces it in a reset.

    For each set, store a change that adds all its seeds to the new crawl. The leader publishes it. Delete the changes
    of the old crawl, with the requests of their commands.
    """
    drop_seed_set_changes(connection, before)
    rows = connection.execute(
        select(seed_sets.c.set_id, seed_sets.c.name, seed_sets.c.canonical)
        .where(seed_sets.c.crawl_id == before)
        .order_by(seed_sets.c.name)
    ).all()
    for row in rows:
        change = SeedSetChange(_SEEDS.decode(row.canonical), ())
        revision = _command(connection, after, row.name, change, partitions, actor, now_ms)
        moved = update(seed_sets).where(seed_sets.c.set_id == row.set_id)
        connection.execute(moved.values(crawl_id=after, revision=revision))


def commands(connection: Connection, after: int) -> Sequence[SeedSetCommand]:
    """Return up to AT_ONCE changes of seed sets that are not published yet, with revisions above `after`, in order.

    Changes of deleted crawls are left out.
    """
    table = seed_set_commands
    query = (
        select(table, crawls.c.revision.label("spec"))
        .select_from(table)
        .join(crawls, (crawls.c.crawl_id == table.c.crawl_id) & _NOT_DELETED)
        .where(table.c.revision > after)
        .order_by(table.c.revision)
        .limit(AT_ONCE)
    )
    return [
        SeedSetCommand(
            row.revision,
            CrawlId(row.crawl_id),
            Revision(row.spec),
            row.name,
            _SEEDS.decode(row.added),
            _URLS.decode(row.removed),
        )
        for row in connection.execute(query)
    ]


def commanded(connection: Connection, revision: int) -> None:
    """Record that the change of this revision was published: delete its row."""
    connection.execute(delete(seed_set_commands).where(seed_set_commands.c.revision == revision))


def _command(
    connection: Connection,
    crawl_id: CrawlId,
    name: str,
    change: SeedSetChange,
    partitions: int,
    actor: Actor,
    now_ms: int,
) -> int:
    """Store a change of a seed set, which the leader publishes later. Return the revision of the change.

    Also record that the actor requested a command SEED_SET. The id of the command is made from the revision.
    """
    added, removed = (msgspec.json.encode(part).decode() for part in (change.added, change.removed))
    stored = insert(seed_set_commands).values(crawl_id=crawl_id, name=name, added=added, removed=removed)
    revision = int(connection.execute(stored.returning(seed_set_commands.c.revision)).scalar_one())
    concerned = {partition_of(at.host, partitions) for at in change.locations()}
    args = {
        "set": name,
        "added": len(change.added),
        "removed": len(change.removed),
        "first_removed": change.removed[:_SHOWN],
    }
    access.ask(
        connection,
        command_id_of(revision),
        crawl_id,
        CommandKind.SEED_SET,
        msgspec.json.encode(args).decode(),
        len(concerned),
        actor=actor,
        now_ms=now_ms,
    )
    return revision


def _replace_urls(
    connection: Connection,
    set_id: int,
    before: Sequence[SetSeed],
    after: Sequence[SetSeed],
    change: SeedSetChange,
) -> None:
    """Change the rows of a seed set in `seed_set_urls`: delete those of removed seeds, insert those of added seeds.

    `before` and `after` are the seeds of the set. `change` is the difference between the two.
    """
    left = fingerprints_of(change.removed)
    for start in range(0, len(left), _NAMES_A_STATEMENT):
        some = left[start : start + _NAMES_A_STATEMENT]
        connection.execute(_LEFT, {"of_set": set_id, "fingerprints": some})
    known = {seed.url for seed in before}
    rows = [
        {"set_id": set_id, "fingerprint": fingerprint}
        for fingerprint in fingerprints_of(seed.url for seed in after if seed.url not in known)
    ]
    if rows:
        connection.execute(insert(seed_set_urls), rows)


def _shown(count: int, seeds: Sequence[SetSeed]) -> str:
    """Return a seed set as JSON for the audit log: its number of seeds, and its first _SHOWN URLs."""
    return msgspec.json.encode({"seeds": count, "first": [seed.url for seed in seeds[:_SHOWN]]}).decode()


def _crawl(connection: Connection, name: str, *, lock: bool = False) -> CrawlId:
    """Return the id of the crawl of this name. Raise Missing if there is none.

    With `lock`, no other transaction changes the crawl's seed sets, or deletes or resets the crawl, until this
    transaction ends.
    """
    if lock:
        access.lock_crawls(connection, [name])
    query = select(crawls.c.crawl_id).where(crawls.c.name == name, _NOT_DELETED)
    crawl_id = connection.execute(query).scalar()
    if crawl_id is None:
        raise Missing(f"there is no crawl {name!r}")
    return CrawlId(crawl_id)


def _count(connection: Connection, crawl_id: CrawlId) -> int:
    query = select(func.count()).select_from(seed_sets).where(seed_sets.c.crawl_id == crawl_id)
    return int(connection.execute(query).scalar_one())


def _find(connection: Connection, crawl_id: CrawlId, name: str) -> Row[Any] | None:
    here = (seed_sets.c.crawl_id == crawl_id) & (seed_sets.c.name == name)
    return connection.execute(select(seed_sets).where(here)).first()


def _found(row: Row[Any] | None, crawl: str, name: str) -> Row[Any]:
    if row is None:
        raise Missing(f"the crawl {crawl!r} has no seed set {name!r}")
    return row


def _expect(stored: StoredSeedSet, expected: frozenset[str]) -> None:
    if stored.tag not in expected:
        raise Stale(stored.tag)


def _stored(row: Row[Any]) -> StoredSeedSet:
    return StoredSeedSet(
        name=row.name,
        document=getattr(row, "document", ""),
        count=row.seeds,
        revision=row.revision,
        created_at_ms=row.created_at_ms,
        created_by=row.created_by,
        changed_at_ms=row.changed_at_ms,
        changed_by=row.changed_by,
    )
