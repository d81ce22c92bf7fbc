"""Deletes rows after their retention time, in bounded transactions.

A pass is one call that deletes rows of one kind. It reads a bounded number of rows in the order of a key. The leader
also deletes owners' rows here, but only rows that no owner uses any more.

The argument `place` says where a pass begins. It is "" for the first pass, then the place that the previous pass
returned. A pass returns the number of deleted rows, and the place for the next pass (SweepResult). This place is "" if
there is no more to do.
"""

# No table has an index by age, because it would slow every insert. If a key grows with time, the first rows are the
# oldest. Otherwise the passes sweep over the whole table.

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, bindparam, text

from shared.adapters.sql.engine.executor import SqlAdapter, bound
from shared.adapters.sql.frontier.old_hosts import forget_hosts, old_hosts
from shared.domain.crawl.scope_change import scope_command_of
from shared.domain.crawl.wider_scope import rediscovery_of
from shared.domain.frontier.commands import CommandKind, collection_of, recrawl_of, retry_of
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops import exclusions, host_policies, seed_sets
from shared.domain.ops.retention import RetainedKind, Retention, is_upload, used_until_ms
from shared.domain.ops.seed_sets import part_of
from shared.ports.retained import SweepResult

ROWS: Final = 500
"""The most rows that one call reads (a pass)."""

