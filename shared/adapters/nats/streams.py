"""Creates and updates the streams, consumers and the key-value bucket that the crawler needs, without loss of messages.

A declaration is a dictionary in the form of JetStream's configuration. Each has a number in its metadata
(`DECLARATION`). A declaration of a later release is not changed: a master of the earlier release that starts during an
upgrade of the cluster must not revert it.
"""

from typing import Any, Final

import structlog

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import (
    NO_RESOURCES,
    SECOND_NS,
    STREAM_DIFFERS,
    STREAM_NOT_FOUND,
    ApiError,
    call,
    failure,
)
from shared.adapters.nats.settings import StreamSettings
from shared.domain.errors import Permanent
from shared.wire import subjects
from shared.wire.items import EVERY_ITEM, ITEMS

log = structlog.get_logger(__name__)

VISITS_CONSUMER: Final = "visits"
ROBOTS_STREAM: Final = f"KV_{subjects.ROBOTS_BUCKET}"
ROBOTS_SUBJECT: Final = f"$KV.{subjects.ROBOTS_BUCKET}."
REPEAT_WINDOW_S: Final = 120
DECLARATION: Final = 2
"""The number in all declarations of this release. It is increased with every release whose declarations differ from the
one before, apart from settings."""

_DECLARED_BY: Final = "orb_declaration"


def visits_stream(pool: str, settings: StreamSettings) -> dict[str, Any]:
    """Return the declaration of a pool's queue of shards, a work queue.

    A subject has one message, and refuses another while that is queued or in flight.
    """
    return {
        "name": subjects.visits_stream(pool),
        "subjects": [subjects.visits_filter(pool)],
        "retention": "workqueue",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "discard_new_per_subject": True,
        "max_bytes": settings.visits_bytes,
        "num_replicas": settings.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
    }


def visits_consumer(settings: StreamSettings) -> dict[str, Any]:
    """Return the declaration of the durable consumer that all workers of a pool share.

    The owner, not the broker, counts attempts.
    """
    return {
        "name": VISITS_CONSUMER,
        "durable_name": VISITS_CONSUMER,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "explicit",
        "ack_wait": int(settings.ack_wait_s * SECOND_NS),
        "max_ack_pending": settings.max_ack_pending,
        "max_waiting": settings.max_waiting,
        "max_deliver": -1,
    }


def reports_stream(settings: StreamSettings) -> dict[str, Any]:
    """Return the declaration of the stream of all reports, bounded per subject.

    Owners read it by position and purge what they have committed.
    """
    return {
        "name": subjects.REPORTS,
        "subjects": [*subjects.REPORT_SUBJECTS, subjects.COMMANDS],
        "retention": "limits",
        "storage": "file",
        "max_msgs_per_subject": settings.reports_per_subject,
        "discard": "new",
        "discard_new_per_subject": True,
        "max_bytes": settings.reports_bytes,
        "allow_direct": True,
        "duplicate_window": REPEAT_WINDOW_S * SECOND_NS,
        "num_replicas": settings.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
    }


def robots_stream(settings: StreamSettings) -> dict[str, Any]:
    """Return the declaration of the key-value bucket of robots.txt answers.

    It is a cache, so the oldest are dropped when it is full.
    """
    return {
        "name": ROBOTS_STREAM,
        "subjects": [f"{ROBOTS_SUBJECT}>"],
        "retention": "limits",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "discard": "old",
        "max_bytes": settings.robots_bytes,
        "max_age": int(settings.robots_ttl_s * SECOND_NS),
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "num_replicas": settings.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
    }


def items_stream(settings: StreamSettings) -> dict[str, Any]:
    """Return the declaration of the stream of all crawls' items, for users' own consumers.

    The oldest are dropped by age and by bytes.
    """
    return {
        "name": ITEMS,
        "subjects": [EVERY_ITEM],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": int(settings.items_age_s * SECOND_NS),
        "max_bytes": settings.items_bytes,
        "max_msgs_per_subject": -1,
        "allow_direct": True,
        "duplicate_window": int(min(REPEAT_WINDOW_S, settings.items_age_s) * SECOND_NS),
        "num_replicas": settings.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
    }


async def declare(connection: NatsConnection, pools: list[str], settings: StreamSettings) -> None:
    """Create or update all streams, consumers and the bucket, with one queue for each of `pools`.

    Raise Permanent if the server cannot, or only by dropping messages.
    """
    await _declare_stream(connection, reports_stream(settings), settings.answer_s)
    await _declare_stream(connection, robots_stream(settings), settings.answer_s)
    await _declare_stream(connection, items_stream(settings), settings.answer_s)
    for pool in pools:
        declared = visits_stream(pool, settings)
        await _declare_stream(connection, declared, settings.answer_s)
        await _declare_consumer(connection, declared["name"], visits_consumer(settings), settings.answer_s)


