"""Transactions on crawls as operators declare them: their names, specs, labels and desired states."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Connection,
    Text,
    bindparam,
    delete,
    exists,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from shared.adapters.sql.catalog import access, seed_sets
from shared.adapters.sql.catalog.list_bytes import ByteLength, bounded, first_page
from shared.adapters.sql.engine.crawl_values import ACTIVE_MS, NEXT_CHANGE, STOP_TIME
from shared.adapters.sql.engine.point_query import PointQuery
from shared.adapters.sql.engine.schema import cluster, crawl_labels, crawl_revisions, crawls
from shared.domain.crawl.state import (
    CrawlStatus,
    DesiredRun,
    NoRecrawl,
    RunUnderWay,
    Verb,
    initial_state,
    refresh_after,
    status_after,
    status_after_new_spec,
    status_as_desired,
)
from shared.domain.frontier.commands import CommandKind, collection_of
from shared.domain.frontier.states import USES_TIME, WORKED_ON, CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.domain.reads.declared import (
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
from shared.ports.catalog import Exists, Full, Missing, Stale

_ACTIVE: Final = (crawl_revisions.c.crawl_id == crawls.c.crawl_id) & (crawl_revisions.c.revision == crawls.c.revision)


def create(
    connection: Connection,
    wanted: Declaration,
    *,
    start: bool,
    actor: Actor,
    now_ms: int,
    repeatable: Repeatable | None = None,
    max_count: int | None = None,
) -> DeclaredCrawl:
    """Create a crawl and return it.

    `start`: begin the crawl at once. It has no effect if the declaration itself sets `desired`. Raise Exists if the
    name is taken, or Full if there are `max_count` crawls already. A repeat of the request `repeatable` returns the
    crawl as it was created. Raise ReusedKey if the idempotency key was used for another request.
    """
    # Repeats of a request may be concurrent. So the lock comes before all reads, not only before the count.
    access.lock_creation(connection, crawls)
    taken = _find(connection, wanted.name) is not None
    if repeatable is not None:
        answer = access.answered(connection, actor, repeatable, now_ms)
        if answer is not None:
            return msgspec.json.decode(answer, type=DeclaredCrawl)
    if taken:
        raise Exists(f"there is a crawl {wanted.name!r} already")
    if max_count is not None and connection.execute(_COUNT).scalar_one() >= max_count:
        raise Full(
            f"there are {max_count} crawls already, as many as there may be",
            "delete crawls that are no longer needed, or raise master.max_crawls (/v1/config)",
        )
    made = _insert(connection, wanted, initial_state(wanted.desired, start=start), now_ms)
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
    max_count: int | None = None,
    enforce: bool = True,
) -> tuple[DeclaredCrawl, bool]:
    """Create or update the crawl as declared. Return it, and True if it was created.

    - `expected`: tags (HTTP ETags). Raise Stale if the crawl has none of them, Missing if it does not exist. None: no
      condition.
    - `start`: begin a new crawl at once, unless the declaration itself sets `desired`.
    - `max_count`: the most crawls that may exist. Raise Full instead of creating one more.
    - `enforce`: also start or pause the crawl if its state is not the one that the declaration desires.

    Write nothing if neither the declaration nor the state changes.
    """
    stored = _find(connection, wanted.name, lock=True)
    if stored is None and expected is not None:
        raise Missing(f"there is no crawl {wanted.name!r}")
    if stored is None:
        access.lock_creation(connection, crawls)
        stored = _find(connection, wanted.name, lock=True)  # another transaction may have created it meanwhile
    if stored is None:
        return create(connection, wanted, start=start, actor=actor, now_ms=now_ms, max_count=max_count), True
    _check(stored, expected)
    status = stored.status if stored.spec == wanted.spec else status_after_new_spec(stored.status)
    status = status_as_desired(wanted.desired, status) if enforce else status
    declared = (stored.spec, dict(stored.labels), stored.desired)
    if declared == (wanted.spec, dict(wanted.labels), wanted.desired) and status == stored.status:
        return stored, False
    values: dict[str, Any] = {"version": stored.version + 1, "change": NEXT_CHANGE, "desired": wanted.desired}
    if status != stored.status or stored.spec != wanted.spec:
        values |= _status_columns(status, now_ms, stored)
    if stored.state is CrawlState.FINISHED and status.state is not CrawlState.FINISHED:
        values["refresh_ms"] = 0
    if stored.spec != wanted.spec:
        values |= {"revision": stored.revision + 1}
        connection.execute(
            insert(crawl_revisions).values(
                crawl_id=stored.crawl_id, revision=stored.revision + 1, spec=wanted.spec, created_at_ms=now_ms
            )
        )
    connection.execute(update(crawls).where(crawls.c.crawl_id == stored.crawl_id).values(**values))
    _label(connection, stored.crawl_id, wanted.labels)
    made = get(connection, wanted.name)
    access.record(connection, actor, "crawl.replace", wanted.name, _shown(stored), _shown(made), now_ms)
    return made, False


def turn(
    connection: Connection, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
) -> tuple[DeclaredCrawl, DeclaredCrawl]:
    """Apply a verb such as `pause` to the crawl `name`. Return the crawl before and after.

    Raise Missing if there is no such crawl, and Stale if its HTTP ETag is not in `expected` (None: no condition).
    Raise IllegalTransition if its state does not allow the verb, or NoRecrawl if its spec does not allow a refresh.
    """
    stored = _find(connection, name, lock=True)
    if stored is None:
        raise Missing(f"there is no crawl {name!r}")
    _check(stored, expected)
    return stored, turn_locked(connection, stored, verb, actor=actor, now_ms=now_ms)


def turn_locked(
    connection: Connection, stored: DeclaredCrawl, verb: Verb, *, actor: Actor, now_ms: int
) -> DeclaredCrawl:
    """Apply a verb to a crawl that this transaction has locked (`locked`). Return the crawl afterwards.

    For RESET this is the new crawl that replaces it. Errors, after which nothing is written:

    - IllegalTransition: the state of the crawl does not allow the verb.
    - NoRecrawl, a kind of IllegalTransition: the verb is REFRESH, but the spec fetches each page only once.
    """
    recrawls = summary_of(stored.spec).recrawl.used
    if verb is Verb.REFRESH and recrawls and stored.state in WORKED_ON:
        raise RunUnderWay(stored.state, refreshing=stored.refresh_ms > 0)
    status = status_after(verb, stored.status, recrawls=recrawls)
    if verb is Verb.REFRESH and not recrawls:
        raise NoRecrawl(stored.state)
    values = _status_columns(status, now_ms, stored) | {"version": stored.version + 1}
    values["refresh_ms"] = refresh_after(verb, stored.refresh_ms, now_ms)
    connection.execute(update(crawls).where(crawls.c.crawl_id == stored.crawl_id).values(**values))
    if status.state is CrawlState.DELETED:
        _to_be_collected(connection, stored.crawl_id, actor, now_ms)
    if verb is Verb.RESET:
        same = Declaration(stored.name, stored.spec, stored.labels, stored.desired)
        made = _insert(connection, same, initial_state(stored.desired, start=True), now_ms)
        if (partitions := connection.execute(select(cluster.c.partitions)).scalar()) is not None:
            seed_sets.move(connection, stored.crawl_id, made.crawl_id, partitions, actor, now_ms)
    else:
        made = replace(
            stored,
            version=stored.version + 1,
            state=status.state,
            resumes_as=status.resumes_as,
            finished_reason=values["finished_reason"],
            finished_at_ms=values["finished_at_ms"],
            refresh_ms=values["refresh_ms"],
        )
    access.record(connection, actor, f"crawl.{verb}", stored.name, _shown(stored), _shown(made), now_ms)
    return made


def locked(connection: Connection, names: Sequence[str]) -> Mapping[str, DeclaredCrawl]:
    """Lock the crawls with these names until the transaction ends. Return them by name.

    Names without a crawl, or whose crawl is deleted, are left out.
    """
    if not names:
        return {}
    access.lock_crawls(connection, names)
    here = crawls.c.name.in_(names) & (crawls.c.state != literal_column("'deleted'"))
    return {row.name: _crawl(row) for row in connection.execute(_query().where(here))}


def get(connection: Connection, name: str) -> DeclaredCrawl:
    """Return the declared crawl of this name. Raise Missing if it does not exist or is deleted."""
    return named(connection.execute(BY_NAME.statement, {"wanted_name": name}).all(), name)


def named(rows: Sequence[Any], name: str) -> DeclaredCrawl:
    """Return the crawl from `rows`, which the query BY_NAME returned for `name`. Raise Missing if there is no row."""
    if not rows:
        raise Missing(f"there is no crawl {name!r}")
    return _crawl(rows[0])


def stamped(rows: Sequence[Any], name: str) -> Stamp:
    """Return the stamp of the crawl `name` from `rows`, which the query STAMP returned. Raise Missing if it found none.

    A stamp is a value that changes whenever anything that the API shows of the crawl changes.
    """
    if not rows:
        raise Missing(f"there is no crawl {name!r}")
    return Stamp._make(rows[0])


def listing(
    connection: Connection, which: CrawlFilter, *, after: str, max_count: int, specs: bool = False
) -> tuple[Sequence[DeclaredCrawl], bool]:
    """Return at most `max_count` crawls after the name `after`, ordered by name, and True if there are more.

    `which` selects crawls by state, labels and prefix of the name. Without `specs` each crawl has a summary of its spec
    instead of the spec. With `specs` fewer crawls are returned if their specs exceed LIST_BYTES.
    """
    size = ByteLength(crawl_revisions.c.spec).label("size")
    query = select(crawls.c.crawl_id, size).join(crawl_revisions, _ACTIVE)
    query = query.where(crawls.c.state != CrawlState.DELETED, crawls.c.name > after)
    if which.state is not None:
        query = query.where(crawls.c.state == which.state)
    if which.name_prefix:
        query = query.where(crawls.c.name.startswith(which.name_prefix, autoescape=True))
    for label, value in which.labels.items():
        here = (crawl_labels.c.crawl_id == crawls.c.crawl_id) & (crawl_labels.c.label == label)
        query = query.where(exists().where(here & (crawl_labels.c.value == value)))
    rows = connection.execute(query.order_by(crawls.c.name).limit(max_count + 1)).all()
    shown = [(row.crawl_id, row.size) for row in rows[:max_count]]
    listed: list[DeclaredCrawl] = []
    for group in bounded(shown):
        read = connection.execute(_query().where(crawls.c.crawl_id.in_(group)).order_by(crawls.c.name))
        listed += [counted(_crawl(row)) if specs else summarized(_crawl(row)) for row in read]
        if specs:  # the page ends with the first group
            break
    return listed, len(listed) < len(rows)


def revisions(
    connection: Connection, crawl_id: CrawlId, *, before: int, max_count: int, specs: bool = False
) -> Sequence[StoredRevision]:
    """Return at most `max_count` revisions of a crawl's spec with numbers below `before`, newest first.

    Without `specs` each revision has the empty spec `{}`. With `specs` fewer revisions are returned if their specs
    exceed LIST_BYTES, but at least one if there is any.
    """
    table = crawl_revisions
    here = (table.c.crawl_id == crawl_id) & (table.c.revision < before)
    size = ByteLength(table.c.spec).label("size")
    plain = select(table.c.revision, table.c.created_at_ms, size).where(here).order_by(table.c.revision.desc())
    rows = connection.execute(plain.limit(max_count)).all()
    if not specs:
        return [StoredRevision(Revision(row.revision), "{}", row.created_at_ms) for row in rows]
    first = first_page([(row.revision, row.size) for row in rows])
    query = select(table).where(table.c.crawl_id == crawl_id, table.c.revision.in_(first))
    read = connection.execute(query.order_by(table.c.revision.desc()))
    return [StoredRevision(Revision(row.revision), row.spec, row.created_at_ms) for row in read]


def revision(connection: Connection, crawl_id: CrawlId, revision: Revision) -> StoredRevision:
    """Return one revision of a crawl's spec. Raise Missing if there is none of that number."""
    table = crawl_revisions
    row = connection.execute(select(table).where(table.c.crawl_id == crawl_id, table.c.revision == revision)).first()
    if row is None:
        raise Missing(f"there is no revision {revision}")
    return StoredRevision(Revision(row.revision), row.spec, row.created_at_ms)


