"""Streams, consumers and the bucket as desired state, applied idempotently and never at the cost of a message.

What is declared says by which declaration (`DECLARATION`). One of a later release stays as it is: while a cluster is
upgraded, a master of the release before that starts takes nothing of it back.
"""

from typing import Any, Final

import structlog

from shared.adapters.nats.connection import Connection
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
DECLARATION: Final = 1
"""Raised with every release that declares something else than the one before, settings aside."""

_DECLARED_BY: Final = "orb_declaration"


def visits_stream(pool: str, settings: StreamSettings) -> dict[str, Any]:
    """A pool's work queue: one message a subject, refused while the previous one is queued or in flight."""
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
    """The one durable consumer that all workers of a pool share; the owner, not the broker, counts attempts."""
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
    """Every partition's reports, bounded per subject; the owners read by position and purge behind their commits."""
    return {
        "name": subjects.REPORTS,
        "subjects": list(subjects.REPORT_SUBJECTS),
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
    """The key-value bucket of robots.txt answers: a cache, so the oldest go when it is full."""
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
    """The items of all crawls, kept for whoever wants them: the oldest go by age, and when there are too many bytes."""
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


async def declare(connection: Connection, pools: list[str], settings: StreamSettings) -> None:
    """Make everything be as declared. Raises Permanent when the server cannot, or could only by dropping messages."""
    await _declare_stream(connection, reports_stream(settings), settings.answer_s)
    await _declare_stream(connection, robots_stream(settings), settings.answer_s)
    await _declare_stream(connection, items_stream(settings), settings.answer_s)
    for pool in pools:
        wanted = visits_stream(pool, settings)
        await _declare_stream(connection, wanted, settings.answer_s)
        await _declare_consumer(connection, wanted["name"], visits_consumer(settings), settings.answer_s)


def signed(wanted: dict[str, Any]) -> dict[str, Any]:
    """What is wanted, and by which declaration."""
    return {**wanted, "metadata": {_DECLARED_BY: str(DECLARATION)}}


def stands(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether nothing is to be done: it is as it is wanted (signed), or a later release has declared it. What the
    server adds of its own is not looked at."""
    signature = (current.get("metadata") or {}).get(_DECLARED_BY, "0")
    if signature.isdecimal() and int(signature) > DECLARATION:
        return True
    said = {key: value for key, value in wanted.items() if key != "metadata"}
    return signature == str(DECLARATION) and {key: current.get(key) for key in said} == said


async def _declare_stream(connection: Connection, unsigned: dict[str, Any], wait_s: float) -> None:
    wanted = signed(unsigned)
    name = wanted["name"]
    answer = await call(connection, f"STREAM.CREATE.{name}", wanted, wait_s)
    if isinstance(answer, dict):
        return
    # Before it looks whether a stream is there, a server looks whether it has room for one more.
    if answer.err_code not in {STREAM_DIFFERS, *NO_RESOURCES}:
        raise failure(answer, f"cannot create stream {name}")
    lossy = name in (ROBOTS_STREAM, ITEMS)  # a cache, and what is kept only for so long
    info = await call(connection, f"STREAM.INFO.{name}", None if lossy else {"subjects_filter": ">"}, wait_s)
    if isinstance(info, ApiError):
        no_room = answer.err_code in NO_RESOURCES and info.err_code == STREAM_NOT_FOUND
        raise failure(answer if no_room else info, f"cannot create stream {name}")
    if stands(info["config"], wanted):
        return
    if not lossy:
        _refuse_loss(info, wanted)
    answer = await call(connection, f"STREAM.UPDATE.{name}", upon(info["config"], wanted), wait_s)
    if isinstance(answer, ApiError):
        raise failure(answer, f"cannot update stream {name} to what is declared")


def upon(current: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """What is wanted of a stream that is there, with all that is not declared as its operators have it (compression,
    placement, a description), and no fewer replicas: a master that was not told of a cluster takes nobody's copies."""
    replicas = max(wanted["num_replicas"], int(current.get("num_replicas", 1)))
    metadata = {**(current.get("metadata") or {}), **wanted["metadata"]}
    return {**current, **wanted, "num_replicas": replicas, "metadata": metadata}


def _refuse_loss(info: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A server that is given a lower bound deletes what lies above it, whatever the discard policy says."""
    name = wanted["name"]
    state, current = info["state"], info["config"]
    if 0 < wanted["max_bytes"] < state["bytes"]:
        raise Permanent(f"stream {name} holds {state['bytes']} bytes, more than its declared {wanted['max_bytes']}")
    bound = wanted["max_msgs_per_subject"]
    if not 0 < bound < _unbounded(current.get("max_msgs_per_subject", -1)):
        return
    for subject, count in (state.get("subjects") or {}).items():
        if count > bound:
            raise Permanent(f"{subject} holds {count} messages, more than the declared bound of {bound} a subject")


async def _declare_consumer(connection: Connection, stream: str, unsigned: dict[str, Any], wait_s: float) -> None:
    wanted = signed(unsigned)
    info = await call(connection, f"CONSUMER.INFO.{stream}.{wanted['name']}", None, wait_s)
    if isinstance(info, dict):
        wanted = _keeping_waiting(stream, wanted, info["config"])
        if stands(info["config"], wanted):
            return
        metadata = {**(info["config"].get("metadata") or {}), **wanted["metadata"]}
        wanted = {**info["config"], **wanted, "metadata": metadata}
    body = {"stream_name": stream, "config": wanted}
    answer = await call(connection, f"CONSUMER.CREATE.{stream}.{wanted['name']}", body, wait_s)
    if isinstance(answer, ApiError):
        raise failure(answer, f"cannot declare consumer {wanted['name']} of {stream}")


def _keeping_waiting(stream: str, wanted: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """What is wanted of a consumer, with the `max_waiting` that it was made with: a server refuses another one."""
    kept = current.get("max_waiting", wanted["max_waiting"])
    if kept != wanted["max_waiting"]:
        log.warning("consumer.kept", stream=stream, max_waiting=kept, wanted=wanted["max_waiting"])
    return {**wanted, "max_waiting": kept}


def _unbounded(limit: int) -> float:
    return limit if limit > 0 else float("inf")
