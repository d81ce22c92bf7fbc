"""Transactions on crawls as operators declare them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Connection,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from shared.adapters.sql import access
from shared.adapters.sql.glance import Glance
from shared.adapters.sql.schema import cluster, crawl_labels, crawl_revisions, crawls
from shared.domain.command import CommandKind, collection_of
from shared.domain.crawl_state import Standing, Verb, after, after_new_spec
from shared.domain.declared import (
    Actor,
    CrawlFilter,
    Declaration,
    DeclaredCrawl,
    Repeatable,
    Stamp,
    StoredRevision,
    counted,
    summarized,
    summary_of,
)
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.ports.catalog import Exists, Full, Missing, Stale

LIST_BYTES: Final = 8 << 20
"""Of specs in one page of a list, and of those in memory while a list is read."""

_ACTIVE: Final = (crawl_revisions.c.crawl_id == crawls.c.crawl_id) & (crawl_revisions.c.revision == crawls.c.revision)


def create(
    connection: Connection,
    wanted: Declaration,
    *,
    start: bool,
    actor: Actor,
    now_ms: int,
    repeatable: Repeatable | None = None,
    most: int | None = None,
) -> DeclaredCrawl:
    """See Catalog.create."""
    # Where writers do not take turns, whoever finds a crawl that another has just made finds its answer, too: the name
    # is looked for first. Who finds neither and meets the other at the insert looks again (PostgresPool.write).
    taken = _find(connection, wanted.name) is not None
    if repeatable is not None:
        answer = access.answered(connection, actor, repeatable)
        if answer is not None:
            return msgspec.json.decode(answer, type=DeclaredCrawl)
    if taken:
        raise Exists(f"there is a crawl {wanted.name!r} already")
    if most is not None and connection.execute(_COUNT).scalar_one() >= most:
        raise Full(f"there are {most} crawls already, as many as there may be")
    made = _insert(connection, wanted, CrawlState.SEEDING if start else CrawlState.CREATED, now_ms)
    access.record(connection, actor, "crawl.create", wanted.name, None, _shown(made), now_ms)
    if repeatable is not None:
        access.answer(connection, actor, repeatable, msgspec.json.encode(made).decode(), now_ms)
    return made


def put(
    connection: Connection,
    wanted: Declaration,
    *,
    expected: frozenset[str] | None,
    start: bool,
    actor: Actor,
    now_ms: int,
    most: int | None = None,
) -> tuple[DeclaredCrawl, bool]:
    """See Catalog.put. What is declared already is left alone: no version, no revision, no line in the audit log."""
    found = _find(connection, wanted.name, lock=True)
    if found is None:
        if expected is not None:
            raise Missing(f"there is no crawl {wanted.name!r}")
        return create(connection, wanted, start=start, actor=actor, now_ms=now_ms, most=most), True
    _check(found, expected)
    if found.spec == wanted.spec and dict(found.labels) == dict(wanted.labels):
        return found, False
    values: dict[str, Any] = {"version": found.version + 1}
    if found.spec != wanted.spec:
        standing = after_new_spec(Standing(found.state, found.resumes_as, found.finished_reason))
        values |= _stands(standing, now_ms, found) | {"revision": found.revision + 1}
        connection.execute(
            insert(crawl_revisions).values(
                crawl_id=found.crawl_id, revision=found.revision + 1, spec=wanted.spec, created_at_ms=now_ms
            )
        )
    connection.execute(update(crawls).where(crawls.c.crawl_id == found.crawl_id).values(**values))
    _label(connection, found.crawl_id, wanted.labels)
    made = get(connection, wanted.name)
    access.record(connection, actor, "crawl.replace", wanted.name, _shown(found), _shown(made), now_ms)
    return made, False


def turn(
    connection: Connection, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
) -> tuple[DeclaredCrawl, DeclaredCrawl]:
    """See Catalog.turn."""
    found = _find(connection, name, lock=True)
    if found is None:
        raise Missing(f"there is no crawl {name!r}")
    _check(found, expected)
    standing = after(verb, Standing(found.state, found.resumes_as, found.finished_reason))
    values = _stands(standing, now_ms, found) | {"version": found.version + 1}
    connection.execute(update(crawls).where(crawls.c.crawl_id == found.crawl_id).values(**values))
    if standing.state is CrawlState.DELETED:
        _to_be_collected(connection, found.crawl_id, actor, now_ms)
    if verb is Verb.RESET:
        made = _insert(connection, Declaration(name, found.spec, found.labels), CrawlState.SEEDING, now_ms)
    else:
        made = _only(connection, crawls.c.crawl_id == found.crawl_id)
    access.record(connection, actor, f"crawl.{verb}", name, _shown(found), _shown(made), now_ms)
    return found, made


def get(connection: Connection, name: str) -> DeclaredCrawl:
    """See Catalog.crawl."""
    return named(connection.execute(BY_NAME.statement, {"wanted_name": name}).all(), name)


def named(rows: Sequence[Any], name: str) -> DeclaredCrawl:
    """The crawl of that name, of what BY_NAME found."""
    if not rows:
        raise Missing(f"there is no crawl {name!r}")
    return _crawl(rows[0])


def stamped(rows: Sequence[Any], name: str) -> Stamp:
    """The stamp of the crawl of that name, of what STAMP found."""
    if not rows:
        raise Missing(f"there is no crawl {name!r}")
    return Stamp._make(rows[0])


def listing(
    connection: Connection, which: CrawlFilter, after_name: str, most: int, *, specs: bool
) -> tuple[Sequence[DeclaredCrawl], bool]:
    """See Catalog.crawls."""
    size = func.length(crawl_revisions.c.spec).label("size")
    query = select(crawls.c.crawl_id, size).join(crawl_revisions, _ACTIVE)
    query = query.where(crawls.c.state != CrawlState.DELETED, crawls.c.name > after_name)
    if which.state is not None:
        query = query.where(crawls.c.state == which.state)
    if which.name_prefix:
        query = query.where(crawls.c.name.startswith(which.name_prefix, autoescape=True))
    for label, value in which.labels.items():
        here = (crawl_labels.c.crawl_id == crawls.c.crawl_id) & (crawl_labels.c.label == label)
        query = query.where(exists().where(here & (crawl_labels.c.value == value)))
    rows = connection.execute(query.order_by(crawls.c.name).limit(most + 1)).all()
    shown = [(row.crawl_id, row.size) for row in rows[:most]]
    found: list[DeclaredCrawl] = []
    for group in bounded(shown, LIST_BYTES):
        read = connection.execute(_query().where(crawls.c.crawl_id.in_(group)).order_by(crawls.c.name))
        found += [counted(_crawl(row)) if specs else summarized(_crawl(row)) for row in read]
        if specs:  # the page ends with the first group
            break
    return found, len(found) < len(rows)


def bounded(sized: Sequence[tuple[Any, int]], most_bytes: int) -> Iterator[list[Any]]:
    """Yield the entries in groups of at most `most_bytes` each. An entry that is larger by itself is a group."""
    group: list[Any] = []
    total = 0
    for entry, size in sized:
        if group and total + size > most_bytes:
            yield group
            group, total = [], 0
        group.append(entry)
        total += size
    if group:
        yield group


def revisions(
    connection: Connection, crawl_id: CrawlId, before: int, most: int, *, specs: bool
) -> Sequence[StoredRevision]:
    """See Catalog.revisions."""
    table = crawl_revisions
    here = (table.c.crawl_id == crawl_id) & (table.c.revision < before)
    size = func.length(table.c.spec).label("size")
    plain = select(table.c.revision, table.c.created_at_ms, size).where(here).order_by(table.c.revision.desc())
    rows = connection.execute(plain.limit(most)).all()
    if not specs:
        return [StoredRevision(Revision(row.revision), "{}", row.created_at_ms) for row in rows]
    first = next(bounded([(row.revision, row.size) for row in rows], LIST_BYTES), [])
    query = select(table).where(table.c.crawl_id == crawl_id, table.c.revision.in_(first))
    found = connection.execute(query.order_by(table.c.revision.desc()))
    return [StoredRevision(Revision(row.revision), row.spec, row.created_at_ms) for row in found]


def revision(connection: Connection, crawl_id: CrawlId, number: Revision) -> StoredRevision:
    """See Catalog.revision."""
    table = crawl_revisions
    row = connection.execute(select(table).where(table.c.crawl_id == crawl_id, table.c.revision == number)).first()
    if row is None:
        raise Missing(f"there is no revision {number}")
    return StoredRevision(Revision(row.revision), row.spec, row.created_at_ms)


def _stands(standing: Standing, now_ms: int, found: DeclaredCrawl) -> dict[str, Any]:
    """The columns of a standing. A crawl that stays finished keeps when and why."""
    stays = standing.state is CrawlState.FINISHED and found.state is CrawlState.FINISHED
    finished = standing.state is CrawlState.FINISHED
    return {
        "state": standing.state,
        "resumes_as": standing.resumes_as,
        "finished_reason": found.finished_reason if stays else standing.reason,
        "finished_at_ms": found.finished_at_ms if stays else (now_ms if finished else None),
    }


def _to_be_collected(connection: Connection, crawl_id: CrawlId, actor: Actor, now_ms: int) -> None:
    """That its rows are to be removed is asked for in the transaction that deletes it: the leader sees to it."""
    partitions = connection.execute(select(cluster.c.partitions)).scalar()
    if partitions is not None:
        command_id = collection_of(crawl_id)
        access.ask(connection, command_id, crawl_id, CommandKind.DELETE, "{}", partitions, actor=actor, now_ms=now_ms)


def _insert(connection: Connection, wanted: Declaration, state: CrawlState, now_ms: int) -> DeclaredCrawl:
    crawl_id = CrawlId(
        connection.execute(
            insert(crawls)
            .values(name=wanted.name, revision=1, state=state, created_at_ms=now_ms)
            .returning(crawls.c.crawl_id)
        ).scalar_one()
    )
    connection.execute(
        insert(crawl_revisions).values(crawl_id=crawl_id, revision=1, spec=wanted.spec, created_at_ms=now_ms)
    )
    _label(connection, crawl_id, wanted.labels)
    return _only(connection, crawls.c.crawl_id == crawl_id)


def _label(connection: Connection, crawl_id: CrawlId, labels: Mapping[str, str]) -> None:
    connection.execute(delete(crawl_labels).where(crawl_labels.c.crawl_id == crawl_id))
    if labels:
        rows = [{"crawl_id": crawl_id, "label": label, "value": value} for label, value in sorted(labels.items())]
        connection.execute(insert(crawl_labels), rows)


def _check(found: DeclaredCrawl, expected: frozenset[str] | None) -> None:
    if expected is not None and found.tag not in expected:
        raise Stale(found.tag)


class _Labels(FunctionElement[str]):
    """The labels of a row of `crawls` as a JSON object; NULL or `{}` where it has none."""

    inherit_cache = True
    type = Text()


@compiles(_Labels, "sqlite")
def _labels_of_sqlite(_element: _Labels, _compiler: Any, **_options: Any) -> str:
    return _LABELS_OF.format("json_group_object(label, value)")


@compiles(_Labels, "postgresql")
def _labels_of_postgres(_element: _Labels, _compiler: Any, **_options: Any) -> str:
    return _LABELS_OF.format("CAST(json_object_agg(label, value) AS TEXT)")


_LABELS_OF: Final = "(SELECT {} FROM crawl_labels WHERE crawl_labels.crawl_id = crawls.crawl_id)"


def _query() -> Any:
    return select(crawls, crawl_revisions.c.spec, _Labels().label("labels")).join(crawl_revisions, _ACTIVE)


# Made once: to build and to look up a statement takes three times as long as to run it. The state is no parameter:
# SQLite plans a statement anew whenever one is bound that a partial index depends on, for twice its own time.
_NAMED: Final = (crawls.c.name == bindparam("wanted_name")) & (crawls.c.state != literal_column("'deleted'"))
_COUNT: Final = text("SELECT count(*) FROM crawls WHERE state <> 'deleted'")
BY_NAME: Final = Glance(_query().where(_NAMED))
STAMP: Final = Glance(select(*(crawls.c[column] for column in Stamp._fields)).where(_NAMED))


def _find(connection: Connection, name: str, *, lock: bool = False) -> DeclaredCrawl | None:
    if lock:
        # SQLite has one writer and no row locks; elsewhere two operators of one crawl take turns on its row, which is
        # locked by a statement of its own: one that waited joins the new row with revisions of before, finding none.
        connection.execute(select(crawls.c.crawl_id).where(_NAMED).with_for_update(), {"wanted_name": name})
    row = connection.execute(BY_NAME.statement, {"wanted_name": name}).first()
    return None if row is None else _crawl(row)


def _only(connection: Connection, condition: Any) -> DeclaredCrawl:
    return _crawl(connection.execute(_query().where(condition)).one())


def _crawl(row: Any) -> DeclaredCrawl:
    return DeclaredCrawl(
        crawl_id=CrawlId(row.crawl_id),
        name=row.name,
        revision=Revision(row.revision),
        version=row.version,
        state=CrawlState(row.state),
        spec=row.spec,
        labels=dict(sorted(msgspec.json.decode(row.labels or "{}").items())),
        resumes_as=None if row.resumes_as is None else CrawlState(row.resumes_as),
        finished_reason=row.finished_reason,
        created_at_ms=row.created_at_ms,
        started_at_ms=row.started_at_ms,
        finished_at_ms=row.finished_at_ms,
        active_ms=row.active_ms,
    )


def _shown(crawl: DeclaredCrawl) -> str:
    """Return a crawl as the audit log keeps it: the specs stand under their revisions. Networks that a spec opens are
    repeated here, so that the log itself says which key opened them."""
    kept: dict[str, Any] = {
        "crawl": crawl.crawl_id,
        "revision": crawl.revision,
        "state": crawl.state,
        "labels": dict(crawl.labels),
    }
    if allow := summary_of(crawl.spec).egress.allow:
        kept["egress_allow"] = allow
    return msgspec.json.encode(kept).decode()
