"""As many visits at once as there is room for; here, and only here, a message is settled."""

import asyncio
import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, assert_never

import structlog

from shared.domain.errors import OwnershipLost, Transient
from shared.domain.ids import CrawlId, Revision
from shared.domain.software import VERSION
from shared.ports.broker import Broker, VisitMessage
from shared.supervise import Tasks
from shared.wire.messages import (
    KEPT_BYTES,
    Gone,
    Malformed,
    Superseded,
    Unreadable,
    Wait,
    WorkerStatus,
    decode_shard,
    encode,
)
from shared.wire.subjects import WORKER_STATUS
from workers.crawls import Crawls
from workers.grant import Grant
from workers.visit import Equipment, Visit

log = structlog.get_logger(__name__)

_PULL_S: Final = 1.0
_FOREIGN_S: Final = 5.0
"""How long a shard is put off after an error that nobody foresaw."""

_LONGEST_PAUSE_S: Final = 30.0
"""How long a shard is put off at most, after its visits failed again and again by errors of ours."""

_HAND_BACK_S: Final = 2.0
_SETTLE_TRIES: Final = 3
_HEARTBEAT_S: Final = 1.0
_COALESCE_S: Final = 0.05
_NOTABLE_PART: Final = 8
_TIDY_S: Final = 30.0
IDLE_S: Final = 600.0
"""A crawl that nobody visited for so long has its segments finished."""

MOST_OPEN: Final = 256
"""Crawls with segments open, beyond which those visited least recently are finished at once; each is an open file."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The shard is done with: it was reported, or is nobody's any more."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """Not now: the message is to come again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Left:
    """Somebody else has it, or our permission ran out: it is left alone and comes again by itself."""


Settlement = Settled | HandBack | Left


