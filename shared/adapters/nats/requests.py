"""Messages that are not stored: requests to owners and their answers, and status messages for subscribers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.adapters.nats.connection import NatsConnection
from shared.domain.errors import Transient

log = structlog.get_logger(__name__)

_OPEN_QUESTIONS: Final = 4_096
_KEPT: Final = 1_024


@asynccontextmanager
async def answering(
    connection: NatsConnection, subject: str, reply: Callable[[bytes], Awaitable[bytes | None]]
) -> AsyncIterator[None]:
    """Answer the requests on `subject` during the `with` block, several at the same time.

    `reply` returns the answer for the bytes of a request, or None to send none. While 4,096 requests are open, further
    ones get no answer.
    """
    open_questions: set[asyncio.Task[None]] = set()

    async def receive(question: Msg) -> None:
        if len(open_questions) >= _OPEN_QUESTIONS:
            log.warning("broker_request.dropped", subject=subject)
            return
        task = asyncio.create_task(_answer(connection, reply, question), name=f"answer {subject}")
        open_questions.add(task)
        task.add_done_callback(open_questions.discard)

    subscription = await _subscribed(connection, subject, receive)
    try:
        yield
    finally:
        await connection.unsubscribe(subscription)
        for task in open_questions:
            task.cancel()
        # No TaskGroup here: it would wrap the exceptions of the body.
        await asyncio.gather(*open_questions, return_exceptions=True)


async def _answer(connection: NatsConnection, reply: Callable[[bytes], Awaitable[bytes | None]], question: Msg) -> None:
    try:
        data = await reply(question.data)
        if data is not None and question.reply:
            await connection.send(question.reply, data)
    except Transient as error:
        log.debug("broker_reply.dropped", subject=question.subject, error=str(error))
    except Exception:
        # One bad request must not end the others. Its sender gets no answer and asks again.
        log.exception("broker_request.failed", subject=question.subject)


async def _subscribed(
    connection: NatsConnection, subject: str, receive: Callable[[Msg], Awaitable[None]]
) -> Subscription:
    """Subscribe, and wait until the server has processed the subscription. No message sent afterwards is missed.

    If the broker is away, return at once. The subscription then begins at the reconnect.
    """
    subscription = await connection.subscribe(subject, receive)
    try:
        await connection.confirm()
    except Transient as error:
        log.debug("subscription.delayed", subject=subject, error=str(error))
    except BaseException:
        await connection.unsubscribe(subscription)
        raise
    return subscription


class _Received:
    """An iterator over received messages, oldest first. If more than 1,024 are unread, it drops the oldest."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque(maxlen=_KEPT)
        self._arrived = asyncio.Event()

    async def receive(self, message: Msg) -> None:
        self._kept.append(message.data)
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._kept:
            self._arrived.clear()
            await self._arrived.wait()
        return self._kept.popleft()


@asynccontextmanager
async def listening(connection: NatsConnection, subject: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """Subscribe to `subject` for the `with` block. Yield an iterator over the received messages.

    If more than 1,024 messages are unread, the oldest are dropped.
    """
    received = _Received()
    subscription = await _subscribed(connection, subject, received.receive)
    try:
        yield received
    finally:
        await connection.unsubscribe(subscription)
