"""The crawls of this master, kept equal to SQL: what operators declared, whichever replica they asked.

Level-triggered: every pass compares all that is to be worked on with all that is, so that a pass that was missed is
made up for by the next; so is one that the database refused, which the log tells.

Every pass reads anew what the owners of other masters have spent of a crawl's budget. It may be out of date by a pass:
the dispatching transaction counts for itself.
"""

import asyncio
from contextlib import suppress

import structlog

from api.control.fleet import Fleet
from api.frontier.crawls import ActiveCrawl, Crawls, spec_of
from api.frontier.room import Allowance, Spent
from shared.domain.crawl import Budget, CrawlSpec
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId
from shared.domain.ledger import CrawlRow
from shared.domain.spec_rules import refused_pattern
from shared.ports.store import Store

log = structlog.get_logger("orb.control")

_TICK_S = 1.0


class Crawling:
    """Keeps `Crawls` as SQL says, for the owners of `fleet`."""

    def __init__(self, crawls: Crawls, fleet: Fleet, store: Store) -> None:
        self._crawls = crawls
        self._fleet = fleet
        self._store = store
        self._poked = asyncio.Event()

    def wake(self) -> None:
        """Look now."""
        self._poked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._poked.clear()
            try:
                await self.once()
            except Transient as error:
                log.warning("crawling.waits", error=str(error))
            except Permanent as error:
                log.error("crawling.refused", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._poked.wait()

    async def once(self) -> None:
        """One pass."""
        rows = {row.crawl_id: row for row in await self._store.worked_on()}
        moved = False
        for crawl in self._crawls:
            if crawl.crawl_id not in rows:
                self._crawls.remove(crawl.crawl_id)
                self._forget_queues(crawl.crawl_id)
                log.info("crawl.left", crawl=crawl.crawl_id, name=crawl.name)
        for row in rows.values():
            moved |= await self._keep(row)
        self._crawls.forget_looked_up()
        for crawl in self._crawls:
            if crawl.spec.budget.bounded and not self._fleet.owns_all():
                await self._hear_of_spending(crawl)
        if moved:
            self._fleet.wake()

    async def _keep(self, row: CrawlRow) -> bool:
        """Make one crawl be as its row says; whether it may now be dispatched and was not before."""
        crawl = self._crawls.get(row.crawl_id)
        if crawl is None or crawl.revision != row.revision:
            spec = spec_of(row)
            if spec is None:
                return False
            if crawl is None:
                crawl = await self._taken_up(row, spec)
            else:
                _renew(crawl, row, spec)
                self._crawls.put(crawl)
                # The hosts in hand have delays of the revision before.
                self._forget_queues(row.crawl_id)
                self._have_queues_read(row.crawl_id)
                log.info("crawl.renewed", crawl=row.crawl_id, revision=row.revision)
        crawl.state = row.state
        before, crawl.dispatching = crawl.dispatching, self._may_dispatch(crawl, row)
        return crawl.dispatching and not before

    async def _taken_up(self, row: CrawlRow, spec: CrawlSpec) -> ActiveCrawl:
        """A crawl that this master did not know. Owners that claim a partition from now on read themselves what was
        spent in it; for those that have, it is read here."""
        budget = spec.budget
        crawl = ActiveCrawl(
            crawl_id=row.crawl_id,
            name=row.name,
            revision=row.revision,
            spec=spec,
            state=row.state,
            allowance=Allowance(budget.max_pages, budget.max_bytes, {}),
            dispatching=False,
            refused=_refused(row, spec),
        )
        self._crawls.put(crawl)
        for partition, part in (await self._store.counters_by_partition(row.crawl_id)).items():
            crawl.allowance.restore(partition, Spent(part.pages, part.bytes, part.leased))
        self._have_queues_read(row.crawl_id)
        log.info("crawl.taken_up", crawl=row.crawl_id, name=row.name, revision=row.revision, state=row.state)
        return crawl

    async def _hear_of_spending(self, crawl: ActiveCrawl) -> None:
        """What is owned here is counted here; of the rest, SQL tells."""
        parts = await self._store.counters_by_partition(crawl.crawl_id)
        # Looked at after the read: an owner reads by itself what was spent before it, and counts from then on.
        owned = {owner.partition for owner in self._fleet}
        for partition, part in parts.items():
            if partition not in owned:
                crawl.allowance.restore(partition, Spent(part.pages, part.bytes, part.leased))

    def _forget_queues(self, crawl_id: CrawlId) -> None:
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.front.drop_crawl(crawl_id)

    def _have_queues_read(self, crawl_id: CrawlId) -> None:
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.front.mark_incomplete(crawl_id)

    def _may_dispatch(self, crawl: ActiveCrawl, row: CrawlRow) -> bool:
        if crawl.refused is not None or row.state is CrawlState.PAUSED:
            return False
        return not time_is_up(crawl.spec.budget, row.active_ms)


def _refused(row: CrawlRow, spec: CrawlSpec) -> str | None:
    """Return why nothing of the crawl can be sent out by its spec, and log it; None if it can."""
    reason = refused_pattern(spec.scope, spec.extract)
    if reason is not None:
        log.error("crawl.pattern_refused", crawl=row.crawl_id, name=row.name, revision=row.revision, reason=reason)
    return reason


def time_is_up(budget: Budget, active_ms: int) -> bool:
    """Whether the crawl was worked on for as long as it may be."""
    return budget.max_seconds is not None and active_ms >= budget.max_seconds * 1000


def _renew(crawl: ActiveCrawl, row: CrawlRow, spec: CrawlSpec) -> None:
    crawl.name, crawl.revision, crawl.spec, crawl.refused = row.name, row.revision, spec, _refused(row, spec)
    crawl.allowance.max_pages, crawl.allowance.max_bytes = spec.budget.max_pages, spec.budget.max_bytes
