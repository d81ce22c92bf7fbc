"""Transactions on the audit log, on commands that operators requested, and on stored answers.

An answer is stored for a request with an `Idempotency-Key`, so that its repetition gets the same answer.

The module also has the locks that operators' transactions on crawls and schedules take.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, Table, bindparam, delete, func, insert, literal_column, select

from shared.adapters.sql.catalog.revision_commands import revision_command
from shared.adapters.sql.engine.access_schema import audit_log, command_requests, idempotency
from shared.adapters.sql.engine.schema import commands, crawls
from shared.domain.ids import CrawlId
from shared.domain.reads.declared import Actor, CommandProgress, Repeatable
from shared.ports.catalog import ReusedKey

REMEMBERED_MS: Final = 24 * 3600 * 1000
"""How long an answer is stored, in ms, so that a repeat of its request gets the same answer."""

_CREATION_LOCKS: Final = {"crawls": int.from_bytes(b"orbcrawl"), "schedules": int.from_bytes(b"orbsched")}
"""The numbers of PostgreSQL's advisory locks that `lock_creation` takes, by table."""

_PRESENT: Final = (
    select(crawls.c.crawl_id)
    .where(crawls.c.name.in_(bindparam("names", expanding=True)), crawls.c.state != literal_column("'deleted'"))
    .order_by(crawls.c.crawl_id)
)


def lock_crawls(connection: Connection, names: Sequence[str]) -> None:
    """Lock the crawls with these names until the transaction ends. Names without a crawl are left out.

    Read the crawls by name in a statement after this call. SQLite has one writer and needs no lock.
    """
    if connection.dialect.name == "sqlite":
        return
    # If the locking statement waits for a reset, it does not see the new crawl that the reset has made. So lock again
    # until the names belong to the locked crawls.
    while True:
        locked = connection.execute(_PRESENT.with_for_update(), {"names": names}).scalars().all()
        if locked == connection.execute(_PRESENT, {"names": names}).scalars().all():
            return


def lock_creation(connection: Connection, table: Table) -> None:
    """Lock the creation of rows of `table` until the transaction ends, so that the caller can count the rows.

    Other changes of rows are not locked. SQLite has one writer and needs no lock.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION_LOCKS[table.name])))


def answered(connection: Connection, actor: Actor, request: Repeatable, now_ms: int) -> str | None:
    """Return the stored answer if this request was answered in the last day (REMEMBERED_MS), else None.

    Raise ReusedKey if its idempotency key was used for another request in that time.
    """
    table = idempotency
    here = (table.c.actor == actor.key_id) & (table.c.key == request.key)
    row = connection.execute(select(table).where(here, table.c.at_ms >= now_ms - REMEMBERED_MS)).first()
    if row is None:
        return None
    if bytes(row.digest) != request.digest:
        raise ReusedKey("this idempotency key was used for another request")
    return str(row.answer)


def answer(connection: Connection, actor: Actor, request: Repeatable, reply: str, now_ms: int) -> None:
    """Store `reply` as the answer to repeats of `request` by the same actor. Delete answers that are older than a day.

    Call it in the transaction that applies the request.
    """
    connection.execute(delete(idempotency).where(idempotency.c.at_ms < now_ms - REMEMBERED_MS))
    connection.execute(
        insert(idempotency).values(
            actor=actor.key_id, key=request.key, digest=request.digest, answer=reply, at_ms=now_ms
        )
    )


def record(
    connection: Connection, actor: Actor, action: str, target: str, before: str | None, after: str | None, now_ms: int
) -> None:
    """Write a line of the audit log: who (`actor`) did what (`action`) to which object (`target`).

    `before` and `after` describe the object before and after the change, mostly as JSON. None if there is nothing to
    show.
    """
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
    """Record that an operator requested a command, with a line of the audit log, before the command is published.

    - `kind`: a CommandKind. `args`: the arguments of the command as JSON.
    - `partitions`: the number of partitions that must apply the command.

    Change nothing if a command with this id was recorded before.
    """
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
    """Return the progress of a command: the number of its partitions, and how many of them have applied it.

    Return None if there is no such command. Commands that the leader sends for a new revision of a spec are found, too.
    """
    row = connection.execute(select(command_requests).where(command_requests.c.id == command_id)).first()
    if row is None:
        return revision_command(connection, command_id)
    applied = connection.execute(
        select(func.count()).select_from(commands).where(commands.c.id == command_id)
    ).scalar_one()
    return CommandProgress(row.id, row.kind, CrawlId(row.crawl_id), applied, row.partitions, row.at_ms)