_ON: Final = "more"
_OLDEST_LINES = text("SELECT id, at_ms FROM audit_log ORDER BY id LIMIT :max_count")
_FORGET_LINES = text("DELETE FROM audit_log WHERE id <= :last AND at_ms < :before")
_STRAY_LETTERS = text("SELECT id, at_ms FROM dead_letters WHERE crawl_id IS NULL ORDER BY id LIMIT :max_count")
_FORGET_LETTERS = text("DELETE FROM dead_letters WHERE crawl_id IS NULL AND id <= :last AND at_ms < :before")
_REQUESTS = text(
    "SELECT r.id, r.at_ms, r.partitions, r.kind, r.crawl_id,"
    " (SELECT count(*) FROM commands c WHERE c.id = r.id) AS applied,"
    " (SELECT count(*) FROM crawls k WHERE k.crawl_id = r.crawl_id AND k.collected_at_ms IS NULL) AS uncollected"
    " FROM command_requests r WHERE r.id > :place ORDER BY r.id LIMIT :max_count"
)
_CRAWLS_IN_PROGRESS = text("SELECT DISTINCT crawl_id FROM commands_in_progress")
_SEED_SETS_TO_SEND = text("SELECT revision FROM seed_set_commands")
_HOST_POLICIES_TO_SEND = text("SELECT revision FROM host_policy_commands")
_EXCLUSIONS_TO_SEND = text("SELECT id, revision FROM exclusions WHERE commanded < revision")
_SCHEDULES_TO_SEND = text("SELECT command FROM schedule_effects WHERE command IS NOT NULL AND NOT commanded")
_FORGET_APPLIED, _FORGET_REQUESTS = (
    text(f"DELETE FROM {table} WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))
    for table in ("commands", "command_requests")
)
_OLD_REVISIONS = text(
    "SELECT r.crawl_id, r.revision FROM crawls c JOIN crawl_revisions r ON r.crawl_id = c.crawl_id"
    " AND r.revision <= c.revision - :kept ORDER BY r.crawl_id, r.revision LIMIT :max_count"
)
_FORGET_REVISION = text("DELETE FROM crawl_revisions WHERE crawl_id = :crawl_id AND revision = :revision")
_FORGET_CONFIG = text(
    "DELETE FROM config_revisions WHERE revision IN (SELECT revision FROM config_revisions WHERE revision <="
    " (SELECT max(revision) FROM config_revisions) - :kept ORDER BY revision LIMIT :max_count)"
)
_OLD_CHANGES = text(
    "SELECT p.crawl_id, p.at_ms, p.partition, p.number FROM crawls c JOIN page_changes p ON p.crawl_id = c.crawl_id"
    " AND p.at_ms < :before ORDER BY p.crawl_id, p.at_ms, p.partition, p.number LIMIT :max_count"
)
_FORGET_CHANGES = text(
    "DELETE FROM page_changes WHERE crawl_id = :crawl_id AND at_ms = :at_ms AND partition = :partition"
    " AND number = :number"
)
_CHANGES_DELETED = text(
    "UPDATE crawls SET changes_deleted_ms = :at_ms WHERE crawl_id = :crawl_id"
    " AND coalesce(changes_deleted_ms, -1) < :at_ms"
)
_DELETED_CRAWLS = text(
    "SELECT crawl_id, state, collected_at_ms FROM crawls WHERE crawl_id > :place ORDER BY crawl_id LIMIT :max_count"
)
_REVISIONS_OF = text("SELECT crawl_id, revision FROM crawl_revisions WHERE crawl_id = :crawl_id LIMIT :max_count")
_FORGET_CRAWL = tuple(text(f"DELETE FROM {table} WHERE crawl_id = :crawl_id") for table in ("crawl_labels", "crawls"))
_PRODUCERS = text(
    "SELECT partition, crawl_id, producer, seen_at_ms FROM producers"
    " WHERE (partition, crawl_id, producer) > (:p, :crawl_id, :name)"
    " ORDER BY partition, crawl_id, producer LIMIT :max_count"
)
_FORGET_PRODUCER = text(
    "DELETE FROM producers WHERE partition = :partition AND crawl_id = :crawl_id AND producer = :producer"
)
_SEEN = text(
    "UPDATE producers SET seen_at_ms = :now_ms"
    " WHERE partition = :partition AND crawl_id = :crawl_id AND producer = :producer"
)
_KEYS = text("SELECT key_id, revoked_at_ms FROM api_keys WHERE key_id > :place ORDER BY key_id LIMIT :max_count")
_ANY_KEY = text("SELECT key_id FROM api_keys WHERE revoked_at_ms IS NULL LIMIT 1")
_FORGET_KEY = text("DELETE FROM api_keys WHERE key_id = :key_id AND revoked_at_ms IS NOT NULL")
_SENT_FOR_REVISION: Final = (retry_of, recrawl_of, scope_command_of, rediscovery_of)
"""For each kind of command that the leader may have sent for a revision of a crawl: a function that returns its id.

If retention deletes a revision, it also deletes the rows of the table `commands` with these ids."""

_REVISIONS_AT_ONCE: Final = ROWS // len(_SENT_FOR_REVISION)
"""The most revisions of crawls that one pass deletes. With each revision it deletes the records of its commands."""

_FEW: Final = 20
"""One pass removes the remaining rows of at most this many crawls that are deleted already.

The number is low, since each crawl may have many revisions.
"""


class SqlRetained(SqlAdapter):
    """Deletes rows after their retention time, on SQL (`shared.ports.retained.Retained`)."""

    async def forget(self, what: RetainedKind, rules: Retention, now_ms: int, place: str) -> SweepResult:
        if what is RetainedKind.HOSTS:
            before = rules.before_ms(what, now_ms)
            old = await self._run.read(bound(old_hosts, before, now_ms, place, ROWS))
            return await self._run.write(bound(forget_hosts, old, before, now_ms))
        return await self._run.write(bound(_FORGET[what], rules, now_ms, place))


def _lines(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete at most ROWS lines of the audit log that are older than `rules` allow, the oldest first.

    `place` is not used.
    """
    before = rules.before_ms(RetainedKind.AUDIT, now_ms)
    rows = connection.execute(_OLDEST_LINES, {"max_count": ROWS}).all()
    return _up_to([row.id for row in rows if row.at_ms < before], connection, _FORGET_LINES, before)


def _letters(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    before = rules.before_ms(RetainedKind.LETTERS, now_ms)
    rows = connection.execute(_STRAY_LETTERS, {"max_count": ROWS}).all()
    return _up_to([row.id for row in rows if row.at_ms < before], connection, _FORGET_LETTERS, before)


def _up_to(old: list[int], connection: Connection, statement: TextClause, before: int) -> SweepResult:
    if not old:
        return SweepResult(0, "")
    rows = connection.execute(statement, {"last": old[-1], "before": before}).rowcount
    return SweepResult(rows, _ON if len(old) == ROWS else "")


def _commands(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete commands that are older than `rules` allow and that are over.

    A command is over when all its partitions have applied it. It is also over if no process works on it any more, such
    as after a publication that was given up. The command DELETE of a crawl is kept until all rows of the crawl are
    removed. `place`: the command id after which the pass begins.
    """
    before = rules.before_ms(RetainedKind.COMMANDS, now_ms)
    rows = connection.execute(_REQUESTS, {"place": place, "max_count": ROWS}).all()
    old = [
        row
        for row in rows
        if row.at_ms < before and not (row.uncollected and row.id == collection_of(CrawlId(row.crawl_id)))
    ]
    done = [row for row in old if row.applied >= row.partitions]
    if left := [row for row in old if row.applied < row.partitions]:
        to_send, in_progress = _to_send(connection), set(connection.execute(_CRAWLS_IN_PROGRESS).scalars())
        done += [row for row in left if row.id not in to_send and row.crawl_id not in in_progress]
    if done:
        _forget_parts(connection, [row.id for row in done if row.kind == CommandKind.SEED_SET])
        for statement in (_FORGET_APPLIED, _FORGET_REQUESTS):
            connection.execute(statement, {"ids": [row.id for row in done]})
    return SweepResult(len(done), rows[-1].id if len(rows) == ROWS else "")


def _to_send(connection: Connection) -> set[str]:
    """Return the ids of the requested commands that the leader has not published to all their partitions yet."""
    ids: set[str] = set(connection.execute(_SCHEDULES_TO_SEND).scalars())
    ids |= {seed_sets.command_id_of(revision) for revision in connection.execute(_SEED_SETS_TO_SEND).scalars()}
    ids |= {host_policies.command_id_of(revision) for revision in connection.execute(_HOST_POLICIES_TO_SEND).scalars()}
    return ids | {exclusions.command_id_of(row.id, row.revision) for row in connection.execute(_EXCLUSIONS_TO_SEND)}


def _forget_parts(connection: Connection, ids: list[str]) -> None:
    """Delete the rows of earlier parts of SEED_SET commands from the table `commands`. Keep the rows of the last parts.

    A large SEED_SET command is sent in several parts, and each part has its own id. For example, a command `X` is sent
    in three parts. The first part has the id `X-3`, the second `X-2`, and the last part has the command's own id `X`.
    This function deletes the rows with `X-3` and `X-2`. The caller deletes the rows with `X`.

    `ids`: the ids of the commands, such as `X`.
    """
    # The other parts are numbered from 2 without a gap. They are few, since a set has few seeds.
    left = 2
    while ids and connection.execute(_FORGET_APPLIED, {"ids": [part_of(each, left) for each in ids]}).rowcount:
        left += 1


def _revisions(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    rows = connection.execute(_OLD_REVISIONS, {"kept": rules.revisions, "max_count": _REVISIONS_AT_ONCE}).all()
    _forget_revisions(connection, rows)
    return SweepResult(len(rows), _ON if len(rows) == _REVISIONS_AT_ONCE else "")


def _forget_revisions(connection: Connection, rows: Sequence[Row[Any]]) -> None:
    """Delete revisions of crawls. Also delete the rows of the table `commands` for commands sent for these revisions.

    Each of `rows` has the id of a crawl and the number of the revision to delete.
    """
    # The leader sends commands only for stored revisions.
    _run(connection, _FORGET_REVISION, rows)
    pairs = [(CrawlId(row.crawl_id), Revision(row.revision)) for row in rows]
    if pairs:
        ids = [command_of(*pair) for pair in pairs for command_of in _SENT_FOR_REVISION]
        connection.execute(_FORGET_APPLIED, {"ids": ids})


def _config(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    rows = connection.execute(_FORGET_CONFIG, {"kept": rules.revisions, "max_count": ROWS}).rowcount
    return SweepResult(rows, _ON if rows == ROWS else "")


def _changes(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete rows of the log of page changes that are older than `rules` allow, at most ROWS. `place` is not used.

    For each crawl, store the time of the newest deleted row (`changes_deleted_ms`). It shows readers that the log has a
    gap.
    """
    before = rules.before_ms(RetainedKind.CHANGES, now_ms)
    rows = connection.execute(_OLD_CHANGES, {"before": before, "max_count": ROWS}).all()
    _run(connection, _FORGET_CHANGES, rows)
    for crawl_id, at_ms in {row.crawl_id: row.at_ms for row in rows}.items():
        connection.execute(_CHANGES_DELETED, {"crawl_id": crawl_id, "at_ms": at_ms})
    return SweepResult(len(rows), _ON if len(rows) == ROWS else "")


def _crawls(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete what is left of crawls whose deletion ended longer ago than `rules` allow: crawl, revisions and labels.

    A pass deletes at most _REVISIONS_AT_ONCE revisions and crawls together. The ids of these crawls are never used
    again. `place`: the crawl id after which the pass begins.
    """
    before = rules.before_ms(RetainedKind.CRAWLS, now_ms)
    rows = connection.execute(_DELETED_CRAWLS, {"place": int(place or 0), "max_count": ROWS}).all()
    old = [row.crawl_id for row in rows if row.state == "deleted" and (row.collected_at_ms or before) < before]
    left = _REVISIONS_AT_ONCE
    for crawl_id in old[:_FEW]:
        revisions = connection.execute(_REVISIONS_OF, {"crawl_id": crawl_id, "max_count": left}).all()
        _forget_revisions(connection, revisions)
        left -= len(revisions)
        if left <= 0:
            return SweepResult(_REVISIONS_AT_ONCE - left, place or "0")
        for statement in _FORGET_CRAWL:
            connection.execute(statement, {"crawl_id": crawl_id})
        left -= 1
    if len(old) > _FEW:
        return SweepResult(_REVISIONS_AT_ONCE - left, str(old[_FEW - 1]))
    return SweepResult(_REVISIONS_AT_ONCE - left, str(rows[-1].crawl_id) if len(rows) == ROWS else "")


def _producers(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete the rows of weekly producers whose week ended longer ago than `rules` allow.

    A producer is a name under which a process numbers the discoveries that it sends. A weekly producer is used for one
    week, which its name contains. `place`: the row after which the pass begins.
    """
    before = rules.before_ms(RetainedKind.PRODUCERS, now_ms)
    rows, further = _next_producers(connection, place)
    old = [row for row in rows if (ended := used_until_ms(row.producer)) is not None and ended < before]
    _run(connection, _FORGET_PRODUCER, old)
    return SweepResult(len(old), further)


def _uploads(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete old rows of producers that are used for one task only, such as an upload of seeds.

    A producer is a name under which a process numbers the discoveries that it sends. Nothing records when the task
    ended. So the first pass that finds a row stores the current time in the row. A later pass deletes the row if this
    time is longer ago than `rules` allow. `place`: the row after which the pass begins.
    """
    before = rules.before_ms(RetainedKind.UPLOADS, now_ms)
    rows, further = _next_producers(connection, place)
    uploads = [row for row in rows if is_upload(row.producer)]
    old = [row for row in uploads if row.seen_at_ms is not None and row.seen_at_ms < before]
    _run(connection, _FORGET_PRODUCER, old)
    _run(connection, _SEEN, [row for row in uploads if row.seen_at_ms is None], now_ms=now_ms)
    return SweepResult(len(old), further)


def _next_producers(connection: Connection, place: str) -> tuple[Sequence[Row[Any]], str]:
    p, crawl_id, name = place.split(" ", 2) if place else ("-1", "0", "")
    where = {"p": int(p), "crawl_id": int(crawl_id), "name": name, "max_count": ROWS}
    rows = connection.execute(_PRODUCERS, where).all()
    last = rows[-1] if len(rows) == ROWS else None
    return rows, "" if last is None else f"{last.partition} {last.crawl_id} {last.producer}"


def _run(connection: Connection, statement: TextClause, rows: Sequence[Row[Any]], **more: Any) -> None:
    if rows:
        connection.execute(statement, [row._asdict() | more for row in rows])


def _keys(connection: Connection, rules: Retention, now_ms: int, place: str) -> SweepResult:
    """Delete API keys that were revoked longer ago than `rules` allow. Always leave at least one key in the table.

    So delete nothing if all keys are revoked. If the table were empty, a master would take the cluster for a new one
    and create a first key. `place`: the key id after which the pass begins.
    """
    before = rules.before_ms(RetainedKind.KEYS, now_ms)
    rows = connection.execute(_KEYS, {"place": place, "max_count": ROWS}).all()
    old = [row for row in rows if row.revoked_at_ms is not None and row.revoked_at_ms < before]
    if connection.execute(_ANY_KEY).first() is None:
        return SweepResult(0, "")
    _run(connection, _FORGET_KEY, old)
    return SweepResult(len(old), rows[-1].key_id if len(rows) == ROWS else "")


_FORGET: Final = {
    RetainedKind.AUDIT: _lines,
    RetainedKind.COMMANDS: _commands,
    RetainedKind.REVISIONS: _revisions,
    RetainedKind.CONFIG: _config,
    RetainedKind.CRAWLS: _crawls,
    RetainedKind.LETTERS: _letters,
    RetainedKind.PRODUCERS: _producers,
    RetainedKind.UPLOADS: _uploads,
    RetainedKind.KEYS: _keys,
    RetainedKind.CHANGES: _changes,
}
