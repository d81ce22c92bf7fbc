"""Reads a stream in order with an ephemeral pull consumer, and creates the consumer again if it is lost.

The caller stores the position. The consumer is only a cursor in the server's memory, and acknowledges nothing. It is
lost at a reconnect, a restart or a failover, or if it is not used for long. The reader then creates a new one at its
position. The consumer numbers its deliveries without a gap. If a number is skipped, messages were lost on the way. The
reader then creates a new consumer after the last message that it received.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.adapters.nats.connection import NatsConnection, reason_of, status_of
from shared.adapters.nats.jetstream import (
    API,
    NO_MESSAGE,
    SECOND_NS,
    ApiError,
    call,
    demand,
    failure,
    origin_of,
    text_of,
    unix_ns,
)
from shared.adapters.nats.settings import StreamSettings
from shared.domain.errors import StreamReplaced, Transient
from shared.ports.broker import Delivered, StreamState

log = structlog.get_logger(__name__)

_PULL_S: Final = 120
_HEARTBEAT_S: Final = 10
_SILENCE_S: Final = 1.5 * _HEARTBEAT_S
"""The broker sends a heartbeat while a pull is open. After this time without one, the reader creates a new cursor."""

_FIRST_S: Final = 0.05
"""A read waits at least this many seconds for the first message of a new pull.

So even a read with `wait_s` 0 gets messages that are stored already.
"""
_REST_S: Final = 0.1
"""A read with at least one message waits at most this many seconds for each further message.

The read waits only while the broker has more stored messages. If no message arrives in this time, the read returns the
messages that have arrived.
"""
_CURSORS: Final = 3
"""The most cursors (consumers on the server) that one read may create."""
_OVERHEAD: Final = 4096
_PULL_ENDED: Final = frozenset({"404", "408"})
_ENDED_BY_SIZE: Final = "message size exceeds maxbytes"
_BATCH_COMPLETED: Final = "batch completed"


async def stream_state(connection: NatsConnection, stream: str, wait_s: float) -> StreamState:
    """Return the creation time and the last sequence of a stream. The stream's leader answers."""
    info = await demand(connection, f"STREAM.INFO.{stream}", None, wait_s)
    return StreamState(created_ns=unix_ns(info["created"]), last_sequence=int(info["state"]["last_seq"]))


async def continues(connection: NatsConnection, stream: str, sequence: int, at_ns: int, wait_s: float) -> bool:
    """Check if a stream is still the one from which the caller has read a message.

    The message had the number `sequence`, and was stored at the time `at_ns` (Unix ns). It may be purged by now.
    Return False if the stream was replaced, or restored to a state before the message. Otherwise return True.
    """
    answer = await call(connection, f"STREAM.MSG.GET.{stream}", {"seq": sequence}, wait_s)
    if isinstance(answer, ApiError):
        if answer.err_code != NO_MESSAGE:
            raise failure(answer, f"cannot read {stream}")
    elif unix_ns(answer["message"]["time"]) != at_ns:
        return False
    # In a restored stream, a message at or before `sequence` was stored after `at_ns`. A temporary consumer that begins
    # after `at_ns` shows this, even if the messages around `sequence` were purged.
    name = f"place-{secrets.token_hex(8)}"
    config = {
        "name": name, "deliver_policy": "by_start_time", "opt_start_time": text_of(at_ns + 1), "ack_policy": "none",
        "inactive_threshold": int(wait_s * SECOND_NS), "mem_storage": True, "num_replicas": 1,
    }  # fmt: skip
    placed = await demand(
        connection, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}, wait_s
    )
    await call(connection, f"CONSUMER.DELETE.{stream}.{name}", None, wait_s)
    return int(placed["delivered"]["stream_seq"]) >= sequence


