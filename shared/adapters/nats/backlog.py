"""Count reports that are stored but not applied. Only the owners' positions distinguish them from applied ones."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import NO_MESSAGE, SECOND_NS, ApiError, call, demand, failure, unix_ns
from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import Partition
from shared.wire import subjects

_CONCURRENCY: Final = 16
"""How many subjects are queried at once."""


async def unapplied(connection: NatsConnection, positions: Mapping[Partition, Position], wait_s: float) -> Waiting:
    """Count the reports behind the positions (`Backlog.unapplied`), with at most one request per stored subject."""
    every = {"subjects_filter": ">"}
    info = await demand(connection, f"STREAM.INFO.{subjects.REPORTS}", every, wait_s)
    created_ns, now_ns = unix_ns(info["created"]), unix_ns(info["ts"])
    stored: dict[str, int] = info["state"].get("subjects") or {}
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def oldest_ns(subject: str) -> int | None:
        partition, kind = subjects.reported(subject)
        position = positions.get(partition, Position())
        applied = position.of(kind) if position.stream_created_ns == created_ns else 0
        async with gate:
            return await _next_ns(connection, subject, applied, wait_s)

    times = await asyncio.gather(*map(oldest_ns, stored))
    waiting = {subject: at_ns for subject, at_ns in zip(stored, times, strict=True) if at_ns is not None}
    if not waiting:
        return Waiting(0, None)
    age_s = max(0.0, (now_ns - min(waiting.values())) / SECOND_NS)
    return Waiting(sum(stored[subject] for subject in waiting), age_s)


async def _next_ns(connection: NatsConnection, subject: str, after: int, wait_s: float) -> int | None:
    """Return when the first report after sequence `after` was stored on the subject (Unix ns), or None."""
    verb = f"STREAM.MSG.GET.{subjects.REPORTS}"
    answer = await call(connection, verb, {"seq": after + 1, "next_by_subj": subject}, wait_s)
    if isinstance(answer, ApiError):
        if answer.err_code == NO_MESSAGE:
            return None
        raise failure(answer, verb)
    message: dict[str, Any] = answer["message"]
    return unix_ns(message["time"])
