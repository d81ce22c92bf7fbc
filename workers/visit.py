"""A visit: what a worker does with one URL shard, from the grant to the reported end.

If the grant ends or is revoked, the request in flight is cancelled. Earlier answers are still reported. A new revision
of the crawl applies from the next request on. If the crawl is paused, no further request is sent, and the remaining
URLs are handed back. If it is deleted, the request in flight is also cancelled, and nothing is archived.
"""

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from shared.domain.archive.model import Exchange
from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.errors import Transient
from shared.domain.frontier.failure import policy_for, retry_after_ms
from shared.domain.ids import CrawlId, Fingerprint, LeaseId
from shared.domain.reads.items import PageItems
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchRequest
from shared.domain.web.robots import BY_DIRECTIVE
from shared.domain.web.url import Location, fingerprint, origin_of
from shared.ports.broker import VisitMessage
from shared.ports.clock import Clock
from shared.runtime.supervise import Failpoint, Tasks, no_failpoint
from shared.wire.messages import HostNote, ShardUrl, UrlShard
from workers import outcome
from workers.archive import WarcArchive
from workers.discover.host_sitemaps import HostSitemaps
from workers.discover.reading import read_answer
from workers.discoveries import links_of
from workers.disk_reservations import DiskReservations
from workers.extract.extractor import Extractor
from workers.extract.page_rules import Html
from workers.grant import Grant
from workers.owner_client import OwnerClient
from workers.report import Reporter
from workers.request_slots import Admission, Requests
from workers.revisits import as_revisit, content_mark
from workers.robots import Robots, RobotsCache
from workers.stats import WorkerStats
from workers.visit_crawls import VisitCrawl, VisitCrawls
from workers.visit_report import SettledUrl, VisitEnd, VisitOrigins, contexts_of, page_items, with_context

log = structlog.get_logger(__name__)

VISIT_S: Final = 30.0
"""The longest time of a visit, in seconds: from when its first request may be sent to the start of its last one."""

PATIENCE_S: Final = 5.0
"""The longest wait of a visit between two requests, in seconds. Instead of a longer wait, it hands back its URLs."""

_EXTEND_RETRY_S: Final = 0.5


class VisitContext(Struct, frozen=True):
    """Objects that all visits use. `ack_wait_s`: seconds until the broker delivers an unacknowledged shard again."""

    clock: Clock
    crawls: VisitCrawls
    owners: OwnerClient
    robots: RobotsCache
    archive: WarcArchive
    reservations: DiskReservations
    requests: Requests
    reporter: Reporter
    ack_wait_s: float
    extractor: Extractor = field(default_factory=Extractor)
    stats: WorkerStats = field(default_factory=WorkerStats)
    failpoint: Failpoint = no_failpoint


