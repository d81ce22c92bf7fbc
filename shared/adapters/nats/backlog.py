"""Reports that are stored and not applied: only the owners' positions tell them from those that wait to be purged."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from shared.adapters.nats.connection import Connection
from shared.adapters.nats.jetstream import NO_MESSAGE, SECOND_NS, ApiError, call, demand, failure, unix_ns
from shared.domain.frontier import Position
from shared.domain.ids import Partition
from shared.domain.lag import Waiting
from shared.wire import subjects

_QUESTIONS: Final = 16
"""So many subjects are asked about at once."""


async def unapplied(connection: Connection, positions: Mapping[Partition, Position], wait_s: float) -> Waiting:
    """See `Backlog.unapplied`. At most one question for each subject on which something stands."""
    every = {"subjects_filter": ">"}
    info = await demand(connection, f"STREAM.INFO.{subjects.REPORTS}", every, wait_s)
    created_ns, now_ns = unix_ns(info["created"]), unix_ns(info["ts"])
    standing: dict[str, int] = info["state"].get("subjects") or {}
    gate = asyncio.Semaphore(_QUESTIONS)

    async def oldest_ns(subject: str) -> int | None:
        partition, kind = subjects.reported(subject)
        position = positions.get(partition, Position())
        applied = position.of(kind) if position.stream_created_ns == created_ns else 0
        async with gate:
            return await _next_ns(connection, subject, applied, wait_s)

    asked = await asyncio.gather(*map(oldest_ns, standing))
    waiting = {subject: at_ns for subject, at_ns in zip(standing, asked, strict=True) if at_ns is not None}
    if not waiting:
        return Waiting(0, None)
    age_s = max(0.0, (now_ns - min(waiting.values())) / SECOND_NS)
    return Waiting(sum(standing[subject] for subject in waiting), age_s)


async def _next_ns(connection: Connection, subject: str, after: int, wait_s: float) -> int | None:
    """When the first report behind `after` was stored on the subject; None when there is none."""
    verb = f"STREAM.MSG.GET.{subjects.REPORTS}"
    answer = await call(connection, verb, {"seq": after + 1, "next_by_subj": subject}, wait_s)
    if isinstance(answer, ApiError):
        if answer.err_code == NO_MESSAGE:
            return None
        raise failure(answer, verb)
    message: dict[str, Any] = answer["message"]
    return unix_ns(message["time"])
