"""A worker reduced to its protocol (architecture §3.4 to §3.6), written against the wire messages alone.

It keeps the grant with the real `workers.grant.LeaseGrant`. Every step is a step of the simulated world, so that a
stop, a kill or a lost answer may fall between any two.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, assert_never

from shared.domain.crawl.scope import CompiledScope
from shared.domain.errors import Transient
from shared.domain.explain.excluded_links import UNLISTED
from shared.domain.frontier.states import UrlEnd
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, partition_of_id
from shared.domain.reads.items import PageItems
from shared.domain.web.url import fingerprint, host_of
from shared.ports.broker import Broker, VisitMessage
from shared.wire.items import encode_items
from shared.wire.messages import (
    Begin,
    Discoveries,
    Extend,
    Go,
    Gone,
    HostNote,
    LeftOut,
    Link,
    Malformed,
    Origin,
    Outcome,
    Record,
    ShardUnreadable,
    ShardUrl,
    Superseded,
    UrlOutcome,
    UrlShard,
    Wait,
    decode_answer,
    decode_shard,
    encode,
)
from tests.support.simulation.archive import SimArchive
from tests.support.simulation.broker import ACK_WAIT_S
from tests.support.simulation.web import Answer, SimWeb
from tests.support.simulation.world import Process, World
from workers.grant import Grant

VISITS: Final = 2
_ASK_S: Final = 3.0
_NO_OWNER_S: Final = 2.0
_VISIT_S: Final = 30.0


@dataclass(frozen=True)
class CrawlView:
    """What a worker knows of a crawl. `scopes`: those of its revisions, empty if all links are in scope."""

    max_depth: int | None
    delay_s: float
    scopes: dict[int, CompiledScope] = field(default_factory=dict)
    lastmods: bool = False


@dataclass(eq=False)
class SimVisit:
    """A granted visit. It may hold the lease until `expires` (its clock), unless it is `over`. `asked`: when its last
    question with an answer was sent."""

    lease: int
    grant: Grant
    who: str
    expires: float
    asked: float = 0.0
    over: bool = False
    lost: bool = False


class WorkerError(Exception):
    """An error of the worker's own, in the middle of a visit."""


@dataclass(eq=False)
class Watch:
    """Sees all workers' grants: no lease may be held twice."""

    world: World
    visits: dict[int, list[SimVisit]] = field(default_factory=dict)

    def holds(self, visit: SimVisit) -> None:
        """The visit's grant begins or became longer."""
        now = self.world.now
        if now >= visit.expires:
            return
        mine = self.visits.setdefault(visit.lease, [])
        if visit not in mine:
            mine.append(visit)
        for other in mine:
            if other is not visit and not other.over and not other.lost and now < other.expires:
                self.world.blame(f"lease {visit.lease} is held by {visit.who} and by {other.who}")