class Visit:
    """A visit to the URLs of one shard under a grant. Call `run` once. `crawl` is None if the crawl was deleted."""

    def __init__(
        self,
        equipment: VisitContext,
        message: VisitMessage,
        shard: UrlShard,
        crawl: VisitCrawl | None,
        grant: Grant,
        holder: str,
    ) -> None:
        self._ctx = equipment
        self._clock = equipment.clock
        self._message = message
        self._shard = shard
        self._crawl = crawl
        self._grant = grant
        self._holder = holder
        self._report = equipment.reporter.visit(crawl, shard.crawl, LeaseId(shard.lease), grant.number, shard.host_id)
        self._left = {fingerprint(shard.urls[at].url): shard.urls[at] for at in grant.remaining}
        self._contexts, self._arrived = contexts_of(shard), self._clock.elapsed()
        self._earliest = grant.not_before
        self._until = max(self._arrived, grant.not_before) + VISIT_S
        self._delay_s, self._adaptive_s = max(shard.delay_ms / 1000, grant.delay_s), 0.0
        self._origins, self._sitemaps = VisitOrigins(shard.host), HostSitemaps()
        self._asked_at_ms, self._latency_ms, self._ip = 0, 0, ""
        self._scope: asyncio.Timeout | None = None
        self._lost = self._stopping = False
        self._ending = asyncio.Event()
        self._admission = Admission(equipment.requests, equipment.reservations, self._ending)
        if grant.stop:
            self._ending.set()

    @property
    def crawl_id(self) -> CrawlId:
        return CrawlId(self._shard.crawl)

    async def run(self) -> bool:
        """Fetch and report the URLs. Return False if the grant was lost, else True (even if URLs are handed back)."""
        async with Tasks() as tasks:
            tasks.start("visit.renew", self._renew())
            if self._crawl is not None:
                await self._run_under_grant()
            final = not self._lost
            await self._report.finish(VisitEnd(final, tuple(self._left) if final else (), self._note()))
        log.debug(
            "visit.finished", lease=self._shard.lease, host=self._shard.host, urls_left=len(self._left), final=final
        )
        return final

    async def hand_back(self) -> None:
        """Report the fetched URLs and the end of the grant, after `run` raised. The caller then naks the message."""
        if not self._lost:
            await self._report.finish(VisitEnd(final=False, note=self._note(), failed=True))

    def stop(self) -> None:
        """Start no further request, cancel the one in flight, and hand back the remaining URLs."""
        self._stopping = True
        self._admission.end()
        self._cut()

    def refresh_crawl(self) -> None:
        """Read the crawl's state. If paused, start no further request. If deleted, also cancel the one in flight."""
        if self._crawl is None:
            return
        self._crawl = self._ctx.crawls.now(self._crawl)
        if self._crawl is None:
            log.info("visit.cancelled", lease=self._shard.lease, crawl=self._shard.crawl)
            self.stop()
        elif self._crawl.paused:
            self._admission.end()

    # --- permission ---------------------------------------------------------------------------------------------------

    async def _run_under_grant(self) -> None:
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
        """Extend the grant, and keep the broker from delivering the message again, until the visit is reported."""
        again, working_every = 0.0, self._ctx.ack_wait_s / 3
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
                again = now + _EXTEND_RETRY_S
                await self._extend()

    async def _still_working(self) -> None:
        try:
            await self._message.working()
        except Transient as error:
            log.debug("visit_heartbeat.dropped", lease=self._shard.lease, error=str(error))

    async def _extend(self) -> None:
        try:
            granted = await self._ctx.owners.extend(LeaseId(self._shard.lease), self._grant, self._holder)
        except Transient as error:
            log.info("grant_extension.delayed", lease=self._shard.lease, error=str(error))
            return
        if not granted:
            self._lose("the owner says so")
            self._cut()
            return
        self._apply_extension()
        if self._scope is not None and not self._scope.expired() and not self._stopping:
            self._scope.reschedule(asyncio.get_running_loop().time() + self._grant.cut_at - self._clock.elapsed())

    def _apply_extension(self) -> None:
        """Apply the extended grant. Send no more requests if it says `stop`, or its delay is too long for the visit."""
        slower = self._grant.delay_s > self._delay_s
        too_late = slower and (not self._slow_down(self._grant.delay_s) or self._next_request_at() > self._until)
        if (self._grant.stop or too_late) and not self._ending.is_set():
            log.info("visit.stopped", lease=self._shard.lease, host=self._shard.host, delay_s=self._delay_s)
            self._admission.end()

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            log.info("visit.lost", lease=self._shard.lease, grant=self._grant.number, reason=reason)

    def _cut(self) -> None:
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    # --- work ---------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Fetch the URLs one by one, unless the visit must end. After the last URL, renew each robots.txt if due."""
        send = partial(self._send, self._shard.urls[-1].url)
        for key, entry in list(self._left.items()):
            await self._report.wait_for_capacity()
            try:
                if self._crawl is None or not await self._fetch_and_settle(key, entry):
                    break
            finally:
                self._admission.release()
        else:
            for origin in self._origins.robots:
                if self._crawl is not None:
                    await self._ctx.robots.renew(origin, self._crawl, send, self._delay_s)
        if self._crawl is not None and not self._ending.is_set():
            await self._origins.decide(self._left.values(), self._crawl, self._ctx.robots, send)
        for key, entry in list(self._left.items()):
            if (robots := self._origins.failure(origin_of(entry.url))) is not None:
                self._settle(key, SettledUrl(outcome.unreachable(key, robots, at_ms=self._clock.unix_ms())))

    async def _fetch_and_settle(self, key: Fingerprint, entry: ShardUrl) -> bool:
        """Fetch a URL and record its outcome. Return True if the visit may continue, False if it must end."""
        exchange = await self._request(key, entry)
        if exchange is None:
            return key not in self._left or self._origins.silent(origin_of(entry.url))
        crawl, answer = exchange
        if self._crawl is None:
            return False
        if isinstance(answer, FetchFailed) and answer.kind is FailureKind.EXCLUDED:
            return self._deny(key, OWNER)
        self._ctx.failpoint("after_fetch")
        self._latency_ms = round(answer.timings.total_s * 1000)
        self._ip = answer.ip or self._ip
        if isinstance(answer, FetchFailed):
            self._settle(key, SettledUrl(outcome.failed(key, answer, at_ms=self._asked_at_ms)))
            end = policy_for(answer.kind)
        else:
            page = Location(entry.url, self._shard.host, key)
            self._settle(key, await self._archived(crawl, page, entry, answer, self._asked_at_ms))
            end = policy_for(answer.status)
        self._adaptive_s = crawl.adaptive_delay_s(self._shard.host, self._latency_ms / 1000)
        if end.host is not None or (self._adaptive_s > 0 and self._shard.delay_ms == 0):
            self._admission.end()  # for robots.txt, too
            return False
        return True

    async def _request(self, key: Fingerprint, entry: ShardUrl) -> tuple[VisitCrawl, Answer | FetchFailed] | None:
        """Request the URL. Return the crawl and the result. None: a rule denied the URL, or the visit must end.

        If the server had closed the kept connection, wait for the host's delay and repeat the request on a fresh one.
        """
        fresh = False
        while True:
            if (crawl := await self._admit(key, entry)) is None:
                return None
            answer = await self._fetch(crawl, crawl.request(entry, fresh=fresh))
            if fresh or not (isinstance(answer, FetchFailed) and answer.stale):
                return crawl, answer
            fresh = True

    async def _admit(self, key: Fingerprint, entry: ShardUrl) -> VisitCrawl | None:
        """Wait until the URL may be requested. Return the crawl. None: a rule denied the URL, or the visit must end."""
        crawl = self._current_crawl()
        while crawl is not None:
            if self._ctx.crawls.excluded(entry.url):
                self._deny(key, OWNER)
                return None
            if self._report.quiet_since is None:
                await crawl.look_up(entry.url)  # before the wait, since a request is sent immediately after it
            if crawl.obeys_robots(self._shard.host):
                robots = await self._robots_of(entry.url, crawl)
                if robots is None or self._origins.fails(origin_of(entry.url)):
                    return None
                if not robots.allows(entry.url, crawl.token):
                    self._deny(key, ExclusionReason.ROBOTS)
                    return None
            now = await self._await_politeness(PATIENCE_S)
            if now is crawl:
                break
            self._admission.leave()
            crawl = now
        return crawl

    def _current_crawl(self) -> VisitCrawl | None:
        """Return the crawl at its present revision, None if the visit must end."""
        self.refresh_crawl()
        if (crawl := self._crawl) is None or self._ending.is_set():
            return None
        delay_s = crawl.delay_s(self._shard.host)
        if crawl.revision != self._shard.spec and delay_s > self._delay_s and not self._slow_down(delay_s):
            return None
        return crawl

    async def _robots_of(self, url: str, crawl: VisitCrawl) -> Robots | None:
        """Return the robots rules of the URL's origin, fetched if necessary. None if the visit must end."""
        if (robots := self._origins.robots.get(origin := origin_of(url))) is not None:
            return robots
        if (robots := await self._ctx.robots.of(origin, crawl, partial(self._send, url), self._delay_s)) is None:
            return None
        delay_s = self._origins.read(origin, robots, crawl, self._clock.unix_ms(), self._delay_s)
        if delay_s > self._delay_s and not self._slow_down(delay_s):
            return None
        if self._report.quiet_since is None:  # A visit of a host that redirects to it may have fetched it just now.
            rested_s = robots.age_s(self._clock.unix_ms())
            self._earliest = max(self._earliest, self._clock.elapsed() + self._delay_s - rested_s)
        return robots

    def _slow_down(self, delay_s: float) -> bool:
        """Use the longer host delay `delay_s` from now on. Return False if the visit must end instead.

        A shard with the delay 0 must end: such a host may have several visits at once, which cannot share a delay.
        """
        if self._shard.delay_ms == 0:
            return False
        self._delay_s = delay_s
        if self._report.quiet_since is None:
            self._earliest = max(self._earliest, self._arrived + delay_s)
        return True

    async def _send(self, via: str, request: FetchRequest, earliest: float) -> Answer | FetchFailed | None:
        """Send `request`, which is for a robots.txt, at `earliest` or later. Return None if the visit must end.

        `via`: a URL of the shard, for which robots.txt is requested. The archive stores it with the answer.
        """
        self._earliest = max(self._earliest, earliest)
        crawl = await self._await_politeness()
        answer = None if crawl is None else await self._fetch(crawl, request)
        if isinstance(answer, FetchFailed) and answer.stale:
            crawl = await self._await_politeness()
            answer = None if crawl is None else await self._fetch(crawl, replace(request, fresh=True))
        if isinstance(answer, Answer) and crawl is not None and self._crawl is not None:
            await self._ctx.archive.keep(crawl.archived, Exchange(answer, self._asked_at_ms, None, via=via), page=False)
        self._admission.release()
        return answer

    async def _await_politeness(self, patience_s: float = inf) -> VisitCrawl | None:
        """Wait for the host's delay and a request slot. Return the crawl at its present revision.

        The caller must then send its request immediately. Return None if the visit must end instead. One such case: the
        host's delay requires a longer wait than `patience_s`. The visit's first request is not subject to `patience_s`.
        """
        begun = self._clock.elapsed()
        while True:
            crawl, now = self._current_crawl(), self._clock.elapsed()
            wait_s = self._next_request_at() - now
            if crawl is None or now + max(wait_s, 0.0) > self._until:
                return None
            if wait_s > patience_s and self._report.quiet_since is not None:
                return None
            if wait_s <= 0:
                if self._admission.held:
                    break
                if not await self._admission.enter(crawl.crawl_id, crawl.spec.weight, crawl.limits.body_bytes):
                    return None
                continue
            self._admission.leave()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._ending.wait()
        if not self._grant.may_send(now):
            self._lose("no time is left for a request")
            return None
        self._ctx.stats.waits.observe(now - begun)
        return crawl

    def _next_request_at(self) -> float:
        """Return when the host's delay permits the next request (Clock.elapsed)."""
        quiet_since = self._report.quiet_since
        delay_s = max(self._delay_s, self._adaptive_s)
        return self._earliest if quiet_since is None else max(self._earliest, quiet_since + delay_s)

    async def _fetch(self, crawl: VisitCrawl, request: FetchRequest) -> Answer | FetchFailed:
        """Send the request. Every request of a visit goes through here, after the politeness wait."""
        self._asked_at_ms = self._clock.unix_ms()
        self._ctx.stats.in_flight += 1
        try:
            answer = await crawl.fetcher.fetch(request)
        finally:
            self._ctx.stats.in_flight -= 1
            self._report.quiet_since = self._clock.elapsed()
            self._admission.leave()
        if isinstance(answer, Answer):
            self._origins.responded(answer)
        return answer

    async def _archived(
        self, crawl: VisitCrawl, page: Location, entry: ShardUrl, answer: Answer, at_ms: int
    ) -> SettledUrl:
        reading = await read_answer(crawl, page, entry, answer, at_ms, self._origins.robots, self._ctx.robots)
        seed = entry.depth == 0 and entry.hops == 0
        exchange = Exchange(answer, at_ms, entry.depth, outlinks=reading.archived, notes=reading.notes, seed=seed)
        exchange = as_revisit(exchange, entry, reading)
        stored = None if reading.unstored else await self._ctx.archive.keep(crawl.archived, exchange)
        self._ctx.failpoint("archived")
        self._ctx.stats.pages += 1
        self._ctx.stats.bytes += len(answer.body)
        links = links_of(crawl, self._shard.host_id, page, reading)
        # The items of a page go with the page. A 304 with a directive leaves both to the next fetch.
        taken = reading.html is not None or (reading.not_indexed in BY_DIRECTIVE and answer.status != 304)
        items = await self._items(crawl, page, reading.html, at_ms) if taken else None
        mark = content_mark(crawl, answer, reading.html, items)
        key, wait_ms = page.fingerprint, retry_after_ms(answer, self._clock.unix_ms())
        result = outcome.answered(key, answer, reading, stored, at_ms=at_ms, retry_after_ms=wait_ms, mark=mark)
        outlinks = tuple(some for some in (reading.outlinks, reading.feeds, reading.requisites) if some is not None)
        return SettledUrl(result, links, outlinks, items)

    async def _items(self, crawl: VisitCrawl, page: Location, html: Html | None, at_ms: int) -> PageItems | None:
        """Return the items that the crawl's rules extract from the page, None if no rule applies to it."""
        taken = await crawl.rules.taken(self._ctx.extractor, crawl.crawl_id, page.url, page.fingerprint, html)
        if taken is None:
            return None
        self._ctx.reporter.refused(crawl, taken.refused)
        return page_items(self._shard, self._grant.number, page, at_ms, taken.items)

    def _deny(self, key: Fingerprint, reason: str) -> bool:
        """Record the URL as excluded for `reason`, without a request. Return True, because the visit continues."""
        self._settle(key, SettledUrl(outcome.denied(key, reason, at_ms=self._clock.unix_ms())))
        return True

    def _settle(self, key: Fingerprint, settled: SettledUrl) -> None:
        entry, shard = self._left.pop(key), self._shard
        settled = self._sitemaps.added(settled, self._crawl, shard.host_id, shard.host, entry, self._origins.robots)
        self._report.add(with_context(settled, self._contexts.get(key)))

    def _note(self) -> HostNote:
        return self._origins.note(self._latency_ms, self._ip)

    def __repr__(self) -> str:
        return f"<Visit {self._shard.host} lease={self._shard.lease} left={len(self._left)}>"
