"""Pulls URL shards from the broker and runs their visits concurrently. Only this module acks or naks (returns) them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, assert_never

import structlog
from msgspec import Struct

from shared.domain.errors import OwnershipLost, Transient
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.watermarks import Pressure
from shared.domain.software import VERSION
from shared.ports.broker import Broker, VisitMessage
from shared.runtime.supervise import Tasks
from shared.wire.messages import (
    KEPT_BYTES,
    Gone,
    Malformed,
    ShardUnreadable,
    Superseded,
    Wait,
    WorkerStatus,
    decode_shard,
    encode,
)
from shared.wire.subjects import STATUS_WANTED, WORKER_STATUS
from workers.grant import Grant
from workers.visit import Visit, VisitContext
from workers.visit_crawls import VisitCrawls

log = structlog.get_logger(__name__)

_PULL_S: Final = 1.0
_UNEXPECTED_PAUSE_S: Final = 5.0
"""The pause in seconds before the broker delivers a shard again, after an unexpected error in its visit."""

_MAX_PAUSE_S: Final = 30.0
"""The longest pause in seconds before the broker delivers a shard again, after several visits to it failed."""

_HAND_BACK_S: Final = 2.0
_SETTLE_TRIES: Final = 3
_HEARTBEAT_S: Final = 1.0
_COALESCE_S: Final = 0.05
_NOTABLE_PART: Final = 8
_TIDY_S: Final = 30.0
IDLE_S: Final = 600.0
"""The open WARC files of a crawl are completed after this many seconds without a visit."""

MAX_OPEN: Final = 256
"""How many crawls may have open WARC files. Above it, the files of the least recently visited crawls are completed."""


class VisitSettled(Struct, frozen=True):
    """A visit's result: this worker has nothing more to do for the shard, so `Runtime` acks the shard's message."""

    # The results were reported, or the lease no longer exists, or the shard cannot be decoded.


class VisitHandedBack(Struct, frozen=True):
    """A visit's result: the worker cannot finish the visit now.

    The message is nak'ed, and the broker delivers it again after `delay_s` seconds.
    """

    delay_s: float


class VisitAbandoned(Struct, frozen=True):
    """A visit's result: the visit lost its grant, or a later delivery of the shard has the lease.

    The message of the shard is neither acked nor nak'ed.
    """


Settlement = VisitSettled | VisitHandedBack | VisitAbandoned


async def _hand_back(message: VisitMessage) -> None:
    """Nak the message once. Ignore a failure: the broker then delivers the message again after the ack wait."""
    with suppress(Transient):
        await message.nak(0.0)


class WorkerIdentity(Struct, frozen=True):
    """A worker's name for people (`id`), and the name under which only this process sends discoveries (`producer`)."""

    id: str
    producer: str
    pool: str
    pid: int


def pause_s(grant: int) -> float:
    """Return the seconds before the broker delivers a shard again, after its visit failed under grant number `grant`.

    The pause is 0 after the first grant and _UNEXPECTED_PAUSE_S after the second. Then it doubles with each further
    grant, up to _MAX_PAUSE_S.
    """
    return 0.0 if grant <= 1 else min(_MAX_PAUSE_S, _UNEXPECTED_PAUSE_S * 2.0 ** min(grant - 2, 8))


def at_rest(visited: Mapping[CrawlId, float], busy: Collection[CrawlId], now: float, *, max_open: int) -> list[CrawlId]:
    """Return the crawls whose WARC files should be completed now.

    These are the crawls without a visit for IDLE_S seconds. If `visited` has more than `max_open` crawls, also return
    the least recently visited ones beyond that number.

    - `visited`: for each crawl, when its last visit ended (`Clock.elapsed`).
    - `busy`: crawls with open visits, which are never returned.
    """
    idle = sorted((at, crawl_id) for crawl_id, at in visited.items() if crawl_id not in busy)
    max_count = max(0, len(visited) - max_open)
    return [crawl_id for n, (at, crawl_id) in enumerate(idle) if n < max_count or now - at >= IDLE_S]


