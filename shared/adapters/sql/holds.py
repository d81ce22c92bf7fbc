"""Transactions on the holds that keep reports from being purged (shared.domain.holds)."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, delete, select, text, update

from shared.adapters.sql import schema

_FORGOTTEN_MS: Final = 24 * 3600 * 1000
"""A hold this old was left behind by somebody who died: it has long ceased to count."""

_TAKE: Final = text("INSERT INTO report_holds (holder, beat, begun_at_ms) VALUES (:holder, 1, :now_ms)")


def take(connection: Connection, holder: str, now_ms: int) -> None:
    """Begin a hold, at beat 1."""
    holds = schema.report_holds
    connection.execute(delete(holds).where(holds.c.begun_at_ms < now_ms - _FORGOTTEN_MS))
    connection.execute(_TAKE, {"holder": holder, "now_ms": now_ms})


def beat(connection: Connection, holder: str) -> bool:
    """One beat more; False when the hold is gone."""
    holds = schema.report_holds
    return connection.execute(update(holds).where(holds.c.holder == holder).values(beat=holds.c.beat + 1)).rowcount == 1


def release(connection: Connection, holder: str) -> None:
    """End a hold."""
    connection.execute(delete(schema.report_holds).where(schema.report_holds.c.holder == holder))


def standing(connection: Connection) -> Mapping[str, int]:
    """The beat of every hold that there is."""
    holds = schema.report_holds.c
    return {holder: int(number) for holder, number in connection.execute(select(holds.holder, holds.beat))}