@dataclass(eq=False)
class SimWorker:
    """One worker process. `heedless`: it takes its grant for endless, as a faulty worker would. `pool`: the one it
    pulls from now. `errors`: so many of its next visits fail by an error of its own, behind a request."""

    world: World
    process: Process
    broker: Broker
    web: SimWeb
    watch: Watch
    crawls: Callable[[int], CrawlView | None]
    heard: Callable[["SimWorker"], None]
    heedless: bool = False
    batch: int = 1
    pool: Callable[[], str] = lambda: "default"
    errors: int = 0
    archive: SimArchive | None = None
    busy: int = 0
    n: int = 0
    outcomes: int = 0
    given: int = 0
    totals: dict[int, tuple[int, int]] = field(default_factory=dict)

    def start(self) -> None:
        self.turn = asyncio.Lock()
        self.freed = asyncio.Event()
        self.world.spawn(self.process, self._pull(), "pull")
        self.world.spawn(self.process, self._status(), "status")

    async def _status(self) -> None:
        while True:
            if not self.process.stopped:
                self.heard(self)
            await asyncio.sleep(2.0)

    async def _pull(self) -> None:
        while True:
            while self.busy >= VISITS:
                self.freed.clear()
                await self.freed.wait()
            for message in await self.broker.pull_visits(self.pool(), VISITS - self.busy, 5.0):
                self.busy += 1
                self.n += 1
                self.world.spawn(self.process, self._attend(message, f"{self.process.name}/{self.n}"), f"visit{self.n}")

    async def _attend(self, message: VisitMessage, who: str) -> None:
        try:
            await self._begin(message, who)
        except Transient:
            await self._try(lambda: message.nak(_NO_OWNER_S))
        finally:
            self.busy -= 1
            self.freed.set()

    async def _begin(self, message: VisitMessage, who: str) -> None:
        try:
            shard = decode_shard(message.data)
        except Malformed as error:
            await self._tell_unreadable(message, str(error))
            await self._try(message.ack)
            return
        sent = self.world.now
        question = encode(Begin(shard.lease, message.delivery, who, shard.lease_hash))
        match decode_answer(await self.broker.ask(partition_of_id(shard.lease), question, _ASK_S)):
            case Go() as go:
                expires_s = go.expires_ms / 1000
                grant = Grant(
                    go.grant,
                    tuple(go.remaining),
                    sent=sent,
                    arrived=self.world.now,
                    expires_s=expires_s,
                    rest_s=go.not_before_ms / 1000,
                    delay_s=go.delay_ms / 1000,
                    stop=go.stop,
                )
                visit = SimVisit(shard.lease, grant, who, sent + expires_s, sent)
                self.watch.holds(visit)
                try:
                    ended = await self._visit(message, shard, visit)
                except WorkerError:
                    await self._try(lambda: message.nak(0.0))
                    return
                if ended:
                    await self._try(message.ack)
            case Wait(ms):
                await self._try(lambda: message.nak(ms / 1000))
            case Gone():
                await self._try(message.ack)
            case Superseded():
                pass
            case never:
                assert_never(never)

    async def _tell_unreadable(self, message: VisitMessage, reason: str) -> None:
        """Acknowledged only once its owner will hear of it; broken off before, it comes again."""
        origin = message.origin
        assert origin is not None
        told = ShardUnreadable(
            *origin.place, sequence=origin.sequence, worker=self.process.name, reason=reason,
            size=len(message.data), data=message.data,
        )  # fmt: skip
        name = f"unreadable.{origin.place.pool}.{origin.sequence}.{len(message.data)}"
        await self.broker.publish_report(origin.partition, "outcome", encode(told), name)

    async def _visit(self, message: VisitMessage, shard: UrlShard, visit: SimVisit) -> bool:
        """Whether the visit came to its end under its grant."""
        renewing = self.world.spawn(self.process, self._renew(message, shard, visit), "renew")
        try:
            return await self._work(shard, visit)
        finally:
            # The end of a killed worker cannot be known.
            visit.over = not self.process.dead
            renewing.cancel()

    async def _work(self, shard: UrlShard, visit: SimVisit) -> bool:
        crawl = self.crawls(shard.crawl)
        left = {fingerprint(shard.urls[at].url): shard.urls[at] for at in visit.grant.remaining}
        results: list[tuple[UrlOutcome, ShardUrl, Answer]] = []
        rested: float | None = None
        asks_s = self.web.crawl_delay_s(shard.host)
        delay_s = max(shard.delay_ms / 1000, asks_s)
        earliest = visit.grant.not_before
        if asks_s > shard.delay_ms / 1000:
            earliest = max(earliest, self.world.now + asks_s)
        arrived = self.world.now
        if crawl is not None and not (shard.delay_ms == 0 and asks_s > 0):
            for key, url in list(left.items()):
                if self.web.denied(url.url):
                    del left[key]
                    denied = UrlOutcome(key, UrlEnd.DENIED, self._ms(), reason="robots")
                    results.append((denied, url, Answer(0, (), None)))
                else:
                    while True:
                        delay_s = max(delay_s, visit.grant.delay_s)
                        if rested is None and visit.grant.delay_s > shard.delay_ms / 1000:
                            earliest = max(earliest, arrived + visit.grant.delay_s)
                        at = earliest if rested is None else max(earliest, rested + delay_s)
                        if self.world.now >= at or visit.lost or visit.grant.stop:
                            break
                        await asyncio.sleep(at - self.world.now)
                    # Between this look at the clock and the sending lies no step.
                    if not self.heedless:
                        if visit.lost or visit.grant.stop or self.world.now > arrived + _VISIT_S:
                            break
                        if not visit.grant.may_send(self.world.now):
                            visit.lost = True
                            break
                    answer = await self.web.begin(
                        url.url, shard.host, shard.crawl, visit.who, crawl.delay_s, visit.asked
                    )
                    rested = self.world.now
                    await self.world.gate(self.process, "response")
                    if self.errors:
                        self.errors -= 1
                        await self._report(shard, visit, results, rested, failed=not visit.lost)
                        raise WorkerError
                    del left[key]
                    results.append((self._answered(shard, key, url, answer, crawl), url, answer))
                    if answer.status == 503:
                        break
                if len(results) >= self.batch:
                    await self._report(shard, visit, results, rested)
                    results = []
        await self._report(shard, visit, results, rested, ending=list(left), asks_s=asks_s)
        return not visit.lost

    async def _renew(self, message: VisitMessage, shard: UrlShard, visit: SimVisit) -> None:
        again, tell = 0.0, self.world.now + ACK_WAIT_S / 3
        while not visit.lost:
            at = min(max(visit.grant.renew_at, again), tell)
            await asyncio.sleep(max(0.0, at - self.world.now))
            if self.world.now >= tell:
                tell = self.world.now + ACK_WAIT_S / 3
                await self._try(message.working, 1)
            if self.world.now < max(visit.grant.renew_at, again):
                continue
            sent, again = self.world.now, self.world.now + 2.0
            question = encode(Extend(shard.lease, visit.grant.number, visit.who))
            try:
                answer = decode_answer(await self.broker.ask(partition_of_id(shard.lease), question, _ASK_S))
            except Transient:
                continue
            if isinstance(answer, Go):
                visit.grant.extend(sent, answer.expires_ms / 1000)
                visit.expires = max(visit.expires, sent + answer.expires_ms / 1000)
                visit.asked = sent
                visit.grant.delay_s = max(visit.grant.delay_s, answer.delay_ms / 1000)
                visit.grant.stop = visit.grant.stop or answer.stop
                self.watch.holds(visit)
            else:
                visit.lost = True

    # --- reports: archive, discoveries, items, then the outcome -------------------------------------------------------

    async def _report(
        self,
        shard: UrlShard,
        visit: SimVisit,
        results: list[tuple[UrlOutcome, ShardUrl, Answer]],
        rested: float | None,
        *,
        ending: list[Any] | None = None,
        asks_s: float = 0.0,
        failed: bool = False,
    ) -> None:
        await self.world.gate(self.process, "archive")
        crawl = self.crawls(shard.crawl)
        async with self.turn:
            for result, url, answer in results:
                if crawl is not None:
                    await self._discover(shard, url, result.fingerprint, answer, crawl)
        await self._give_items(shard, visit, results)
        final = ending is not None and not visit.lost
        self.outcomes += 1
        number = self.outcomes

        def message() -> bytes:
            return encode(
                Outcome(
                    lease=shard.lease,
                    crawl=shard.crawl,
                    grant=visit.grant.number,
                    host_id=shard.host_id,
                    results=[result for result, _, _ in results],
                    not_attempted=list(ending or ()) if final else [],
                    final=final,
                    quiet_ms=-1 if rested is None else int((self.world.now - rested) * 1000),
                    note=HostNote(crawl_delay_ms=int(asks_s * 1000) if asks_s else -1) if final else None,
                    failed=failed,
                )
            )

        data = message()
        await self._try(
            lambda: self.broker.publish_report(
                partition_of_id(shard.lease), "outcome", data, f"{self.process.name}.{number}"
            )
        )

    async def _give_items(
        self, shard: UrlShard, visit: SimVisit, results: list[tuple[UrlOutcome, ShardUrl, Answer]]
    ) -> None:
        pages = [
            PageItems(
                HostId(shard.host_id), Fingerprint(result.fingerprint), url.url, LeaseId(shard.lease),
                visit.grant.number, self._ms(), (),
            )
            for result, url, answer in results
            if answer.status == 200
        ]  # fmt: skip
        self.given += 1
        name = f"{self.process.name}.items.{self.given}"
        for data in encode_items(CrawlId(shard.crawl), "c", pages):
            await self._try(partial(self.broker.publish_items, CrawlId(shard.crawl), data, name))

    async def _discover(self, shard: UrlShard, url: ShardUrl, key: bytes, answer: Answer, crawl: CrawlView) -> None:
        links = [link for link in _links(url, answer) if _out_of_scope(shard, crawl, link) is None]
        if not links:
            return
        n, total = self.totals.get(shard.crawl, (0, 0))
        n, total = n + 1, total + len(links)
        origins = [Origin(shard.host_id, key, links)]
        lastmods = [[self._ms() // 1000] * len(links)] if crawl.lastmods else []
        data = encode(Discoveries(shard.crawl, shard.spec, self.process.name, n, total, origins, lastmods=lastmods))
        name = f"{self.process.name}.{shard.crawl}.found.{n}"
        await self._try(lambda: self.broker.publish_report(partition_of_id(shard.lease), "discovery", data, name))
        self.totals[shard.crawl] = n, total

    async def _try(self, call: Callable[[], Any], times: int = 1_000_000) -> None:
        for _ in range(times):
            try:
                await call()
            except Transient as error:
                await asyncio.sleep(error.retry_in)
            else:
                return

    def _answered(self, shard: UrlShard, key: bytes, url: ShardUrl, answer: Answer, crawl: CrawlView) -> UrlOutcome:
        links = _links(url, answer)
        record = Record(f"{self.process.name}.warc", self.n, 1) if answer.status == 200 else None
        if self.archive is not None and (record is not None or links):
            how = "L a/@href" if answer.redirect is None else "R Location:"
            record = self.archive.keep(url.url, [(link.url, how) for link in links])
        out = Counter(reason for link in links if (reason := _out_of_scope(shard, crawl, link)) is not None)
        left_out = [LeftOut(reason, n) for reason, n in out.items()] if crawl.scopes else []
        if left_out and self.archive is not None and url.url in self.archive.short:
            left_out.append(LeftOut(UNLISTED, sum(out.values())))
        same = bool(url.etag) and url.digest == answer.digest
        return UrlOutcome(
            key, UrlEnd.ANSWERED, self._ms(), 304 if same else answer.status, latency_ms=400, size=10,
            record=None if same else record, location=answer.redirect, digest=answer.digest,
            etag=answer.digest.hex() or None, left_out=left_out,
        )  # fmt: skip

    def _ms(self) -> int:
        return int(self.world.now * 1000)


def _links(url: ShardUrl, answer: Answer) -> Sequence[Link]:
    """Return the links of an answer, in scope or not."""
    if answer.redirect is not None:
        return [Link(answer.redirect, url.depth, url.hops + 1)]
    return [Link(link, url.depth + 1) for link in answer.links]


def _out_of_scope(shard: UrlShard, crawl: CrawlView, link: Link) -> str | None:
    """Return the reason to leave a link out, by the scope of the shard's revision even if there is a later one."""
    if crawl.max_depth is not None and link.depth > crawl.max_depth:
        return "depth"
    scope = crawl.scopes.get(shard.spec)
    if scope is None:
        return None
    rule = scope.judge(link.url, host_of(link.url), depth=link.depth, via_host=shard.host, hops=link.hops)
    return None if rule is None else rule.name.value