class Runtime:
    """Runs a worker's visits: pulls shards, runs each visit in its own task, and publishes the worker's status."""

    def __init__(
        self,
        identity: WorkerIdentity,
        *,
        broker: Broker,
        crawls: VisitCrawls,
        equipment: VisitContext,
        tasks: Tasks,
        visits: int,
        max_open: int = MAX_OPEN,
    ) -> None:
        """Create the runtime without visits.

        - `visits`: the maximum number of visits at the same time.
        - `max_open`: how many crawls may have open WARC files (MAX_OPEN).
        """
        self._max_open = max_open
        self._identity = identity
        self._broker = broker
        self._crawls = crawls
        self._ctx = equipment
        self._tasks = tasks
        self._visits = visits
        self._numbers = itertools.count(1)
        self._open: set[Visit] = set()
        self._visited: dict[CrawlId, float] = {}
        self._busy = 0
        self._reported_busy = 0
        self._pulling = True
        self._draining = False
        self._pressure: tuple[Pressure, ...] = ()
        self._revision = 0
        self._began_at = equipment.clock.elapsed()
        self._halted = asyncio.Event()
        self._freed = asyncio.Event()
        self._notable = asyncio.Event()
        equipment.requests.on_capacity = self._freed.set
        self._status_requested = asyncio.Event()

    async def pull(self) -> None:
        """Pull shards and start their visits while there is capacity, until `stop_pulling`.

        Pull none during a drain or under resource pressure. Hand back shards that arrive after one of these began.
        """
        while self._pulling:
            await self._ctx.reporter.wait_for_capacity()
            # No await between this check and the pull: `visits` may be lowered concurrently.
            if self._draining or self._pressure or self._full():
                self._freed.clear()
                await self._freed.wait()
                continue
            self._status_requested.clear()
            try:
                messages = await self._broker.pull_visits(self._identity.pool, self._visits - self._busy, _PULL_S)
            except Transient as error:
                log.info("visit_pull.delayed", error=str(error))
                await self._pause(error.retry_in)
                continue
            for message in messages:
                self._busy += 1
                name = f"visit {next(self._numbers)}"
                task = self._tasks.start(name, self._attend_and_settle(message, accepted=self._takes()))
                task.add_done_callback(self._ended)
            self._moved()

    async def _pause(self, wait_s: float) -> None:
        """Wait after a failed pull: `wait_s` seconds, or until a master requests the worker's status.

        Pulls fail while the broker has no streams. A starting master creates the streams, and then requests the status.
        The next pull may therefore succeed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._status_requested.wait()

    def stop_pulling(self) -> None:
        """Pull no further shard from now on. Every later status reports that to the masters."""
        self._pulling = False
        self._freed.set()
        self._notable.set()

    def _full(self) -> bool:
        """Return True if no further visit can begin, or if it would only wait for a request slot."""
        return self._busy >= self._visits or self._ctx.requests.saturated

    def _takes(self) -> bool:
        """Return True if the worker may pull shards: it is not stopped, draining or under resource pressure."""
        return self._pulling and not self._draining and not self._pressure

    def drain(self, draining: bool) -> None:
        """Begin a drain, or end it if `draining` is False. Every status reports it.

        During a drain the worker pulls no shard, and finishes the visits under way.
        """
        self._draining = draining
        self._freed.set()
        self._notable.set()

    def set_pressure(self, pressure: Sequence[Pressure]) -> None:
        """Set which resources are under pressure. Every status reports them.

        While there are any, the worker pulls no shard, and finishes the visits under way.
        """
        self._pressure = tuple(pressure)
        self._freed.set()
        self._notable.set()

    def tune(self, visits: int, revision: int) -> None:
        """Set how many visits may run at once. Running visits continue. Statuses report the config `revision`."""
        self._visits = visits
        self._revision = revision
        self._freed.set()
        self._notable.set()

    def cancel_all(self) -> None:
        """Stop every visit: cancel its request in flight, hand back its remaining URLs, and report its results."""
        self._halted.set()
        for visit in self._open:
            visit.stop()

    async def follow(self) -> None:
        """Call `refresh_crawl` of every open visit whenever a crawl may have changed. Runs until cancelled."""
        async for _ in self._crawls.changes():
            for visit in self._open:
                visit.refresh_crawl()

    # --- one shard ----------------------------------------------------------------------------------------------------

    async def _attend_and_settle(self, message: VisitMessage, *, accepted: bool) -> None:
        """Run a shard's visit, then ack or nak its message as the result requires.

        `accepted`: False hands the shard back without a visit.
        """
        settlement: Settlement
        try:
            settlement = await self._attend(message) if accepted else VisitHandedBack(0.0)
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HAND_BACK_S):
                    await asyncio.shield(_hand_back(message))
            raise
        except OwnershipLost as error:
            log.info("visit.lost", error=str(error))
            settlement = VisitAbandoned()
        except Transient as error:
            log.info("visit.postponed", error=str(error), delivery=message.delivery)
            settlement = VisitHandedBack(error.retry_in)
        except Exception:
            log.exception("visit.failed", delivery=message.delivery)
            settlement = VisitHandedBack(_UNEXPECTED_PAUSE_S)
        self._ctx.stats.visits[type(settlement).__name__] += 1
        self._ctx.failpoint("before_ack")
        await self._settle(message, settlement)

    async def _settle(self, message: VisitMessage, settlement: Settlement) -> None:
        """Ack or nak the message, in at most _SETTLE_TRIES attempts.

        If all attempts fail, the broker delivers the message again after the ack wait, which does no harm:

        - Failed ack: the owner replies that the lease is gone, and the worker acks the message then.
        - Failed nak: the shard is visited again, only not at the intended time.
        """
        for _ in range(_SETTLE_TRIES):
            try:
                match settlement:
                    case VisitSettled():
                        await message.ack()
                    case VisitHandedBack(delay_s):
                        await message.nak(delay_s)
                    case VisitAbandoned():
                        pass
                    case never:
                        assert_never(never)
                return
            except Transient as error:
                log.info("visit_settlement.delayed", error=str(error))
                await asyncio.sleep(error.retry_in)

    async def _attend(self, message: VisitMessage) -> Settlement:
        try:
            shard = decode_shard(message.data)
        except Malformed as error:
            return await self._report_unreadable(message, str(error))
        crawl = await self._crawls.active(CrawlId(shard.crawl), Revision(shard.spec))
        if self._halted.is_set():
            return VisitHandedBack(0.0)
        holder = f"{self._identity.producer}/{next(self._numbers)}"
        match await self._ctx.owners.begin(shard, message.delivery, holder):
            case Grant() as grant:
                visit = Visit(self._ctx, message, shard, crawl, grant, holder)
            case Wait(ms):
                return VisitHandedBack(ms / 1000)
            case Gone():
                return VisitSettled()
            case Superseded():
                return VisitAbandoned()
            case never:
                assert_never(never)
        self._open.add(visit)
        try:
            if self._halted.is_set():
                visit.stop()
            final = await visit.run()
        except OwnershipLost:
            raise
        except Exception as error:
            if isinstance(error, Transient):
                log.info("visit.postponed", error=str(error), delivery=message.delivery)
            else:
                log.exception("visit.failed", lease=shard.lease, host=shard.host, delivery=message.delivery)
            await visit.hand_back()
            return VisitHandedBack(pause_s(grant.number))
        finally:
            self._open.discard(visit)
            self._visited[visit.crawl_id] = self._ctx.clock.elapsed()
        if crawl is not None and self._crawls.now(crawl) is None:
            self._finish_deleted(crawl.crawl_id)
        return VisitSettled() if final else VisitAbandoned()

    async def _report_unreadable(self, message: VisitMessage, reason: str) -> Settlement:
        """Report to the owner that a shard cannot be decoded. Return VisitSettled, so that its message is acked.

        The ack removes the broken message from the queue. The owner stores the report as a dead letter. It publishes
        the shard again, or ends the lease after too many failures.
        """
        log.error("shard.rejected", reason=reason, delivery=message.delivery, bytes=len(message.data))
        if (origin := message.origin) is not None:
            place = origin.place
            letter = ShardUnreadable(
                pool=place.pool,
                host_id=place.host_id,
                slot=place.slot,
                sequence=origin.sequence,
                worker=self._identity.id,
                reason=reason,
                size=len(message.data),
                data=message.data[:KEPT_BYTES],
            )
            message_id = f"unreadable.{place.pool}.{origin.sequence}.{len(message.data)}"
            await self._broker.publish_report(origin.partition, "outcome", encode(letter), message_id)
        self._ctx.stats.malformed += 1
        return VisitSettled()

    def _finish_deleted(self, crawl_id: CrawlId) -> None:
        """Complete the WARC files of a deleted crawl, unless another visit of the crawl is still open."""
        if not any(visit.crawl_id == crawl_id for visit in self._open):
            self._tasks.start(f"archive.finish {crawl_id}", self._finish(crawl_id))

    async def _finish(self, crawl_id: CrawlId) -> None:
        try:
            await self._ctx.archive.finish(crawl_id)
            self._visited.pop(crawl_id, None)
        except Transient as error:  # retried when the process ends
            log.warning("segment_close.delayed", crawl=crawl_id, error=str(error))

    async def tidy(self) -> None:
        """Complete the WARC files of idle crawls and close unused connections every _TIDY_S, until cancelled."""
        while True:
            await asyncio.sleep(_TIDY_S)
            await self._crawls.tidy()
            busy = {visit.crawl_id for visit in self._open}
            for crawl_id in at_rest(self._visited, busy, self._ctx.clock.elapsed(), max_open=self._max_open):
                # A visit may still wait for pages that are not durable, so finish such a crawl in a later round.
                if self._ctx.archive.settled(crawl_id) and crawl_id not in {each.crawl_id for each in self._open}:
                    await self._finish(crawl_id)

    def _ended(self, _: "asyncio.Task[None]") -> None:
        self._busy -= 1
        self._freed.set()
        self._moved()

    # --- status -------------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        if abs(self._busy - self._reported_busy) * _NOTABLE_PART >= self._visits:
            self._notable.set()

    async def heartbeat(self) -> None:
        """Publish the worker's status every second, until cancelled.

        It is also published soon after the load has changed considerably, and when a master requests it.
        """
        # Listen before the first status: a master that missed it then sends a request that is received.
        async with self._broker.listen(STATUS_WANTED) as requests, Tasks() as beside:
            beside.start("status.wanted", self._answer_status_requests(requests))
            while True:
                await self.tell()
                await asyncio.sleep(_COALESCE_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT_S):
                        await self._notable.wait()

    async def _answer_status_requests(self, requests: AsyncIterator[bytes]) -> None:
        async for _ in requests:
            self._status_requested.set()
            self._notable.set()

    async def tell(self) -> None:
        """Publish the worker's status once. If the broker is unreachable, discard the status."""
        self._notable.clear()
        self._reported_busy = self._busy
        try:
            await self._broker.tell(WORKER_STATUS, encode(self.status()))
        except Transient as error:
            log.debug("status.dropped", error=str(error))

    def status(self) -> WorkerStatus:
        """Return this worker's load and state now, as the WorkerStatus message that it sends to the masters."""
        stats = self._ctx.stats
        return WorkerStatus(
            worker=self._identity.id,
            pool=self._identity.pool,
            visits=self._visits,
            busy=self._busy,
            pulling=self._takes(),
            pid=self._identity.pid,
            pages=stats.pages,
            bytes=stats.bytes,
            in_flight=stats.in_flight,
            uptime_ms=int((self._ctx.clock.elapsed() - self._began_at) * 1000),
            version=VERSION,
            draining=self._draining or not self._pulling,
            config=self._revision,
            pressure=self._pressure,
            saturated=self._ctx.requests.saturated,
        )

    def __repr__(self) -> str:
        return f"<Runtime {self._identity.id} {self._busy} of {self._visits} visits>"