def _status_columns(status: CrawlStatus, now_ms: int, stored: DeclaredCrawl) -> dict[str, Any]:
    """Return the values to write to the row of the crawl `stored`, by column, to give it the status `status`.

    A finished crawl that stays finished keeps its finish time and reason.
    """
    stays = status.state is CrawlState.FINISHED and stored.state is CrawlState.FINISHED
    finished = status.state is CrawlState.FINISHED
    return {
        "state": status.state,
        "resumes_as": status.resumes_as,
        "finished_reason": stored.finished_reason if stays else status.reason,
        "finished_at_ms": stored.finished_at_ms if stays else (now_ms if finished else None),
        "change": NEXT_CHANGE,
        **({} if status.state in USES_TIME else STOP_TIME),
    }


def _to_be_collected(connection: Connection, crawl_id: CrawlId, actor: Actor, now_ms: int) -> None:
    """Request the command DELETE, which removes the rows of a deleted crawl. The leader publishes it later.

    Call it in the transaction that deletes the crawl.
    """
    partitions = connection.execute(select(cluster.c.partitions)).scalar()
    if partitions is not None:
        command_id = collection_of(crawl_id)
        access.ask(connection, command_id, crawl_id, CommandKind.DELETE, "{}", partitions, actor=actor, now_ms=now_ms)


