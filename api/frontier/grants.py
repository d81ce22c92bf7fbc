"""Grants: answer the workers' questions about a partition's leases.

- `begin`: may a visit of the leased shard begin? If so, the worker gets a grant, which is limited in time.
- `extend`: may the visit go on? If so, the grant ends later.

Before the owner permits a worker to fetch, it proves in SQL that its term is still the newest of the partition. The
transaction or read that proves this begins after the worker's question arrived. So an owner that was deposed while its
process slept grants nothing. Before a lease gets a further grant, the owner applies all outcomes that were published
before the question. So the further grant covers only URLs without an outcome.

Each answer depends on the present state of the host and the crawl, not on their state when the lease was made. Example:
the crawl was paused.

- The worker asks `begin`: the owner ends the lease, and the URLs return to the queue.
- The worker asks `extend`: the answer contains `stop`, so the visit starts no further request.
"""

from collections.abc import Sequence
from typing import NamedTuple, assert_never

import structlog
from msgspec import Struct

from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.hosts import Host
from api.frontier.leases import (
    GrantDecision,
    HeldByAnother,
    MayGrant,
    NoSuchLease,
    OldDelivery,
    SameHolder,
    TrackedLease,
)
from api.frontier.stats import TransactionKind
from api.frontier.writer import PartitionWriter
from shared.domain.errors import OwnershipLost, ResourceFull, Transient
from shared.domain.ids import LeaseId
from shared.ports.broker import Broker
from shared.wire.messages import (
    Answer,
    Begin,
    Extend,
    Go,
    Gone,
    Malformed,
    Superseded,
    Wait,
    decode_question,
    encode,
)

log = structlog.get_logger("orb.frontier")

_NOT_YET_MS = 100
_ENDS_SOON_MS = 2_000
"""How long a worker waits before it asks again, if the crawl of the lease is over. The sweep ends such leases."""


class GrantTerms(NamedTuple):
    """How long a worker must wait before it requests a URL of a leased host, in seconds, and whether it must stop.

    - `delay_s`: the delay after each response.
    - `rest_s`: how much of that delay is left now.
    - `blocked_s`: how long the host is still blocked.
    - `stop`: no request may start under this lease.
    """

    delay_s: float
    rest_s: float
    blocked_s: float
    stop: bool


def terms_of(held: TrackedLease, crawl: DispatchCrawl | None, host: Host | None, now: float) -> GrantTerms:
    """Return how long a worker must wait for a lease's host at `now` (`Clock.elapsed`), and if its visit must stop.

    - `crawl`: the crawl of the lease, None if it is unknown.
    - `host`: the host of the lease, None if it is not in memory.

    The fields of the result:

    - `delay_s`: the delay after each response. It is the delay at the time of the lease or the present delay, whichever
      is longer. If `crawl` or `host` is None, it is the delay at the time of the lease.
    - `rest_s`: how long the host must still rest after its last response. 0 if `host` is None.
    - `blocked_s`: how long the host is still blocked. 0 if `host` is None.
    - `stop`: True if the lease was made without a delay, and `delay_s` is above 0 now. Without a delay, several visits
      may request the host at the same time. Together these visits would not keep the new delay, so they must stop.
    """
    leased_s = held.row.delay_ms / 1000
    delay_s = leased_s if crawl is None or host is None else max(leased_s, crawl.delay_s(host.name, host.facts))
    stop = leased_s == 0 and delay_s > 0
    if host is None:
        return GrantTerms(delay_s, 0.0, 0.0, stop)
    rested_at = host.rested_from + max(delay_s, host.last_delay_s)
    return GrantTerms(delay_s, max(0.0, rested_at - now), max(0.0, host.blocked_until - now), stop)


class _PendingAsk(Struct):
    """A worker's question to begin a lease, which waits for its answer (`reply`).

    - `delivery`, `holder`, `lease_hash`: as in the question (`Begin`).
    - `asked`: when the question arrived (`Clock.elapsed`).
    - `newest_grant`: the number of the lease's newest grant when the question arrived, such as 1. None if the lease had
      no grant, or if the question needed no new grant.

    Before a lease gets a further grant, the owner must apply all outcomes of the earlier grants. Otherwise a worker
    might fetch the same URLs again. The owner has applied the outcomes of the grants up to `newest_grant`, but maybe
    not those of later grants. So if the lease has got a later grant meanwhile, the worker must ask again.

    Example: `newest_grant` is 1. While the question waits, another visit gets grant 2, and grant 2 expires. Outcomes of
    grant 2 may not be applied yet, so the worker does not get grant 3 now.
    """

    lease_id: LeaseId
    delivery: int
    holder: str
    asked: float
    newest_grant: int | None
    lease_hash: bytes
    reply: Answer | None = None


