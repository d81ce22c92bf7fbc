"""Lists and reads the shards in the pools' queues, without taking them."""

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
    """Return the places of a partition's queued shards in the queues of all pools (Broker.queued_visits).

    A stream that is deleted meanwhile has none.
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
    """Return the shard that is queued at `place` now, or None (Broker.visit_at).

    It is read from the stream's leader, since a replica may be behind.
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
    """Return True if the shard that is queued at `place` was never delivered (Broker.visit_waits).

    First deliveries are in the order of the stream, so the consumer's last sequence decides.
    """
    stored = await stored_visit(connection, partition, place, wait_s)
    if stored is None:
        return False
    verb = f"CONSUMER.INFO.{subjects.visits_stream(place.pool)}.{VISITS_CONSUMER}"
    info = await demand(connection, verb, None, wait_s)
    return stored.sequence > int(info["delivered"]["stream_seq"])


async def _streams(connection: NatsConnection, subject: str, wait_s: float) -> list[str]:
    """Return the pools' streams that may have messages on `subject`. The server lists them in pages."""
    names: list[str] = []
    while True:
        answer = await demand(connection, "STREAM.NAMES", {"subject": subject, "offset": len(names)}, wait_s)
        page: list[str] = answer.get("streams") or []
        names += page
        if not page or len(names) >= answer["total"]:
            return [name for name in names if name.startswith(_QUEUES)]
