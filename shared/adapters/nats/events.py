"""The stream of events on JetStream. Its age, its size, and its number of messages (also per subject) are bounded.

The sequences of a new stream begin at the present time in microseconds since 1970. So they are greater than those of a
deleted stream, and a reader with an old position gets all events of the new stream.
"""

import base64
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import (
    NO_MESSAGE,
    SECOND_NS,
    STREAM_DIFFERS,
    STREAM_NOT_FOUND,
    ApiError,
    call,
    demand,
    failure,
    store,
    unix_ns,
)
from shared.adapters.nats.reader import StreamReader
from shared.adapters.nats.settings import MIB, StreamSettings
from shared.adapters.nats.streams import is_current, merged, signed
from shared.domain.errors import Transient
from shared.ports.broker import Delivered
from shared.ports.events import EventsState
from shared.wire.events import EVENTS, EVERY_EVENT

_REPEAT_WINDOW_S: Final = 120
_TRIES: Final = 3


def events_stream(settings: StreamSettings, first: int) -> dict[str, Any]:
    """Return JetStream's configuration of the stream of events. `first` is the sequence of its first message."""
    return {
        "name": EVENTS,
        "subjects": [EVERY_EVENT],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": int(settings.events_age_s * SECOND_NS),
        "max_bytes": settings.events_bytes,
        "max_msgs": settings.events_count,
        "max_msgs_per_subject": settings.events_per_subject,
        "duplicate_window": int(min(_REPEAT_WINDOW_S, settings.events_age_s) * SECOND_NS),
        "num_replicas": settings.replicas,
        "max_consumers": -1,
        "first_seq": first,
    }


class NatsEvents:
    """The stream of events on NATS: publishes events, looks them up and opens readers (`shared.ports.events.Events`).

    Each request to NATS takes at most `settings.answer_s` seconds.
    """

    def __init__(self, connection: NatsConnection, settings: StreamSettings) -> None:
        self._connection = connection
        self._settings = settings
        # Many readers are open at once, each for a client that may be slow. So each one holds less in memory.
        self._reading = replace(settings, read_bytes=min(settings.read_bytes, MIB))

    def __repr__(self) -> str:
        return f"<NatsEvents {self._connection!r}>"

    async def declare(self) -> None:
        for _ in range(_TRIES):
            info = await self._call(f"STREAM.INFO.{EVENTS}", None)
            if isinstance(info, dict):
                declared = signed(events_stream(self._settings, int(info["config"].get("first_seq", 0))))
                if is_current(info["config"], declared):
                    return
                answer = await self._call(f"STREAM.UPDATE.{EVENTS}", merged(info["config"], declared))
            elif info.err_code == STREAM_NOT_FOUND:
                answer = await self._call(f"STREAM.CREATE.{EVENTS}", signed(events_stream(self._settings, _now_us())))
            else:
                answer = info
            if isinstance(answer, dict):
                return
            # With these two codes another master created or deleted the stream meanwhile, so try again.
            if answer.err_code not in (STREAM_DIFFERS, STREAM_NOT_FOUND):
                raise failure(answer, f"cannot declare stream {EVENTS}")
        raise Transient(f"stream {EVENTS} is made and deleted by others")

    async def publish(self, subject: str, data: bytes, message_id: str) -> int:
        wait_s = self._settings.answer_s
        stored = await store(self._connection, subject, data, wait_s, headers={"Nats-Msg-Id": message_id})
        if isinstance(stored, ApiError):
            raise failure(stored, f"cannot store an event on {subject}")
        return stored

    async def state(self) -> EventsState:
        info = await demand(self._connection, f"STREAM.INFO.{EVENTS}", None, self._settings.answer_s)
        state = info["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        return EventsState(unix_ns(info["created"]), first if state["messages"] else last + 1, last)

    async def last(self, subject: str) -> Delivered | None:
        verb = f"STREAM.MSG.GET.{EVENTS}"
        answer = await self._call(verb, {"last_by_subj": subject})
        if isinstance(answer, ApiError):
            if answer.err_code in (NO_MESSAGE, STREAM_NOT_FOUND):
                return None
            raise failure(answer, verb)
        message = answer["message"]
        return Delivered(int(message["seq"]), unix_ns(message["time"]), base64.b64decode(message.get("data") or ""))

    async def newest(self, pattern: str) -> Sequence[Delivered]:
        reader = StreamReader(self._connection, EVENTS, [pattern], 0, self._settings, deliver_policy="last_per_subject")
        await reader.open()
        try:
            messages: list[Delivered] = []
            while len(messages) < reader.stored:
                some = await reader.read(1_000, self._settings.answer_s)
                if not some:
                    raise Transient(f"the broker does not deliver the stored messages on {pattern}")
                messages += some
            return messages
        finally:
            await reader.close()

    async def read(self, subjects: Sequence[str], after: int) -> StreamReader:
        reader = StreamReader(self._connection, EVENTS, subjects, after, self._reading)
        await reader.open()
        return reader

    async def _call(self, verb: str, body: object) -> dict[str, Any] | ApiError:
        return await call(self._connection, verb, body, self._settings.answer_s)


def _now_us() -> int:
    return time.time_ns() // 1_000
