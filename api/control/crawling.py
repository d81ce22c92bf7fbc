"""The crawls of this master, kept equal to SQL: what operators declared, whichever replica they asked.

Level-triggered: every pass compares all that is to be worked on with all that is, so that a pass that was missed is
made up for by the next; so is one that the database refused, which the log tells.

Every pass reads anew what the owners of other masters have spent of a crawl's budget. It may be out of date by a pass:
the dispatching transaction counts for itself.
"""

import asyncio
from collections.abc import Sequence
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
        self._unread: set[CrawlId] = set()

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
            self._load(row)
        await self._read_spending_of_new()
        for row in rows.values():
            moved |= self._keep(row)
        self._crawls.forget_looked_up()
        bounded = [crawl for crawl in self._crawls if crawl.spec.budget.bounded]
        if bounded and not self._fleet.owns_all():
            await self._hear_of_spending(bounded)
        if moved:
            self._fleet.wake()

    def _load(self, row: CrawlRow) -> None:
        """Load a crawl that this master does not know, or its new revision. Leave out what this version cannot read."""
        crawl = self._crawls.get(row.crawl_id)
        if crawl is not None and crawl.revision == row.revision:
            return
        spec = spec_of(row)
        if spec is None:
            return
        if crawl is None:
            self._crawls.put(_new(row, spec))
            self._unread.add(row.crawl_id)
            return
        _renew(crawl, row, spec)
        self._crawls.put(crawl)
        # The hosts in hand have delays of the revision before.
        self._forget_queues(row.crawl_id)
        self._have_queues_read(row.crawl_id)
        log.info("crawl.renewed", crawl=row.crawl_id, revision=row.revision)

    def _keep(self, row: CrawlRow) -> bool:
        """Give a loaded crawl the state of its row. Return True if it may now be dispatched and was not before."""
        crawl = self._crawls.get(row.crawl_id)
        if crawl is None or crawl.revision != row.revision:
            return False
        crawl.state = row.state
        before, crawl.dispatching = crawl.dispatching, self._may_dispatch(crawl, row)
        return crawl.dispatching and not before

    async def _read_spending_of_new(self) -> None:
        """Read what was spent of new crawls. Owners that claim a partition from now on read that themselves; for those
        that have, it is read here. A crawl is not dispatched before."""
        self._unread &= {crawl.crawl_id for crawl in self._crawls}
        if not self._unread:
            return
        spent = await self._store.counters_by_partition(self._unread)
        for crawl_id, parts in spent.items():
            crawl = self._crawls.get(crawl_id)
            if crawl is None:
                continue
            for partition, part in parts.items():
                crawl.allowance.restore(partition, Spent(part.pages, part.bytes, part.leased))
            self._have_queues_read(crawl_id)
            log.info("crawl.taken_up", crawl=crawl_id, name=crawl.name, revision=crawl.revision, state=crawl.state)
        self._unread.clear()

    async def _hear_of_spending(self, crawls: Sequence[ActiveCrawl]) -> None:
        """What is owned here is counted here; of the rest, SQL tells."""
        spent = await self._store.counters_by_partition([crawl.crawl_id for crawl in crawls])
        # Looked at after the read: an owner reads by itself what was spent before it, and counts from then on.
        owned = {owner.partition for owner in self._fleet}
        for crawl in crawls:
            for partition, part in spent[crawl.crawl_id].items():
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


def _new(row: CrawlRow, spec: CrawlSpec) -> ActiveCrawl:
    budget = spec.budget
    return ActiveCrawl(
        crawl_id=row.crawl_id,
        name=row.name,
        revision=row.revision,
        spec=spec,
        state=row.state,
        allowance=Allowance(budget.max_pages, budget.max_bytes, {}),
        dispatching=False,
        refused=_refused(row, spec),
    )


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
