"""Granting: answers `begin` and `extend` for a partition's leases.

An answer that lets a worker fetch is given only after the term was proved by a transaction or read that began after the
question arrived: a deposed owner, woken after its takeover, therefore grants nothing. A further grant of a lease waits
until the outcomes published up to the question are applied, so that what is left is what is really left.

Each answer is decided by what is known of the host and the crawl now, not when the lease was made. Where no request may
start for long, a lease that asks to begin goes back to the queue, and a visit under way gets `stop`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import structlog

from api.frontier.crawls import ActiveCrawl
from api.frontier.hosts import Host
from api.frontier.leases import (
    Held,
    HeldByAnother,
    LeaseGone,
    MayGrant,
    OldDelivery,
    SameHolder,
)
from api.frontier.ownership import Ownership
from api.frontier.settle import Draft
from api.frontier.tally import Work
from shared.domain.errors import NoRoom, OwnershipLost, Transient
from shared.domain.ids import LeaseId
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
"""The sweep ends the leases of a crawl that is over."""


class Terms(NamedTuple):
    """What holds for a leased host now.

    `delay_s`: the rest after each response. `rest_s`: what is left of it. `blocked_s`: how long the host is blocked.
    `stop`: no request may start under this lease.
    """

    delay_s: float
    rest_s: float
    blocked_s: float
    stop: bool


def terms_of(held: Held, crawl: ActiveCrawl | None, host: Host | None, now: float) -> Terms:
    """Return what holds for the host of a lease at `now`.

    A shard made without a delay cannot take one up: others of its host may be out beside it.
    """
    leased_s = held.row.delay_ms / 1000
    delay_s = leased_s if crawl is None or host is None else max(leased_s, crawl.delay_s(host.facts))
    stop = leased_s == 0 and delay_s > 0
    if host is None:
        return Terms(delay_s, 0.0, 0.0, stop)
    rested_at = host.rested_from + max(delay_s, host.last_delay_s)
    return Terms(delay_s, max(0.0, rested_at - now), max(0.0, host.blocked_until - now), stop)


@dataclass(slots=True)
class _Ask:
    """A question waiting for its answer, since `asked`.

    `caught_up`: the newest grant by then, if the outcomes published before the question are applied.
    """

    lease_id: LeaseId
    delivery: int
    holder: str
    asked: float
    caught_up: int | None
    reply: Answer | None = None


class Granting:
    """Answers the workers of one partition."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self._asked: list[_Ask] = []

    async def answer(self, data: bytes) -> bytes | None:
        """The answer to one question; None (no answer) while it cannot be given."""
        try:
            question = decode_question(data)
        except Malformed as error:
            log.warning("grant.malformed", partition=self._own.partition, error=str(error))
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
            log.warning("grant.unanswered", partition=self._own.partition, error=str(error))
            reply = None
        self._own.tally.answers["none" if reply is None else type(reply).__name__.lower()] += 1
        return None if reply is None else encode(reply)

    async def _begin(self, question: Begin) -> Answer | None:
        own = self._own
        lease_id, since = LeaseId(question.lease), own.clock.elapsed()
        standing = own.leases.begin(lease_id, question.delivery, question.holder, own.clock.elapsed())
        # A grant that seems to last may have been handed back, by an outcome that is not applied yet.
        held = own.leases.get(lease_id) if isinstance(standing, HeldByAnother | MayGrant) else None
        before = held.grant.number if held is not None and held.grant is not None else None
        if before is not None:
            through = await own.broker.last_report(own.partition, "outcome")
            if not await own.applied_outcomes(through, own.settings.barrier_s):
                return None
        ask = _Ask(lease_id, question.delivery, question.holder, since, before)
        self._asked.append(ask)
        async with own.writing(Work.GRANT):
            # Whoever gets the partition first answers everyone who waited with it, in one transaction.
            asked, self._asked = self._asked, []
            if asked:
                await self._stand(asked)
        return ask.reply

    async def _stand(self, asked: Sequence["_Ask"]) -> None:
        """Decide how each asker stands (within `writing`), granting what may be granted."""
        own = self._own
        granting: list[tuple[_Ask, Held]] = []
        proven: list[_Ask] = []
        for ask in asked:
            standing = own.leases.begin(ask.lease_id, ask.delivery, ask.holder, own.clock.elapsed())
            match standing:
                case LeaseGone() | SameHolder():
                    proven.append(ask)
                case OldDelivery():
                    ask.reply = Superseded()
                case HeldByAnother(seconds):
                    ask.reply = Wait(max(_NOT_YET_MS, int(seconds * 1000) + 1))
                case MayGrant(held, expired):
                    # Another grant may have been given and have run out since its outcomes were waited for.
                    behind = held.grant is not None and ask.caught_up != held.grant.number
                    if behind or any(other is held for _, other in granting):
                        ask.reply = Wait(_NOT_YET_MS)
                    else:
                        ask.reply = await self._again(held) if expired else None
                        if ask.reply is None:
                            ask.reply = await self._not_now(held)
                        if ask.reply is None:
                            granting.append((ask, held))
                case _:
                    assert_never(standing)
        if granting:
            await self._grant(granting)
        # A deposed owner knows nothing of newer leases, so "gone", too, is said only under a proven term.
        if proven and await own.store.still_owner(own.fence):
            for ask in proven:
                # Meanwhile the grant may have run out, and another have been given.
                match own.leases.begin(ask.lease_id, ask.delivery, ask.holder, own.clock.elapsed()):
                    case LeaseGone():
                        ask.reply = Gone()
                    case SameHolder(same):
                        own.leases.extended(same, own.clock.elapsed())
                        ask.reply = self._go(same)
                    case _:
                        ask.reply = Wait(_NOT_YET_MS)

    async def _again(self, held: Held) -> Answer | None:
        """What to answer instead of a further grant; None where it may be given (within `writing`)."""
        if held.grant is not None and held.grant.counted:  # there was room for that, and none for the further one
            return None
        try:
            return None if await self._count_expiry(held) else Gone()
        except NoRoom as error:
            return _when_there_is_room(error)

    async def _not_now(self, held: Held) -> Answer | None:
        """Return what to answer while no request may start; None when one may soon (within `writing`).

        A shard that would wait for long goes back to the queue, so that it keeps neither a visit nor its slot.
        """
        own = self._own
        if own.crawls.find(held.row.crawl_id) is None:
            await own.look_up([held.row.crawl_id])
        if not own.crawls.going_on(held.row.crawl_id):
            return Wait(_ENDS_SOON_MS)
        terms = self._terms(held)
        if not terms.stop and max(terms.rest_s, terms.blocked_s) <= own.settings.republish_s:
            return Wait(max(_NOT_YET_MS, int(terms.blocked_s * 1000) + 1)) if terms.blocked_s else None
        draft = Draft(own.leases, own.front, own.crawls, own.clock.elapsed(), own.clock.unix_ms(), lambda: 0.5)
        draft.end(held)
        try:
            await own.store.apply(own.fence, own.position, draft.changes)
        except NoRoom as error:
            return _when_there_is_room(error)
        draft.commit()
        await own.committed()
        own.tally.called_back += 1
        log.info("lease.called_back", partition=own.partition, lease=held.row.lease_id, host=held.row.host)
        return Gone()

    def _terms(self, held: Held) -> Terms:
        own, crawl_id = self._own, held.row.crawl_id
        terms = terms_of(held, own.crawls.find(crawl_id), own.front.host(held.row.host_id), own.clock.elapsed())
        return terms._replace(stop=True) if own.crawls.resting(crawl_id) else terms

    async def _grant(self, granting: Sequence[tuple[_Ask, Held]]) -> None:
        """Give them all, by one transaction (within `writing`). Where there is no room for it, nobody begins, and what
        others hold goes on."""
        own = self._own
        try:
            await own.store.grant(own.fence, [held.row.lease_id for _, held in granting])
        except NoRoom as error:
            for ask, _ in granting:
                ask.reply = _when_there_is_room(error)
            return
        await own.committed()
        for ask, held in granting:
            own.leases.granted(held, ask.delivery, ask.holder, own.clock.elapsed(), asked=ask.asked)
            ask.reply = self._go(held)

    async def _extend(self, question: Extend) -> Answer | None:
        own = self._own
        if (lease := own.leases.get(LeaseId(question.lease))) is not None:
            await own.look_up([lease.row.crawl_id])
        # Then the term, which takes time: meanwhile the grant may run out, and another begin.
        if not await own.store.still_owner(own.fence):
            return None
        held = own.leases.extend(LeaseId(question.lease), question.grant, question.holder, own.clock.elapsed())
        if held is None or not own.crawls.going_on(held.row.crawl_id):
            return Gone()
        own.leases.extended(held, own.clock.elapsed())
        terms = self._terms(held)
        return Go(
            grant=question.grant,
            expires_ms=int(own.settings.grant_s * 1000),
            delay_ms=_ms(terms.delay_s),
            stop=terms.stop or terms.blocked_s > 0,
        )

    def _go(self, held: Held) -> Go:
        """Leave to fetch; a host that was granted before rests from that grant's end."""
        own, row, terms = self._own, held.row, self._terms(held)
        return Go(
            grant=held.grant.number if held.grant is not None else row.grants,
            expires_ms=int(own.settings.grant_s * 1000),
            not_before_ms=int(terms.rest_s * 1000) + 1,
            remaining=held.remaining(),
            delay_ms=_ms(terms.delay_s),
            stop=terms.stop or terms.blocked_s > 0,
        )

    async def _count_expiry(self, held: Held) -> bool:
        """One more grant ran out (within `writing`); whether the lease lives on to be granted again."""
        own = self._own
        await own.look_up([held.row.crawl_id])
        draft = Draft(
            own.leases, own.front, own.crawls, own.clock.elapsed(), own.clock.unix_ms(), lambda: 0.5, own.changes()
        )
        late = held.grant is not None and held.grant.late
        strikes = held.row.expired + (not late)
        host = own.front.host(held.row.host_id)
        if held.grant is not None and host is not None:
            host.rested_from = max(host.rested_from, held.grant.until)
        urls = len(held.row.urls)
        lives = draft.struck(held, strikes, own.settings)
        await own.store.apply(own.fence, own.position, draft.changes)
        draft.commit()
        if held.grant is not None:
            held.grant.counted = True
        await own.committed()
        log.warning(
            "grant.expired",
            partition=own.partition,
            lease=held.row.lease_id,
            host=held.row.host,
            strikes=strikes,
            late=late,
            urls=urls,
        )
        own.tally.expired += 1
        own.tally.changed(draft.changes, own.crawls, own.clock.elapsed())
        return lives


def _when_there_is_room(error: NoRoom) -> Wait:
    return Wait(max(_NOT_YET_MS, int(error.retry_in * 1000)))


def _ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.999)
