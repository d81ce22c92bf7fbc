"""What is said and not stored: questions to owners, and status for whoever listens."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.adapters.nats.connection import Connection
from shared.domain.errors import Transient

log = structlog.get_logger(__name__)

_OPEN_QUESTIONS: Final = 4_096
_HEARD: Final = 1_024


@asynccontextmanager
async def answering(
    connection: Connection, subject: str, reply: Callable[[bytes], Awaitable[bytes | None]]
) -> AsyncIterator[None]:
    """Answer questions side by side while open; one that comes above 4,096 open ones stays unanswered."""
    open_questions: set[asyncio.Task[None]] = set()

    async def receive(question: Msg) -> None:
        if len(open_questions) >= _OPEN_QUESTIONS:
            log.warning("answer.overloaded", subject=subject)
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
        # Not a TaskGroup: it would wrap whatever the body raises.
        await asyncio.gather(*open_questions, return_exceptions=True)


async def _answer(connection: Connection, reply: Callable[[bytes], Awaitable[bytes | None]], question: Msg) -> None:
    try:
        data = await reply(question.data)
        if data is not None and question.reply:
            await connection.send(question.reply, data)
    except Transient as error:
        log.debug("answer.not_sent", subject=question.subject, reason=str(error))
    except Exception:
        # One bad question must not end the others; the asker sees silence and asks again.
        log.exception("answer.failed", subject=question.subject)


async def _subscribed(connection: Connection, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> Subscription:
    """Subscribe, and let the server know of it before anything is said: with the broker away, at the reconnect."""
    subscription = await connection.subscribe(subject, receive)
    try:
        await connection.confirm()
    except Transient as error:
        log.debug("broker.subscribes_later", subject=subject, reason=str(error))
    except BaseException:
        await connection.unsubscribe(subscription)
        raise
    return subscription


class _Heard:
    """What was said, oldest first; the oldest are dropped."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque(maxlen=_HEARD)
        self._news = asyncio.Event()

    async def receive(self, message: Msg) -> None:
        self._kept.append(message.data)
        self._news.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._kept:
            self._news.clear()
            await self._news.wait()
        return self._kept.popleft()


@asynccontextmanager
async def listening(connection: Connection, subject: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """The last 1,024 things said and not yet taken."""
    heard = _Heard()
    subscription = await _subscribed(connection, subject, heard.receive)
    try:
        yield heard
    finally:
        await connection.unsubscribe(subscription)