class StreamReader:
    """Reads the messages of one stream in order, for reports and for events.

    Only one pull is open at any time. So the reader keeps at most one batch, or `read_bytes` bytes, in memory.
    """

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        subjects: Sequence[str],
        after: int,
        settings: StreamSettings,
        *,
        deliver_policy: Literal["by_start_sequence", "last_per_subject"] = "by_start_sequence",
        at_ns: int | None = None,
    ) -> None:
        """Create a reader of the messages on `subjects` after sequence `after`. Call `open` before reading.

        - `subjects`: subjects or patterns of the stream that do not overlap.
        - `deliver_policy`: "last_per_subject" reads only the newest message of each subject, and ignores `after`.
        - `at_ns`: when the message at `after` was stored (Unix ns), to detect that the stream was restored to an
          earlier state. 0: unknown for `after`; the check begins with the next message. None: do not check.
        """
        self._connection = connection
        self._stream = stream
        self._subjects = tuple(subjects)
        self._settings = settings
        self._policy = deliver_policy
        self._position = after
        self._at_ns = at_ns
        self._line = connection.line
        self.stored = 0
        """How many messages there were to read when the cursor was created."""
        self._kept: deque[Delivered] = deque()
        self._created_ns: int | None = None
        self._inbox = connection.new_inbox()
        self._subscription: Subscription | None = None
        self._consumer: str | None = None
        self._cursors = 0
        self._pulls = 0
        self._next = 1
        self._left = 0
        self._pending = 0
        self._last_at = 0.0
        self._changed = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Create the reader's cursor, a consumer on the server.

        Raise StreamReplaced (a Transient) if the stream is not the one to which the reader's position belongs.
        """
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._received)
        self._connection.watch(self._disconnected)
        try:
            await self._place()
        except BaseException:
            await self.close()
            raise

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        if not self._kept:
            await self._await_first(max_count, wait_s)
        if self._kept:
            await self._await_rest(max_count)
        kept = self._kept
        return [kept.popleft() for _ in range(min(max_count, len(kept)))]

    async def purge(self, through: int) -> bool:
        """Delete the messages of the reader's subjects up to and including sequence `through`.

        Return True if they are deleted. Return False, and delete nothing, if the reader has lost its cursor.
        """
        if self._consumer is None or self._line != self._connection.line:
            return False
        for subject in self._subjects:
            what = {"filter": subject, "seq": through + 1}
            await demand(
                self._connection, f"STREAM.PURGE.{self._stream}", what, self._settings.answer_s, line=self._line
            )
        return True

    async def close(self) -> None:
        """Delete the cursor on the server.

        If that fails, the server deletes it after `reader_idle_s` seconds without a pull.
        """
        self._closed = True
        consumer = self._consumer
        self._lose("closed")
        self._connection.unwatch(self._disconnected)
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
        if consumer is not None:
            try:
                await demand(
                    self._connection, f"CONSUMER.DELETE.{self._stream}.{consumer}", None, self._settings.answer_s
                )
            except Transient as error:
                log.debug("stream_cursor.abandoned", subject=self._name, error=str(error))

    async def _await_first(self, max_count: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        cursors = self._cursors
        while not self._kept:
            if self._closed:
                raise Transient(f"the reader of {self._name} is closed")
            if self._consumer is None:
                if self._cursors - cursors >= _CURSORS:
                    raise Transient(f"the broker keeps deleting our cursor on {self._name}")
                await self._place()
            if self._left <= 0:
                await self._pull(max_count)
                until = max(until, loop.time() + _FIRST_S)
            now = loop.time()
            if now >= until:
                return
            await self._wait(min(until, self._last_at + _SILENCE_S) - now)
            if loop.time() >= self._last_at + _SILENCE_S:  # A heartbeat does not end the wait.
                self._lose("the broker went silent")

    async def _await_rest(self, max_count: int) -> None:
        """Wait until `max_count` messages have arrived or the pull has delivered all stored ones.

        Return early if none arrives for _REST_S seconds.
        """
        while self._pending > 0 and self._left > 0 and self._consumer is not None and len(self._kept) < max_count:
            if not await self._wait(_REST_S):
                return

    async def _wait(self, seconds: float) -> bool:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _place(self) -> None:
        """Create a consumer at the reader's position. Then check that the stream is the one that was read before.

        Raise StreamReplaced if the stream is another one, or was restored to an earlier state.
        """
        # If the stream is replaced after the check, its consumer is deleted with it.
        name = f"reader-{secrets.token_hex(8)}"
        verb = f"CONSUMER.CREATE.{self._stream}.{name}"
        if len(self._subjects) == 1:  # With several, the server accepts none of them in the call's own subject.
            verb = f"{verb}.{self._subjects[0]}"
            which: dict[str, object] = {"filter_subject": self._subjects[0]}
        else:
            which = {"filter_subjects": list(self._subjects)}
        line = self._connection.line
        start: dict[str, object] = {"deliver_policy": self._policy}
        if self._policy == "by_start_sequence":
            start["opt_start_seq"] = self._position + 1
        placed = await demand(
            self._connection,
            verb,
            {
                "stream_name": self._stream,
                "config": {
                    "name": name,
                    **which,
                    **start,
                    "ack_policy": "none",
                    "replay_policy": "instant",
                    "inactive_threshold": int(self._settings.reader_idle_s * SECOND_NS),
                    "mem_storage": True,
                    "num_replicas": 1,
                },
            },
            self._settings.answer_s,
        )
        state = await stream_state(self._connection, self._stream, self._settings.answer_s)
        if self._created_ns is None:
            self._created_ns = state.created_ns
        if state.created_ns != self._created_ns or state.last_sequence < self._position:
            raise StreamReplaced(
                f"the stream {self._stream} is not the one that was read up to {self._position} on {self._name}:"
                f" created {state.created_ns}, last sequence {state.last_sequence}; open a new reader"
            )
        if self._at_ns and self._position:
            wait_s = self._settings.answer_s
            if not await continues(self._connection, self._stream, self._position, self._at_ns, wait_s):
                raise StreamReplaced(
                    f"the stream {self._stream} came back shorter than {self._position}, up to which {self._name} was"
                    " read, and has grown beyond it; open a new reader"
                )
        if line != self._connection.line:
            raise Transient(f"the connection broke while a cursor on {self._name} was placed", retry_in=0.1)
        self._line = line
        self._cursors += 1
        self.stored = int(placed["num_pending"])
        self._consumer, self._next, self._left, self._pending = name, 1, 0, 0

    async def _pull(self, max_count: int) -> None:
        request = {
            "batch": max_count,
            "expires": _PULL_S * SECOND_NS,
            "idle_heartbeat": _HEARTBEAT_S * SECOND_NS,
            # A pull with a smaller limit than the next message would never deliver it.
            "max_bytes": max(self._settings.read_bytes, self._connection.max_payload + _OVERHEAD),
        }
        self._pulls += 1
        self._left = max_count
        self._last_at = asyncio.get_running_loop().time()
        try:
            await self._connection.send(
                f"{API}CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                msgspec.json.encode(request),
                reply=f"{self._inbox}.{self._pulls}",
            )
        except BaseException:
            self._left = 0  # Otherwise the next read would wait for messages that were not requested.
            raise

    async def _received(self, message: Msg) -> None:
        """Process what the server sent: keep a message of the stream, or handle the status of a pull.

        A status is a message with a status code. A status of an earlier pull and a message of an earlier consumer are
        ignored. If a message is missing, give up the consumer.
        """
        # A status message has the reply subject of its pull as its subject. A message of the stream keeps its own.
        self._last_at = asyncio.get_running_loop().time()
        status = status_of(message)
        if status is not None:
            if message.subject == f"{self._inbox}.{self._pulls}":
                self._on_status(status, reason_of(message).lower())
            return
        origin = origin_of(message.reply)
        if origin.consumer != self._consumer:
            return
        if origin.consumer_sequence != self._next or origin.sequence <= self._position:
            self._lose(f"delivery {origin.consumer_sequence} came instead of {self._next}")
            return
        self._next += 1
        self._left -= 1
        self._pending = origin.pending
        self._position = origin.sequence
        if self._at_ns is not None:
            self._at_ns = origin.at_ns
        self._kept.append(Delivered(origin.sequence, origin.at_ns, message.data, message.subject))
        self._changed.set()

    def _on_status(self, status: str, text: str) -> None:
        if status == "100":
            return
        if status in _PULL_ENDED or text in (_ENDED_BY_SIZE, _BATCH_COMPLETED):
            self._left = 0
            self._changed.set()
        else:
            self._lose(f"{status} {text}".strip())

    def _disconnected(self) -> None:
        self._lose("disconnected")

    def _lose(self, reason: str) -> None:
        if self._consumer is not None:
            log.debug("stream_cursor.lost", subject=self._name, position=self._position, reason=reason)
        self._consumer, self._left, self._pending = None, 0, 0
        self._changed.set()

    @property
    def _name(self) -> str:
        return " ".join(self._subjects)

    def __repr__(self) -> str:
        return f"<StreamReader {self._name} at={self._position} kept={len(self._kept)} cursor={self._consumer}>"
