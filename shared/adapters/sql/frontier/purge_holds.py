"""Transactions on holds: while a hold is active, owners purge no reports (shared.domain.frontier.purge_holds).

The holder is the process that took the hold. Each hold has a beat number, which its holder raises every few seconds. A
hold is active while its beat number grows.
"""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, delete, select, text, update

from shared.adapters.sql.engine import schema

_FORGOTTEN_MS: Final = 24 * 3600 * 1000
"""`take` deletes each hold whose last call of `beat` is this many ms ago. The process of such a hold no longer runs."""

_TAKE: Final = text("INSERT INTO report_holds (holder, beat, begun_at_ms) VALUES (:holder, 1, :now_ms)")


def take(connection: Connection, holder: str, now_ms: int) -> None:
    """Begin a hold for `holder`, a process that copies the reports. Delete the holds that ended processes left.

    The process must call `beat` regularly, which raises the hold's beat number. If this number does not grow any more,
    owners purge reports again. A later call of `take` deletes a hold whose last beat is more than a day ago.
    """
    holds = schema.report_holds
    connection.execute(delete(holds).where(holds.c.begun_at_ms < now_ms - _FORGOTTEN_MS))
    connection.execute(_TAKE, {"holder": holder, "now_ms": now_ms})


def beat(connection: Connection, holder: str, now_ms: int) -> bool:
    """Raise the beat number of a hold by 1, to keep the hold active. Return False if `holder` has no hold.

    `now_ms` is stored as the time of the last beat.
    """
    holds = schema.report_holds
    statement = update(holds).where(holds.c.holder == holder).values(beat=holds.c.beat + 1, begun_at_ms=now_ms)
    return connection.execute(statement).rowcount == 1


def release(connection: Connection, holder: str) -> None:
    """End the hold of `holder`, so that it no longer keeps owners from purging reports."""
    connection.execute(delete(schema.report_holds).where(schema.report_holds.c.holder == holder))


def beats(connection: Connection) -> Mapping[str, int]:
    """Return the beat number of every stored hold, by holder.

    Some of these holds may be inactive. The caller sees that a hold is active if its number grows from call to call.
    """
    holds = schema.report_holds.c
    return {holder: int(number) for holder, number in connection.execute(select(holds.holder, holds.beat))}