def signed(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the declaration with DECLARATION, its number, in the metadata."""
    return {**declared, "metadata": {_DECLARED_BY: str(DECLARATION)}}


def is_current(current: dict[str, Any], declared: dict[str, Any]) -> bool:
    """Return True if the existing configuration `current` needs no change: it matches, or a later release declared it.

    `declared` has its number in the metadata (`signed`). Fields that the server adds to `current` are ignored.
    """
    signature = (current.get("metadata") or {}).get(_DECLARED_BY, "0")
    if signature.isdecimal() and int(signature) > DECLARATION:
        return True
    fields = {key: value for key, value in declared.items() if key != "metadata"}
    return signature == str(DECLARATION) and {key: current.get(key) for key in fields} == fields


async def _declare_stream(connection: NatsConnection, unsigned: dict[str, Any], wait_s: float) -> None:
    declared = signed(unsigned)
    name = declared["name"]
    answer = await call(connection, f"STREAM.CREATE.{name}", declared, wait_s)
    if isinstance(answer, dict):
        return
    # A server checks its limits before it checks whether the stream exists.
    if answer.err_code not in {STREAM_DIFFERS, *NO_RESOURCES}:
        raise failure(answer, f"cannot create stream {name}")
    lossy = name in (ROBOTS_STREAM, ITEMS)  # A cache, and items that are kept for a limited time only.
    info = await call(connection, f"STREAM.INFO.{name}", None if lossy else {"subjects_filter": ">"}, wait_s)
    if isinstance(info, ApiError):
        full = answer.err_code in NO_RESOURCES and info.err_code == STREAM_NOT_FOUND
        raise failure(answer if full else info, f"cannot create stream {name}")
    if is_current(info["config"], declared):
        return
    if not lossy:
        _refuse_loss(info, declared)
    answer = await call(connection, f"STREAM.UPDATE.{name}", merged(info["config"], declared), wait_s)
    if isinstance(answer, ApiError):
        raise failure(answer, f"cannot update stream {name} to what is declared")


def merged(current: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration to set for an existing stream: `declared` on top of `current`.

    Settings that are not declared stay as the operators set them (compression, placement, a description). The number of
    replicas never decreases, so that a master that is not configured for a cluster deletes no copies.
    """
    replicas = max(declared["num_replicas"], int(current.get("num_replicas", 1)))
    metadata = {**(current.get("metadata") or {}), **declared["metadata"]}
    return {**current, **declared, "num_replicas": replicas, "metadata": metadata}


def _refuse_loss(info: dict[str, Any], declared: dict[str, Any]) -> None:
    """Raise Permanent if a lower bound would delete messages, which a server does whatever the discard policy."""
    name = declared["name"]
    state, current = info["state"], info["config"]
    if 0 < declared["max_bytes"] < state["bytes"]:
        raise Permanent(f"stream {name} holds {state['bytes']} bytes, more than its declared {declared['max_bytes']}")
    bound = declared["max_msgs_per_subject"]
    if not 0 < bound < _unbounded(current.get("max_msgs_per_subject", -1)):
        return
    for subject, count in (state.get("subjects") or {}).items():
        if count > bound:
            raise Permanent(f"{subject} holds {count} messages, more than the declared bound of {bound} a subject")


async def _declare_consumer(connection: NatsConnection, stream: str, unsigned: dict[str, Any], wait_s: float) -> None:
    declared = signed(unsigned)
    info = await call(connection, f"CONSUMER.INFO.{stream}.{declared['name']}", None, wait_s)
    if isinstance(info, dict):
        declared = _keeping_waiting(stream, declared, info["config"])
        if is_current(info["config"], declared):
            return
        metadata = {**(info["config"].get("metadata") or {}), **declared["metadata"]}
        declared = {**info["config"], **declared, "metadata": metadata}
    body = {"stream_name": stream, "config": declared}
    answer = await call(connection, f"CONSUMER.CREATE.{stream}.{declared['name']}", body, wait_s)
    if isinstance(answer, ApiError):
        raise failure(answer, f"cannot declare consumer {declared['name']} of {stream}")


def _keeping_waiting(stream: str, declared: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """Return the declaration of a consumer with its current `max_waiting`, because a server refuses to change that."""
    kept = current.get("max_waiting", declared["max_waiting"])
    if kept != declared["max_waiting"]:
        log.warning("consumer_change.skipped", stream=stream, max_waiting=kept, requested=declared["max_waiting"])
    return {**declared, "max_waiting": kept}


def _unbounded(limit: int) -> float:
    return limit if limit > 0 else float("inf")