class GrantService:
    """Answers the workers that ask to begin or extend a visit, for the leases of one partition."""

    def __init__(self, writer: PartitionWriter, broker: Broker) -> None:
        self._own, self._leases, self._crawls = writer.own, writer.own.leases, writer.own.crawls
        self._writer, self._clock, self._stats, self._broker = writer, writer.clock, writer.stats, broker
        self._asked: list[_PendingAsk] = []

    async def answer(self, data: bytes) -> bytes | None:
        """Return the encoded answer to a worker's encoded question.

        Return None to send no answer: the question cannot be read, or the owner cannot decide it now.
        """
        try:
            question = decode_question(data)
        except Malformed as error:
            log.warning("grant_request.rejected", partition=self._own.partition, error=str(error))
            return None
        try:
            match question:
                case Begin():
                    reply = await self._begin(question)
                case Extend():
                    reply = await self._extend(question)
                case _:
                    assert_never(question)
        except (Transient, OwnershipLost) as error:
            log.warning("grant_request.delayed", partition=self._own.partition, error=str(error))
            reply = None
        self._stats.answers["none" if reply is None else type(reply).__name__.lower()] += 1
        return None if reply is None else encode(reply)

    async def _begin(self, question: Begin) -> Answer | None:
        lease_id, since = LeaseId(question.lease), self._clock.elapsed()
        decision = self._leases.begin(lease_id, question.delivery, question.holder, since, question.lease_hash)
        # An outcome that is not applied yet may have handed back a grant that is live here.
        held = self._leases.get(lease_id) if isinstance(decision, HeldByAnother | MayGrant) else None
        before = held.grant.number if held is not None and held.grant is not None else None
        if before is not None:
            through = await self._broker.last_report(self._own.partition, "outcome")
            if not await self._writer.applied_outcomes(through):
                return None
        ask = _PendingAsk(lease_id, question.delivery, question.holder, since, before, question.lease_hash)
        self._asked.append(ask)
        async with self._writer.writing(TransactionKind.GRANT):
            # The first caller to get the lock answers all pending questions, in one transaction.
            asked, self._asked = self._asked, []
            if asked:
                await self._answer_all(asked)
        return ask.reply

    async def _answer_all(self, asked: Sequence[_PendingAsk]) -> None:
        """Set the `reply` of each question, and grant the leases that may be granted.

        Call it inside `PartitionWriter.writing`. If this process cannot prove that it still owns the partition, a reply
        stays None, and no answer is sent.
        """
        leases = self._leases
        granting: list[tuple[_PendingAsk, TrackedLease]] = []
        proven: list[_PendingAsk] = []
        for ask in asked:
            match self._decide(ask):
                case NoSuchLease() | SameHolder():
                    proven.append(ask)
                case OldDelivery():
                    ask.reply = Superseded()
                case HeldByAnother(seconds):
                    ask.reply = Wait(max(_NOT_YET_MS, int(seconds * 1000) + 1))
                case MayGrant(held, expired):
                    # While this question waited for outcomes, another grant may have begun and expired.
                    behind = held.grant is not None and ask.newest_grant != held.grant.number
                    if behind or any(other is held for _, other in granting):
                        ask.reply = Wait(_NOT_YET_MS)
                    else:
                        ask.reply = await self._count_expired(held) if expired else None
                        if ask.reply is None:
                            ask.reply = await self._refusal(held)
                        if ask.reply is None:
                            granting.append((ask, held))
                case never:
                    assert_never(never)
        if granting:
            await self._grant(granting)
        # A deposed owner does not have newer leases in memory, so "gone", too, requires a proven term.
        if proven and await self._writer.still_owner():
            for ask in proven:
                # During the await above the grant may have expired, and another may have been given.
                match self._decide(ask):
                    case NoSuchLease():
                        ask.reply = Gone()
                    case SameHolder(same):
                        leases.extend(same, self._clock.elapsed())
                        ask.reply = self._go(same)
                    case _:
                        ask.reply = Wait(_NOT_YET_MS)

    def _decide(self, ask: _PendingAsk) -> GrantDecision:
        return self._leases.begin(ask.lease_id, ask.delivery, ask.holder, self._clock.elapsed(), ask.lease_hash)

    async def _count_expired(self, held: TrackedLease) -> Answer | None:
        """Record in SQL that the lease's newest grant has expired, before another worker gets a grant of the lease.

        Return one of these:

        - None: the expiry is recorded, and the lease may get a further grant.
        - `Gone`, as the answer to the worker that asks now: the expiry is recorded, and the lease has ended. The lease
          has failed too often, or has no URLs left.
        - `Wait`, as the answer to the worker that asks now: the database is full, so the expiry is not recorded.

        The expired grant usually counts as a failure of the lease. It does not count if the owner sent the grant late
        (`LeaseGrant.late`): the worker may have stopped waiting before, and so never have begun the visit.

        The host's delay counts from the end of the expired grant. Call this inside `PartitionWriter.writing`.
        """
        grant, row = held.grant, held.row
        if grant is None or grant.end_recorded:  # by an earlier try, which could not write the further grant
            return None
        await self._writer.look_up([row.crawl_id])
        batch = self._writer.batch()
        strikes, urls = row.expired + (not grant.late), len(row.urls)
        host = self._own.hosts.host(row.host_id)
        if host is not None:
            host.rested_from = max(host.rested_from, grant.until)
        lives = batch.record_failures(held, strikes)
        try:
            await self._writer.commit(batch)
        except ResourceFull as error:
            return _wait_for_resource(error)
        grant.end_recorded = True
        log.warning(
            "grant.expired",
            partition=self._own.partition,
            lease=row.lease_id,
            host=row.host,
            strikes=strikes,
            late=grant.late,
            urls=urls,
        )
        self._stats.expired += 1
        self._stats.changed(batch.changes, self._crawls, self._clock.elapsed())
        return None if lives else Gone()

    async def _refusal(self, held: TrackedLease) -> Answer | None:
        """Return the answer that refuses `begin`, or None if a request may start soon.

        Call it inside `PartitionWriter.writing`. If a request would have to wait for long, end the lease and return
        the answer that it is gone. Its URLs return to the queue.
        """
        own = self._own
        if self._crawls.find(held.row.crawl_id) is None:
            await self._writer.look_up([held.row.crawl_id])
        if not self._crawls.going_on(held.row.crawl_id):
            return Wait(_ENDS_SOON_MS)
        terms = self._terms(held)
        if not terms.stop and max(terms.rest_s, terms.blocked_s) <= own.settings.republish_s:
            return Wait(max(_NOT_YET_MS, int(terms.blocked_s * 1000) + 1)) if terms.blocked_s else None
        batch = self._writer.batch(marked=False)
        batch.end(held)
        try:
            await self._writer.commit(batch)
        except ResourceFull as error:
            return _wait_for_resource(error)
        self._stats.called_back += 1
        log.info("lease.recalled", partition=own.partition, lease=held.row.lease_id, host=held.row.host)
        return Gone()

    def _terms(self, held: TrackedLease) -> GrantTerms:
        own, crawl_id = self._own, held.row.crawl_id
        excluded = held.excluded(self._crawls.exclusions)
        stopped = self._crawls.is_stopped(crawl_id) or held.recalled or bool(excluded)
        terms = terms_of(held, self._crawls.find(crawl_id), own.hosts.host(held.row.host_id), self._clock.elapsed())
        return terms._replace(stop=True) if stopped else terms

    async def _grant(self, granting: Sequence[tuple[_PendingAsk, TrackedLease]]) -> None:
        """Grant all these leases in one transaction, and set the replies. Call it inside `PartitionWriter.writing`.

        If the database is full, no lease is granted and each worker must wait. The live grants of other leases
        continue.
        """
        writer = self._writer
        try:
            await writer.store.grant(writer.fence, [held.row.lease_id for _, held in granting])
        except ResourceFull as error:
            for ask, _ in granting:
                ask.reply = _wait_for_resource(error)
            return
        writer.committed()
        for ask, held in granting:
            self._leases.granted(held, ask.delivery, ask.holder, self._clock.elapsed(), asked=ask.asked)
            ask.reply = self._go(held)

    async def _extend(self, question: Extend) -> Answer | None:
        if (lease := self._leases.get(LeaseId(question.lease))) is not None:
            await self._writer.look_up([lease.row.crawl_id])
        # Prove the term before the grant is examined: during this await the grant may expire, and another may begin.
        if not await self._writer.still_owner():
            return None
        held = self._leases.extendable(LeaseId(question.lease), question.grant, question.holder, self._clock.elapsed())
        if held is None or not self._crawls.going_on(held.row.crawl_id):
            return Gone()
        self._leases.extend(held, self._clock.elapsed())
        terms = self._terms(held)
        return Go(
            grant=question.grant,
            expires_ms=int(self._leases.grant_s * 1000),
            delay_ms=_ms(terms.delay_s),
            stop=terms.stop or terms.blocked_s > 0,
        )

    def _go(self, held: TrackedLease) -> Go:
        """Return the answer that permits fetching under the lease's newest grant, with the host's politeness."""
        row, terms = held.row, self._terms(held)
        return Go(
            grant=held.grant.number if held.grant is not None else row.grants,
            expires_ms=int(self._leases.grant_s * 1000),
            not_before_ms=int(terms.rest_s * 1000) + 1,
            remaining=held.remaining(),
            delay_ms=_ms(terms.delay_s),
            stop=terms.stop or terms.blocked_s > 0,
        )


def _wait_for_resource(error: ResourceFull) -> Wait:
    return Wait(max(_NOT_YET_MS, int(error.retry_in * 1000)))


def _ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.999)
