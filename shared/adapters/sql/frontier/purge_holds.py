"""Transactions on the holds that keep reports from being purged (shared.domain.frontier.purge_holds)."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, delete, select, text, update

from shared.adapters.sql.engine import schema

_FORGOTTEN_MS: Final = 24 * 3600 * 1000
"""A hold this old belongs to a process that died. It has not prevented purges for a long time."""

_TAKE: Final = text("INSERT INTO report_holds (holder, beat, begun_at_ms) VALUES (:holder, 1, :now_ms)")


def take(connection: Connection, holder: str, now_ms: int) -> None:
    """Begin a hold, at beat 1."""
    holds = schema.report_holds
    connection.execute(delete(holds).where(holds.c.begun_at_ms < now_ms - _FORGOTTEN_MS))
    connection.execute(_TAKE, {"holder": holder, "now_ms": now_ms})


def beat(connection: Connection, holder: str) -> bool:
    """Increment the hold's beat. Return False if the hold does not exist."""
    holds = schema.report_holds
    return connection.execute(update(holds).where(holds.c.holder == holder).values(beat=holds.c.beat + 1)).rowcount == 1


def release(connection: Connection, holder: str) -> None:
    """End a hold."""
    connection.execute(delete(schema.report_holds).where(schema.report_holds.c.holder == holder))


def active(connection: Connection) -> Mapping[str, int]:
    """Return the beat of each hold, by holder."""
    holds = schema.report_holds.c
    return {holder: int(number) for holder, number in connection.execute(select(holds.holder, holds.beat))}
