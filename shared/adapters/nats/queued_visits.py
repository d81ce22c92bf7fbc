"""Lists and reads the URL shards in the queues of the pools, without delivering them to a worker."""

import base64
from collections.abc import Sequence
from typing import Any, Final

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import NO_MESSAGE, STREAM_NOT_FOUND, ApiError, call, demand, failure
from shared.adapters.nats.streams import VISITS_CONSUMER
from shared.domain.ids import Partition
from shared.ports.broker import QueuedVisit, StoredVisit
from shared.wire import subjects

_QUEUES: Final = subjects.visits_stream("")


async def listed_visits(connection: NatsConnection, partition: Partition, wait_s: float) -> Sequence[QueuedVisit]:
    """Return where a partition's URL shards are queued: the pool, host and slot of each, in the queues of all pools.

    A queue that is deleted during the call is left out.
    """
    every = subjects.visits_of(partition)
    listed: list[QueuedVisit] = []
    for stream in await _streams(connection, every, wait_s):
        verb = f"STREAM.INFO.{stream}"
        answer = await call(connection, verb, {"subjects_filter": every}, wait_s)
        if isinstance(answer, ApiError):
            if answer.err_code == STREAM_NOT_FOUND:
                continue
            raise failure(answer, verb)
        places = map(subjects.queued_visit, answer["state"].get("subjects") or {})
        listed += [place for place in places if place is not None]
    return listed


async def stored_visit(
    connection: NatsConnection, partition: Partition, place: QueuedVisit, wait_s: float
) -> StoredVisit | None:
    """Return the URL shard that is queued at `place` (pool, host and slot) now, or None if there is none.

    The stream's leader answers, because a replica may not have the newest messages yet.
    """
    verb = f"STREAM.MSG.GET.{subjects.visits_stream(place.pool)}"
    subject = subjects.visit(place.pool, partition, place.host_id, place.slot)
    answer = await call(connection, verb, {"last_by_subj": subject}, wait_s)
    if isinstance(answer, ApiError):
        if answer.err_code in (NO_MESSAGE, STREAM_NOT_FOUND):
            return None
        raise failure(answer, verb)
    message: dict[str, Any] = answer["message"]
    return StoredVisit(int(message["seq"]), base64.b64decode(message.get("data") or ""))


async def waits(connection: NatsConnection, partition: Partition, place: QueuedVisit, wait_s: float) -> bool:
    """Return True if a URL shard is queued at `place` (pool, host and slot) and was never delivered to a worker."""
    stored = await stored_visit(connection, partition, place, wait_s)
    if stored is None:
        return False
    verb = f"CONSUMER.INFO.{subjects.visits_stream(place.pool)}.{VISITS_CONSUMER}"
    info = await demand(connection, verb, None, wait_s)
    # The consumer makes first deliveries in the order of the stream.
    return stored.sequence > int(info["delivered"]["stream_seq"])


async def _streams(connection: NatsConnection, subject: str, wait_s: float) -> list[str]:
    """Return the names of all pools' streams that may have messages on `subject`, which may be a pattern."""
    names: list[str] = []
    while True:
        answer = await demand(connection, "STREAM.NAMES", {"subject": subject, "offset": len(names)}, wait_s)
        page: list[str] = answer.get("streams") or []
        names += page
        if not page or len(names) >= answer["total"]:
            return [name for name in names if name.startswith(_QUEUES)]