def _insert(connection: Connection, wanted: Declaration, state: CrawlState, now_ms: int) -> DeclaredCrawl:
    crawl_id = CrawlId(
        connection.execute(
            insert(crawls)
            .values(
                name=wanted.name,
                revision=1,
                state=state,
                created_at_ms=now_ms,
                change=NEXT_CHANGE,
                desired=wanted.desired,
            )
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


def _check(stored: DeclaredCrawl, expected: frozenset[str] | None) -> None:
    if expected is not None and stored.tag not in expected:
        raise Stale(stored.tag)


class _Labels(FunctionElement[str]):
    """An SQL expression: the labels of a row of `crawls` as a JSON object. NULL or `{}` if the crawl has no labels."""

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
    return select(crawls, ACTIVE_MS.label("active"), crawl_revisions.c.spec, _Labels().label("labels")).join(
        crawl_revisions, _ACTIVE
    )


# Made once: building and looking up a statement takes three times as long as running it. The state is no parameter,
# because a partial index depends on it: SQLite would plan the statement again at each binding, for twice its run time.
_NAMED: Final = (crawls.c.name == bindparam("wanted_name")) & (crawls.c.state != literal_column("'deleted'"))
_COUNT: Final = text("SELECT count(*) FROM crawls WHERE state <> 'deleted'")
BY_NAME: Final = PointQuery(_query().where(_NAMED))
STAMP: Final = PointQuery(
    select(*(crawls.c[column] for column in Stamp._fields[:-1]), ACTIVE_MS.label("active")).where(_NAMED)
)


def _find(connection: Connection, name: str, *, lock: bool = False) -> DeclaredCrawl | None:
    if lock:
        access.lock_crawls(connection, [name])
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
        active_ms=row.active,
        desired=None if row.desired is None else DesiredRun(row.desired),
        refresh_ms=row.refresh_ms,
    )


def _shown(crawl: DeclaredCrawl) -> str:
    """Return a crawl as JSON for the audit log, without its spec. The spec is stored with its revision.

    The networks that the spec opens (`egress.allow`) are included, so that the log shows which API key opened them.
    """
    kept: dict[str, Any] = {
        "crawl": crawl.crawl_id,
        "revision": crawl.revision,
        "state": crawl.state,
        "labels": dict(crawl.labels),
    }
    if crawl.desired is not None:
        kept["desired"] = crawl.desired
    if allow := summary_of(crawl.spec).egress.allow:
        kept["egress_allow"] = allow
    return msgspec.json.encode(kept).decode()
