"""A visit: what a worker does with one URL shard, from the grant to the reported end.

Everything that leaves for the host has gone through `Visit._turn`, which waits for the host's rest and then asks the
grant, at the last moment, whether a request may still be sent, and under which revision of the crawl. What is in flight
when the grant ends, or is said to be gone, is cancelled; what was complete by then is still reported, for the owner to
judge.

The crawl may change meanwhile. The next request is sent under its new revision. Paused, it is sent no further request,
and what is left is handed back. Deleted, what is in flight is cancelled too, and no answer is archived any more.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final

import structlog

from shared.domain.archive import Exchange
from shared.domain.errors import Transient
from shared.domain.failure import policy_for
from shared.domain.fetch import Answer, FetchFailed, FetchRequest
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId
from shared.domain.items import PageItems, TakenItem
from shared.domain.robots import Unreachable
from shared.domain.scope import ExclusionReason
from shared.domain.url import Location, fingerprint, origin_of
from shared.ports.broker import VisitMessage
from shared.ports.clock import Clock
from shared.supervise import Failpoint, Tasks, no_failpoint
from shared.wire.messages import HostNote, Shard, ShardUrl
from workers import outcome
from workers.archive import WarcArchive
from workers.crawls import ActiveCrawl, Crawls
from workers.discoveries import Found
from workers.extract.applying import Html
from workers.extract.extractor import Extractor
from workers.grant import Grant
from workers.owners import Owners
from workers.pages import READ_ON_LOOP, read
from workers.report import Reporter
from workers.reservations import Reservations
from workers.robots import Robots, RobotsCache, retry_after_ms
from workers.tally import Tally
from workers.visit_report import Ending, SettledUrl

log = structlog.get_logger(__name__)

VISIT_S: Final = 30.0
"""A visit starts no new URL later than this after it could send its first."""

PATIENCE_S: Final = 5.0
"""A visit that has sent a request waits for its host no longer than this: it hands the rest back, for others to use its
slot. URL shards are cut so that only the wait after robots.txt, or for a delay that is news, can be longer."""

_ASK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Equipment:
    """What every visit of a process works with. `ack_wait_s`: after this the broker delivers a silent shard again."""

    clock: Clock
    crawls: Crawls
    owners: Owners
    robots: RobotsCache
    archive: WarcArchive
    reservations: Reservations
    reporter: Reporter
    ack_wait_s: float
    extractor: Extractor = field(default_factory=Extractor)
    tally: Tally = field(default_factory=Tally)
    failpoint: Failpoint = no_failpoint


class Visit:
    """One granted visit; `run` once. `crawl` None: it was deleted, and everything is handed back."""

    def __init__(
        self,
        equipment: Equipment,
        message: VisitMessage,
        shard: Shard,
        crawl: ActiveCrawl | None,
        grant: Grant,
        holder: str,
    ) -> None:
        self._with = equipment
        self._clock = equipment.clock
        self._message = message
        self._shard = shard
        self._crawl = crawl
        self._grant = grant
        self._holder = holder
        self._report = equipment.reporter.visit(crawl, shard.crawl, LeaseId(shard.lease), grant.number, shard.host_id)
        self._left: dict[Fingerprint, ShardUrl] = {
            fingerprint(shard.urls[at].url): shard.urls[at] for at in grant.remaining
        }
        self._arrived = self._clock.elapsed()
        self._earliest = grant.not_before
        self._until = max(self._arrived, grant.not_before) + VISIT_S
        self._delay_s = max(shard.delay_ms / 1000, grant.delay_s)
        self._robots: dict[str, Robots] = {}
        self._asked_at_ms = 0
        self._crawl_delay_ms = -1
        self._latency_ms = 0
        self._ip = ""
        self._scope: asyncio.Timeout | None = None
        self._lost = False
        self._stopping = False
        self._ending = asyncio.Event()
        if grant.stop:
            self._ending.set()

    @property
    def crawl_id(self) -> CrawlId:
        return CrawlId(self._shard.crawl)

    async def run(self) -> bool:
        """Fetch and report; False when the grant was lost, and the lease is somebody else's to end."""
        async with Tasks() as tasks:
            tasks.start("visit.renew", self._renew())
            if self._crawl is not None:
                await self._within_grant()
            final = not self._lost
            await self._report.finish(Ending(final, tuple(self._left) if final else (), self._note()))
        log.debug("visit.done", lease=self._shard.lease, host=self._shard.host, left=len(self._left), final=final)
        return final

    async def hand_back(self) -> None:
        """Report what was fetched and end the grant, after `run` failed by an error of ours. The message then comes
        again for what is left."""
        if not self._lost:
            await self._report.finish(Ending(final=False, note=self._note(), failed=True))

    def stop(self) -> None:
        """Start nothing more, end what is in flight, and hand back the rest."""
        self._stopping = True
        self._ending.set()
        self._cut()

    def look(self) -> None:
        """See what became of the crawl: paused, no further request starts; deleted, none goes on either."""
        if self._crawl is None:
            return
        self._crawl = self._with.crawls.now(self._crawl)
        if self._crawl is None:
            log.info("visit.crawl_deleted", lease=self._shard.lease, crawl=self._shard.crawl)
            self.stop()
        elif self._crawl.paused:
            self._ending.set()

    # --- permission ---------------------------------------------------------------------------------------------------

    async def _within_grant(self) -> None:
        try:
            async with asyncio.timeout(self._grant.cut_at - self._clock.elapsed()) as scope:
                self._scope = scope
                await self._work()
        except TimeoutError:
            if not scope.expired():
                raise
            if not self._stopping:
                self._lose("its time is over")
        finally:
            self._scope = None

    async def _renew(self) -> None:
        """Keep the grant, and the message from coming back, until the visit is reported."""
        again = 0.0
        working_every = self._with.ack_wait_s / 3
        working_at = self._arrived + working_every
        while True:
            extend_at = inf if self._lost else max(self._grant.renew_at, again)
            await asyncio.sleep(max(min(extend_at, working_at) - self._clock.elapsed(), 0))
            now = self._clock.elapsed()
            if now >= working_at:
                working_at = now + working_every
                if not self._lost:
                    await self._still_working()
            if now >= extend_at:
                again = now + _ASK_AGAIN_S
                await self._extend()

    async def _still_working(self) -> None:
        try:
            await self._message.working()
        except Transient as error:
            log.debug("visit.not_told", lease=self._shard.lease, reason=str(error))

    async def _extend(self) -> None:
        try:
            granted = await self._with.owners.extend(LeaseId(self._shard.lease), self._grant, self._holder)
        except Transient as error:
            log.info("visit.not_extended", lease=self._shard.lease, reason=str(error))
            return
        if not granted:
            self._lose("the owner says so")
            self._cut()
            return
        self._heed()
        if self._scope is not None and not self._scope.expired() and not self._stopping:
            left = self._grant.cut_at - self._clock.elapsed()
            self._scope.reschedule(asyncio.get_running_loop().time() + left)

    def _heed(self) -> None:
        """Follow what the owner now says of the host: its delay, and that no further request may start."""
        slower = self._grant.delay_s > self._delay_s
        too_late = slower and (not self._slow_down(self._grant.delay_s) or self._rested_at() > self._until)
        if (self._grant.stop or too_late) and not self._ending.is_set():
            log.info("visit.stopped", lease=self._shard.lease, host=self._shard.host, delay_s=self._delay_s)
            self._ending.set()

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            log.info("visit.lost", lease=self._shard.lease, grant=self._grant.number, reason=reason)

    def _cut(self) -> None:
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    # --- work ---------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """URL by URL, until the shard or the visit is over."""
        for key, entry in list(self._left.items()):
            await self._report.room()
            crawl = self._crawl
            if crawl is None:
                return
            async with self._with.reservations.reserved(crawl.limits.body_bytes, self._ending) as fits:
                if not fits or not await self._visited(key, entry):
                    return

    async def _visited(self, key: Fingerprint, entry: ShardUrl) -> bool:
        """Ask for a URL and settle it; whether the visit goes on."""
        page = Location(entry.url, self._shard.host, key)
        asked = await self._asked(key, entry)
        if asked is None:
            return key not in self._left
        crawl, answer = asked
        if self._crawl is None:
            return False
        at_ms = self._asked_at_ms
        self._with.failpoint("after_fetch")
        self._latency_ms = round(answer.timings.total_s * 1000)
        self._ip = answer.ip or self._ip
        if isinstance(answer, FetchFailed):
            self._settle(key, SettledUrl(outcome.failed(key, answer, at_ms=at_ms)))
            end = policy_for(answer.kind)
        else:
            self._settle(key, await self._archived(crawl, page, entry, answer, at_ms))
            end = policy_for(answer.status)
        return end.host is None

    async def _asked(self, key: Fingerprint, entry: ShardUrl) -> tuple[ActiveCrawl, Answer | FetchFailed] | None:
        """Ask for the URL in its turn. Return None if it was settled without a request, or if the visit is to end.

        A kept connection that the server had closed says nothing about the URL and uses up no attempt: the request is
        sent once more, on a fresh connection, after the host's delay.
        """
        fresh = False
        while True:
            crawl = await self._judged(key, entry)
            if crawl is None:
                return None
            answer = await self._fetched(crawl, _request(crawl, entry, fresh=fresh))
            if fresh or not (isinstance(answer, FetchFailed) and answer.stale):
                return crawl, answer
            fresh = True

    async def _judged(self, key: Fingerprint, entry: ShardUrl) -> ActiveCrawl | None:
        """The crawl under which the URL may be asked for now; None when it is denied, which settles it, or when the
        visit is to end. A revision that comes while the host rests judges anew."""
        crawl = self._followed()
        while crawl is not None:
            if crawl.obeys_robots:
                robots = await self._robots_of(entry.url, crawl)
                if robots is None or isinstance(robots.policy, Unreachable):
                    return None
                if not robots.allows(entry.url, crawl.token):
                    denied = outcome.denied(key, ExclusionReason.ROBOTS, at_ms=self._clock.unix_ms())
                    self._settle(key, SettledUrl(denied))
                    return None
            now = await self._turn(PATIENCE_S)
            if now is crawl:
                break
            crawl = now
        return crawl

    def _followed(self) -> ActiveCrawl | None:
        """The crawl as it is now; None when the visit is to end."""
        self.look()
        crawl = self._crawl
        if crawl is None or self._ending.is_set():
            return None
        delay_s = crawl.spec.politeness.delay_s
        if crawl.revision != self._shard.spec and delay_s > self._delay_s and not self._slow_down(delay_s):
            return None
        return crawl

    async def _robots_of(self, url: str, crawl: ActiveCrawl) -> Robots | None:
        """Return what holds for the URL's origin, None if the visit is to end."""
        origin = origin_of(url)
        robots = self._robots.get(origin)
        if robots is not None:
            return robots
        robots = await self._with.robots.of(origin, crawl, partial(self._send, url))
        if robots is None:
            return None
        self._robots[origin] = robots
        delay_s = robots.crawl_delay_s(crawl.token)
        if delay_s is not None:
            self._crawl_delay_ms = max(self._crawl_delay_ms, int(delay_s * 1000 + 0.999))
            if delay_s > self._delay_s and not self._slow_down(delay_s):
                return None
        return robots

    def _slow_down(self, delay_s: float) -> bool:
        """The owner did not know that the host asks for this delay; False when it has to deal with that first.

        Without a delay other visits of the host may be under way, which only the owner can keep apart.
        """
        if self._shard.delay_ms == 0:
            return False
        self._delay_s = delay_s
        if self._report.quiet_since is None:
            self._earliest = max(self._earliest, self._arrived + delay_s)
        return True

    async def _send(self, via: str, request: FetchRequest) -> Answer | FetchFailed | None:
        """Send a request for robots.txt in its turn, and archive the answer. `via` is the URL that needs it. Return
        None if the visit is to end instead."""
        crawl = await self._turn()
        answer = None if crawl is None else await self._fetched(crawl, request)
        if isinstance(answer, FetchFailed) and answer.stale:
            crawl = await self._turn()
            answer = None if crawl is None else await self._fetched(crawl, replace(request, fresh=True))
        if isinstance(answer, Answer) and crawl is not None and self._crawl is not None:
            exchange = Exchange(answer, self._asked_at_ms, 0, via=via)
            await self._with.archive.keep(crawl.archived, exchange, page=False)
        return answer

    async def _turn(self, patience_s: float = inf) -> ActiveCrawl | None:
        """Wait for the host's rest; the crawl for which a request may then be sent, at once. None when none may, or
        when the rest after a request of this visit lasts longer than `patience_s`."""
        begun = self._clock.elapsed()
        while True:
            crawl, now = self._followed(), self._clock.elapsed()
            wait_s = self._rested_at() - now
            if crawl is None or now + max(wait_s, 0.0) > self._until:
                return None
            if wait_s > patience_s and self._report.quiet_since is not None:
                return None
            if wait_s <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._ending.wait()
        if not self._grant.may_send(now):
            self._lose("no time is left for a request")
            return None
        self._with.tally.waits.observe(now - begun)
        return crawl

    def _rested_at(self) -> float:
        """When the next request may start, as far as the host is concerned."""
        quiet_since = self._report.quiet_since
        return self._earliest if quiet_since is None else max(self._earliest, quiet_since + self._delay_s)

    async def _fetched(self, crawl: ActiveCrawl, request: FetchRequest) -> Answer | FetchFailed:
        """The only way out, in one's turn."""
        self._asked_at_ms = self._clock.unix_ms()
        self._with.tally.in_flight += 1
        try:
            return await crawl.fetcher.fetch(request)
        finally:
            self._with.tally.in_flight -= 1
            self._report.quiet_since = self._clock.elapsed()

    async def _archived(
        self, crawl: ActiveCrawl, page: Location, entry: ShardUrl, answer: Answer, at_ms: int
    ) -> SettledUrl:
        if len(answer.decoded) * crawl.scope.weight > READ_ON_LOOP:
            reading = await asyncio.to_thread(read, crawl, page, entry.depth, entry.hops, answer)
        else:
            reading = read(crawl, page, entry.depth, entry.hops, answer)
        exchange = Exchange(answer, at_ms, entry.depth, outlinks=reading.archived, notes=reading.notes)
        stored = await self._with.archive.keep(crawl.archived, exchange)
        self._with.failpoint("archived")
        self._with.tally.pages += 1
        self._with.tally.bytes += len(answer.body)
        found = None
        if reading.found:
            found = Found(
                crawl, self._shard.host_id, page.host, page.fingerprint, reading.found, reading.depth, reading.hops
            )
        asked = retry_after_ms(answer, self._clock.unix_ms())
        said = outcome.answered(page.fingerprint, answer, reading, stored, at_ms=at_ms, retry_after_ms=asked)
        items = None if reading.html is None else await self._items(crawl, page, reading.html, at_ms)
        return SettledUrl(said, found, reading.outlinks, items)

    async def _items(self, crawl: ActiveCrawl, page: Location, html: Html, at_ms: int) -> PageItems | None:
        """What the crawl's rules take out of the page; None where none is about it."""
        taken = await crawl.rules.taken(self._with.extractor, crawl.crawl_id, page.url, page.fingerprint, html)
        if taken is None:
            return None
        self._with.reporter.refused(crawl, taken.refused)
        return PageItems(
            HostId(self._shard.host_id),
            page.fingerprint,
            page.url,
            LeaseId(self._shard.lease),
            self._grant.number,
            at_ms,
            tuple([TakenItem(item.id, item.rule, item.data) for item in taken.items]),
        )

    def _settle(self, key: Fingerprint, settled: SettledUrl) -> None:
        del self._left[key]
        self._report.add(settled)

    def _note(self) -> HostNote:
        unreachable = next((robots for robots in self._robots.values() if robots.failure), None)
        if unreachable is None:
            return HostNote(self._crawl_delay_ms, self._latency_ms, self._ip)
        reason = unreachable.policy.reason if isinstance(unreachable.policy, Unreachable) else ""
        return HostNote(
            self._crawl_delay_ms, self._latency_ms, self._ip, unreachable.failure, reason, unreachable.retry_after_ms
        )

    def __repr__(self) -> str:
        return f"<Visit {self._shard.host} lease={self._shard.lease} left={len(self._left)}>"


def _request(crawl: ActiveCrawl, entry: ShardUrl, *, fresh: bool) -> FetchRequest:
    """The request for a URL, conditional where its validators are known."""
    headers = crawl.headers
    if entry.etag is not None:
        headers += (("If-None-Match", entry.etag),)
    elif entry.last_modified is not None:
        headers += (("If-Modified-Since", entry.last_modified),)
    fetch = crawl.spec.fetch
    return FetchRequest(entry.url, headers, limits=crawl.limits, proxy=fetch.proxy, http2=fetch.http2, fresh=fresh)
