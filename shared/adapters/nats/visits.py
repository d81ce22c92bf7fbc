"""Pulls URL shards from a pool's queue, and acknowledges them.

`VisitQueue.pull` sends a pull request, which the server ends after `wait_s` seconds. If the method returns earlier, the
request stays open, and the next call of `pull` uses it. At most one request is open at any time.

A shard that arrives between two calls is kept for the next call. After half of `ack_wait_s` it is dropped, and the
broker delivers it again. `close` hands kept shards back.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shared.adapters.nats.connection import NatsConnection, reason_of, status_of
from shared.adapters.nats.jetstream import API, SECOND_NS, origin_of
from shared.adapters.nats.settings import StreamSettings
from shared.adapters.nats.streams import VISITS_CONSUMER
from shared.domain.errors import Transient
from shared.wire import subjects

log = structlog.get_logger(__name__)

_HAND_BACK: Final = b"-NAK"
_GRACE_S: Final = 0.25
"""How many seconds after `wait_s` a call still waits for the status that the server sends at the end of a pull."""
_FORGET_S: Final = 5.0
_REST_S: Final = 0.02
_PULL_ENDED: Final = frozenset({"404", "408"})
_BATCH_COMPLETED: Final = "batch completed"


class NatsVisit:
    """A URL shard that NATS delivered to this process (`shared.ports.broker.VisitMessage`).

    `ack` removes the shard from the queue, `nak` hands it back for another delivery. Both raise Transient if the broker
    did not confirm, and may be repeated. A broker that was killed may have forgotten this delivery. It then never
    confirms, and delivers the shard again as if for the first time.
    """

    __slots__ = ("_connection", "_reply", "_wait_s", "arrived", "data", "delivery", "origin")

    def __init__(self, connection: NatsConnection, message: Msg, wait_s: float, arrived: float) -> None:
        from_stream = origin_of(message.reply)
        self._connection = connection
        self._reply = message.reply
        self._wait_s = wait_s
        self.data: bytes = message.data
        self.delivery = from_stream.delivery
        self.origin = subjects.visit_origin(message.subject, from_stream.sequence)
        self.arrived = arrived

    async def ack(self) -> None:
        await self._connection.request(self._reply, b"+ACK", self._wait_s)

    async def nak(self, delay_s: float) -> None:
        delay = b' {"delay": %d}' % int(delay_s * SECOND_NS) if delay_s > 0 else b""
        await self._connection.request(self._reply, _HAND_BACK + delay, self._wait_s)

    async def working(self) -> None:
        await self._connection.send(self._reply, b"+WPI")

    def __repr__(self) -> str:
        return f"<NatsVisit delivery={self.delivery} bytes={len(self.data)}>"


class VisitQueue:
    """Pulls URL shards from one pool's queue. Calls of `pull` must not overlap."""

    def __init__(self, connection: NatsConnection, pool: str, settings: StreamSettings) -> None:
        self._connection = connection
        self._pool = pool
        self._settings = settings
        self._next = f"{API}CONSUMER.MSG.NEXT.{subjects.visits_stream(pool)}.{VISITS_CONSUMER}"
        self._inbox = connection.new_inbox()
        self._subscription: Subscription | None = None
        self._ready: deque[NatsVisit] = deque()
        self._pulls = 0
        self._left = 0
        self._until = 0.0
        self._pending = 0
        self._problem: str | None = None
        self._changed = asyncio.Event()
        self._closed = False

    async def pull(self, max_count: int, wait_s: float) -> Sequence[NatsVisit]:
        """Return up to `max_count` URL shards. Wait up to `wait_s` seconds for the first; return none if none came.

        Raise Transient if the queue is closed or the broker ended the pull with an error.
        """
        loop = asyncio.get_running_loop()
        if self._closed:
            raise Transient(f"the queue of pool {self._pool} is closed")
        if self._subscription is None:
            self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._received)
            self._connection.watch(self._disconnected)
        start = loop.time()
        until = start + wait_s
        self._drop_stale(start)
        asked = False
        while not self._ready:
            self._complain()
            now = loop.time()
            if self._left <= 0:
                if asked and now >= until:
                    return []
                await self._ask(max_count, max(until - now, 0.0))
                asked = True
            # An earlier call's pull that lasts longer than this call sends no status at the end of this call.
            limit = until + _GRACE_S if asked or self._until <= until else until
            if now >= limit:
                return []
            await self._wait(limit - now)
        while self._pending > 0 and self._left > 0 and len(self._ready) < max_count and await self._wait(_REST_S):
            pass
        return [self._ready.popleft() for _ in range(min(max_count, len(self._ready)))]

    async def close(self) -> None:
        """End the subscription, and return to the broker the shards that arrived but were not returned by `pull`."""
        self._closed = True
        self._connection.unwatch(self._disconnected)
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription, drain=True)
        self._changed.set()
        while self._ready:
            try:
                await self._ready.popleft().nak(0.0)
            except Transient as error:
                log.debug("visit_return.dropped", pool=self._pool, error=str(error))

    async def _ask(self, batch: int, wait_s: float) -> None:
        request: dict[str, int | bool] = {"batch": batch}
        if wait_s > 0:
            request["expires"] = max(int(wait_s * SECOND_NS), 1_000_000)
        else:
            request["no_wait"] = True
        self._pulls += 1
        await self._connection.send(self._next, msgspec.json.encode(request), reply=f"{self._inbox}.{self._pulls}")
        self._left, self._until = batch, asyncio.get_running_loop().time() + wait_s

    async def _received(self, message: Msg) -> None:
        """Process a message of the server: keep a shard, or record that the pull has ended.

        A message with a status code is not a shard. Such a message ends the open pull, unless the code is 100 or the
        message belongs to an earlier pull.
        """
        # A status message has the reply subject of its pull as its subject. A shard keeps its own subject.
        status = status_of(message)
        if status is None:
            origin = origin_of(message.reply)
            now = asyncio.get_running_loop().time()
            self._ready.append(NatsVisit(self._connection, message, self._settings.answer_s, now))
            self._left, self._pending = max(self._left - 1, 0), origin.pending
        elif message.subject == f"{self._inbox}.{self._pulls}" and status != "100":
            self._left = 0
            reason = reason_of(message)
            if status not in _PULL_ENDED and reason.lower() != _BATCH_COMPLETED:
                self._problem = f"{status} {reason}".strip()
        self._changed.set()

    def _complain(self) -> None:
        """Raise Transient if a pull failed since the last call, for example because the queue does not exist."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise Transient(f"cannot pull from the queue of pool {self._pool}: {problem}", retry_in=0.5)

    def _disconnected(self) -> None:
        self._left = 0
        self._problem = "the connection broke"
        self._changed.set()

    def _drop_stale(self, now: float) -> None:
        """Forget what earlier calls of `pull` left behind and this call must not use:

        - the error of an earlier pull,
        - a pull whose time limit passed long ago, without a status from the server,
        - shards that were kept for more than half of `ack_wait_s`.
        """
        if now > self._until + _FORGET_S:
            self._left = 0
        while self._ready and now - self._ready[0].arrived > self._settings.ack_wait_s / 2:
            self._ready.popleft()
        self._problem = None

    async def _wait(self, seconds: float) -> bool:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<VisitQueue {self._pool} ready={len(self._ready)} open={self._left}>"
