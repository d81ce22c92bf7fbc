"""Creates and updates the crawler's streams, consumers and key-value bucket, without deleting URL shards or reports.

A declaration is a dictionary in the form of JetStream's configuration. Its metadata contain the number `DECLARATION` of
the release that made it. A stream with the declaration of a later release is not changed. So a master of an earlier
release cannot undo an upgrade.
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
"""The number in all declarations of this release. A release that changes the code of a declaration must increase it.

Values that come from StreamSettings may change without a new number."""

_DECLARED_BY: Final = "orb_declaration"


def visits_stream(pool: str, settings: StreamSettings) -> dict[str, Any]:
    """Return the declaration of a pool's queue of URL shards. It is a work queue with one message per subject.

    While the message of a subject is queued or delivered, the stream refuses another one on that subject.
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

    It delivers a shard any number of times. The owner counts attempts, not the broker.
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
    """Return the declaration of the stream of all reports and commands. The number of messages per subject is bounded.

    Owners read it from a stored position, and purge what they have applied.
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
    """Return the declaration of the key-value bucket for robots.txt files.

    It is a cache: when it is full, the oldest records are deleted.
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
    """Return the declaration of the stream of all crawls' items, which users' own consumers may read.

    Its age and size are bounded, and the oldest messages are deleted first.
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
    """Create or update the streams of reports, robots.txt records and items, and the queue of each pool's URL shards.

    Raise Permanent if the server refuses a declaration, or could apply it only by deleting URL shards or reports.
    """
    await _declare_stream(connection, reports_stream(settings), settings.answer_s)
    await _declare_stream(connection, robots_stream(settings), settings.answer_s)
    await _declare_stream(connection, items_stream(settings), settings.answer_s)
    for pool in pools:
        declared = visits_stream(pool, settings)
        await _declare_stream(connection, declared, settings.answer_s)
        await _declare_consumer(connection, declared["name"], visits_consumer(settings), settings.answer_s)


def signed(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the declaration with this release's number (DECLARATION) in its metadata."""
    return {**declared, "metadata": {_DECLARED_BY: str(DECLARATION)}}


def is_current(current: dict[str, Any], declared: dict[str, Any]) -> bool:
    """Return True if the existing configuration `current` needs no update to `declared`.

    The release that made `current` has left its number in the metadata of `current`.

    - If a later release made `current`: return True, even if `current` differs from `declared`.
    - If this release made `current`: return True if all fields of `declared` have the same values in `current`. The
      metadata are not compared.
    - Otherwise: return False.
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
    """Return the new configuration of an existing stream: `current` with the declared fields set as in `declared`.

    Settings that are not declared stay as operators set them (compression, placement, a description). The number of
    replicas is never reduced.
    """
    # A master without settings for a cluster declares one replica, and must not delete the others.
    replicas = max(declared["num_replicas"], int(current.get("num_replicas", 1)))
    metadata = {**(current.get("metadata") or {}), **declared["metadata"]}
    return {**current, **declared, "num_replicas": replicas, "metadata": metadata}


def _refuse_loss(info: dict[str, Any], declared: dict[str, Any]) -> None:
    """Raise Permanent if applying `declared` to a stream would delete messages, because a bound is too low for them.

    A server deletes messages at such a change even if the stream's discard policy is "new". `info` describes the
    stream.
    """
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
    """Return the declaration of a consumer, with `max_waiting` set to the value of the existing consumer.

    `max_waiting` limits the open pulls. NATS refuses to change it. Log a warning if the declared value is another one.
    """
    kept = current.get("max_waiting", declared["max_waiting"])
    if kept != declared["max_waiting"]:
        log.warning("consumer_change.skipped", stream=stream, max_waiting=kept, requested=declared["max_waiting"])
    return {**declared, "max_waiting": kept}


def _unbounded(limit: int) -> float:
    return limit if limit > 0 else float("inf")