async def _hand_back(message: VisitMessage) -> None:
    """Now, or never: nobody waits for the answer of a broker that is away, and its shard comes again by itself."""
    with suppress(Transient):
        await message.nak(0.0)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is: `id` for people, `producer` unique to this process, its pool and process number."""

    id: str
    producer: str
    pool: str
    pid: int


def pause_s(grant: int) -> float:
    """Return how long to put off a shard whose visit failed by an error of ours, under this number of its grants.

    The first time it comes again at once. The longest pause is as long as a grant, so that a worker that fails at
    everything wears out no lease sooner than it does by dying.
    """
    return 0.0 if grant <= 1 else min(_LONGEST_PAUSE_S, _FOREIGN_S * 2.0 ** min(grant - 2, 8))


def at_rest(
    visited: Mapping[CrawlId, float], busy: Collection[CrawlId], now: float, *, most_open: int
) -> list[CrawlId]:
    """Of the crawls that were `visited`, by when the last visit ended, those whose segments should be finished: of them
    nobody is `busy` with one."""
    resting = sorted((at, crawl_id) for crawl_id, at in visited.items() if crawl_id not in busy)
    most = max(0, len(visited) - most_open)
    return [crawl_id for n, (at, crawl_id) in enumerate(resting) if n < most or now - at >= IDLE_S]


class Runtime:
    """A worker's visits: pulls shards, attends to each in a task of its own, tells how busy it is."""

    def __init__(
        self,
        identity: Identity,
        *,
        broker: Broker,
        crawls: Crawls,
        equipment: Equipment,
        tasks: Tasks,
        visits: int,
        most_open: int = MOST_OPEN,
    ) -> None:
        """`most_open`: so many crawls may have a WARC file open; those visited least recently are finished first."""
        self._most_open = most_open
        self._identity = identity
        self._broker = broker
        self._crawls = crawls
        self._with = equipment
        self._tasks = tasks
        self._visits = visits
        self._numbers = itertools.count(1)
        self._open: set[Visit] = set()
        self._visited: dict[CrawlId, float] = {}
        self._busy = 0
        self._told = 0
        self._pulling = True
        self._resting = False
        self._short: str | None = None
        self._revision = 0
        self._began_at = equipment.clock.elapsed()
        self._halted = asyncio.Event()
        self._freed = asyncio.Event()
        self._notable = asyncio.Event()

    async def pull(self) -> None:
        """Take shards while there is room and no drain, until `stop_pulling`; what an open pull still brings is handed
        back."""
        while self._pulling:
            await self._with.reporter.room()
            # Nothing may come between this look and the pull: meanwhile there may be fewer visits to hold.
            if self._resting or self._short is not None or self._busy >= self._visits:
                self._freed.clear()
                await self._freed.wait()
                continue
            try:
                messages = await self._broker.pull_visits(self._identity.pool, self._visits - self._busy, _PULL_S)
            except Transient as error:
                log.info("visits.not_pulled", reason=str(error))
                await asyncio.sleep(error.retry_in)
                continue
            for message in messages:
                self._busy += 1
                name = f"visit {next(self._numbers)}"
                task = self._tasks.start(name, self._attend_and_settle(message, wanted=self._takes()))
                task.add_done_callback(self._ended)
            self._moved()

    def stop_pulling(self) -> None:
        """Take no further shard, and say so in every status from now on."""
        self._pulling = False
        self._freed.set()
        self._notable.set()

    def _takes(self) -> bool:
        """Whether it takes further shards."""
        return self._pulling and not self._resting and self._short is None

    def drain(self, draining: bool) -> None:
        """Take no further shard and finish those in hand, or take some again; every status says so."""
        self._resting = draining
        self._freed.set()
        self._notable.set()

    def ration(self, reason: str | None) -> None:
        """Take no further shard for this reason and go on with those in hand, or (None) take some again; every status
        says so."""
        self._short = reason
        self._freed.set()
        self._notable.set()

    def tune(self, visits: int, revision: int) -> None:
        """Hold so many shards at once from now on, by this revision of the configuration. Nothing in hand is given up
        for it."""
        self._visits = visits
        self._revision = revision
        self._freed.set()
        self._notable.set()

    def halt(self) -> None:
        """Every visit starts nothing more, ends what is in flight and hands back the rest."""
        self._halted.set()
        for visit in self._open:
            visit.stop()

    async def follow(self) -> None:
        """Let every visit see what became of its crawl, whenever something did; until cancelled."""
        async for _ in self._crawls.changes():
            for visit in self._open:
                visit.look()

    # --- one shard ----------------------------------------------------------------------------------------------------

    async def _attend_and_settle(self, message: VisitMessage, *, wanted: bool) -> None:
        """The one place that settles: done is acknowledged, no answer is handed back, what is another's is left."""
        settlement: Settlement
        try:
            settlement = await self._attend(message) if wanted else HandBack(0.0)
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HAND_BACK_S):
                    await asyncio.shield(_hand_back(message))
            raise
        except OwnershipLost as error:
            log.info("visit.lost", reason=str(error))
            settlement = Left()
        except Transient as error:
            log.info("visit.put_off", reason=str(error), delivery=message.delivery)
            settlement = HandBack(error.retry_in)
        except Exception:
            log.exception("visit.failed", delivery=message.delivery)
            settlement = HandBack(_FOREIGN_S)
        self._with.tally.visits[type(settlement).__name__] += 1
        self._with.failpoint("before_ack")
        await self._settle(message, settlement)

    async def _settle(self, message: VisitMessage, settlement: Settlement) -> None:
        """Tell the broker; one that is away delivers the shard again, and its owner then says that it is gone."""
        for _ in range(_SETTLE_TRIES):
            try:
                match settlement:
                    case Settled():
                        await message.ack()
                    case HandBack(delay_s):
                        await message.nak(delay_s)
                    case Left():
                        pass
                    case never:
                        assert_never(never)
                return
            except Transient as error:
                log.info("visit.not_settled", reason=str(error))
                await asyncio.sleep(error.retry_in)

    async def _attend(self, message: VisitMessage) -> Settlement:
        try:
            shard = decode_shard(message.data)
        except Malformed as error:
            return await self._tell_unreadable(message, str(error))
        crawl = await self._crawls.active(CrawlId(shard.crawl), Revision(shard.spec))
        if self._halted.is_set():
            return HandBack(0.0)
        holder = f"{self._identity.producer}/{next(self._numbers)}"
        match await self._with.owners.begin(shard, message.delivery, holder):
            case Grant() as grant:
                visit = Visit(self._with, message, shard, crawl, grant, holder)
            case Wait(ms):
                return HandBack(ms / 1000)
            case Gone():
                return Settled()
            case Superseded():
                return Left()
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
                log.info("visit.put_off", reason=str(error), delivery=message.delivery)
            else:
                log.exception("visit.failed", lease=shard.lease, host=shard.host, delivery=message.delivery)
            await visit.hand_back()
            return HandBack(pause_s(grant.number))
        finally:
            self._open.discard(visit)
            self._visited[visit.crawl_id] = self._with.clock.elapsed()
        if crawl is not None and self._crawls.now(crawl) is None:
            self._let_go(crawl.crawl_id)
        return Settled() if final else Left()

    async def _tell_unreadable(self, message: VisitMessage, reason: str) -> Settlement:
        """Tell the owner of the place on which it stands, and then let go of it.

        Put off, it would come again for ever and keep its host's slot. Acknowledged, its owner misses it and publishes
        it anew, in its own time and version, so often as it does where grants run out.
        """
        log.error("visit.malformed", reason=reason, delivery=message.delivery, bytes=len(message.data))
        if (origin := message.origin) is not None:
            place = origin.place
            letter = Unreadable(
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
        self._with.tally.malformed += 1
        return Settled()

    def _let_go(self, crawl_id: CrawlId) -> None:
        """Finish the archive's segments of a deleted crawl, once nobody visits for it: nothing more is placed there."""
        if not any(visit.crawl_id == crawl_id for visit in self._open):
            self._tasks.start(f"archive.finish {crawl_id}", self._finish(crawl_id))

    async def _finish(self, crawl_id: CrawlId) -> None:
        try:
            await self._with.archive.finish(crawl_id)
            self._visited.pop(crawl_id, None)
        except Transient as error:  # tried again when the process ends
            log.warning("archive.not_finished", crawl=crawl_id, reason=str(error))

    async def tidy(self) -> None:
        """Finish the segments of crawls that have come to rest, so that no more files are open than crawls are worked
        on, and close the connections of those that are gone; until cancelled."""
        while True:
            await asyncio.sleep(_TIDY_S)
            await self._crawls.tidy()
            busy = {visit.crawl_id for visit in self._open}
            for crawl_id in at_rest(self._visited, busy, self._with.clock.elapsed(), most_open=self._most_open):
                # What is not durable yet somebody waits for, or will write: later.
                if self._with.archive.settled(crawl_id) and crawl_id not in {each.crawl_id for each in self._open}:
                    await self._finish(crawl_id)

    def _ended(self, _: "asyncio.Task[None]") -> None:
        self._busy -= 1
        self._freed.set()
        self._moved()

    # --- status -------------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        if abs(self._busy - self._told) * _NOTABLE_PART >= self._visits:
            self._notable.set()

    async def heartbeat(self) -> None:
        """Tell the status about every second, and soon after the load changed much; until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(_COALESCE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._notable.wait()

    async def tell(self) -> None:
        """Send the status as it is now; a broker that is away does not hear it."""
        self._notable.clear()
        self._told = self._busy
        try:
            await self._broker.tell(WORKER_STATUS, encode(self.status()))
        except Transient as error:
            log.debug("status.not_told", reason=str(error))

    def status(self) -> WorkerStatus:
        """How busy it is now."""
        tally = self._with.tally
        return WorkerStatus(
            worker=self._identity.id,
            pool=self._identity.pool,
            visits=self._visits,
            busy=self._busy,
            pulling=self._takes(),
            pid=self._identity.pid,
            pages=tally.pages,
            bytes=tally.bytes,
            in_flight=tally.in_flight,
            uptime_ms=int((self._with.clock.elapsed() - self._began_at) * 1000),
            version=VERSION,
            draining=self._resting or not self._pulling,
            config=self._revision,
            short=self._short or "",
        )

    def __repr__(self) -> str:
        return f"<Runtime {self._identity.id} {self._busy} of {self._visits} visits>"
