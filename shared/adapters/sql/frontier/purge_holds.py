"""Transactions on holds: while a hold is active, owners purge no reports (shared.domain.frontier.purge_holds)."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, delete, select, text, update

from shared.adapters.sql.engine import schema

_FORGOTTEN_MS: Final = 24 * 3600 * 1000
"""`take` deletes each hold whose last call of `beat` is this many ms ago. The process of such a hold no longer runs."""

_TAKE: Final = text("INSERT INTO report_holds (holder, beat, begun_at_ms) VALUES (:holder, 1, :now_ms)")


def take(connection: Connection, holder: str, now_ms: int) -> None:
    """Begin a hold for `holder`, a process that copies the reports. Delete the holds that ended processes left.

    The process must call `beat` regularly, which raises the hold's number. If the number does not grow any more, owners
    purge reports again. A hold is deleted a day after the last such call.
    """
    holds = schema.report_holds
    connection.execute(delete(holds).where(holds.c.begun_at_ms < now_ms - _FORGOTTEN_MS))
    connection.execute(_TAKE, {"holder": holder, "now_ms": now_ms})


def beat(connection: Connection, holder: str, now_ms: int) -> bool:
    """Raise the number of a hold by 1, to show that its process still runs. Return False if the hold does not exist.

    Store `now_ms` as the time of this call.
    """
    holds = schema.report_holds
    statement = update(holds).where(holds.c.holder == holder).values(beat=holds.c.beat + 1, begun_at_ms=now_ms)
    return connection.execute(statement).rowcount == 1


def release(connection: Connection, holder: str) -> None:
    """End the hold of `holder`, so that it no longer keeps owners from purging reports."""
    connection.execute(delete(schema.report_holds).where(schema.report_holds.c.holder == holder))


def active(connection: Connection) -> Mapping[str, int]:
    """Return a mapping from the holder of each hold to its beat, a number that its process keeps raising."""
    holds = schema.report_holds.c
    return {holder: int(number) for holder, number in connection.execute(select(holds.holder, holds.beat))}
