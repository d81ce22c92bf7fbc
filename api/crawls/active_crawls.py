"""Keep the crawls of this master equal to what SQL declares, whichever replica accepted the declaration.

Level-triggered: every pass compares all crawls that SQL declares with all that are loaded. So the next pass makes up
for one that was missed or that the database refused. A refused pass is logged.

Every pass reads what the owners on other masters have spent of a crawl's budget. This may be out of date by one pass:
the dispatching transaction does its own count.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import structlog

from api.frontier.capacity import BudgetReservation, Spent
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls, spec_of
from api.members.partition_owners import PartitionOwners
from shared.domain.crawl.spec import Budget, CrawlSpec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.errors import Permanent, Transient
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import CrawlRow
from shared.domain.ids import CrawlId
from shared.ports.store import Store

log = structlog.get_logger("orb.control")

_TICK_S = 1.0


class ActiveCrawlSync:
    """Keeps `DispatchCrawls` equal to SQL, for the owners of `fleet`."""

    def __init__(self, crawls: DispatchCrawls, fleet: PartitionOwners, store: Store) -> None:
        self._crawls = crawls
        self._fleet = fleet
        self._store = store
        self._poked = asyncio.Event()
        self._unread: set[CrawlId] = set()

    def wake(self) -> None:
        """Start the next pass now."""
        self._poked.set()

    async def run(self) -> None:
        """Run passes until cancelled."""
        while True:
            self._poked.clear()
            try:
                await self.once()
            except Transient as error:
                log.warning("crawl_sync.delayed", error=str(error))
            except Permanent as error:
                log.error("crawl_sync.refused", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._poked.wait()

    async def once(self) -> None:
        """Run one pass."""
        rows = {row.crawl_id: row for row in await self._store.worked_on()}
        moved = False
        for crawl in self._crawls:
            if crawl.crawl_id not in rows:
                self._crawls.remove(crawl.crawl_id)
                self._forget_queues(crawl.crawl_id)
                log.info("crawl.unloaded", crawl=crawl.crawl_id, name=crawl.name)
        for row in rows.values():
            self._load(row)
        await self._read_spending_of_new()
        for row in rows.values():
            moved |= self._keep(row)
        self._crawls.forget_looked_up()
        bounded = [crawl for crawl in self._crawls if crawl.spec.budget.bounded]
        if bounded and not self._fleet.owns_all():
            await self._read_spending_elsewhere(bounded)
        if moved:
            self._fleet.wake()

    def _load(self, row: CrawlRow) -> None:
        """Load a new crawl, or a new revision of a loaded one. Skip a spec that this version cannot read."""
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
        # The loaded hosts have the delays of the previous revision.
        self._forget_queues(row.crawl_id)
        self._mark_queues_incomplete(row.crawl_id)
        log.info("crawl.reloaded", crawl=row.crawl_id, revision=row.revision)

    def _keep(self, row: CrawlRow) -> bool:
        """Set a loaded crawl to the state of its row. Return True if it may now be dispatched and was not before."""
        crawl = self._crawls.get(row.crawl_id)
        if crawl is None or crawl.revision != row.revision:
            return False
        crawl.state = row.state
        before, crawl.dispatching = crawl.dispatching, self._may_dispatch(crawl, row)
        return crawl.dispatching and not before

    async def _read_spending_of_new(self) -> None:
        """Read the spending of new crawls; a crawl is not dispatched before that.

        This is for the partitions claimed already. An owner that claims one later reads the spending itself.
        """
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
            self._mark_queues_incomplete(crawl_id)
            log.info("crawl.loaded", crawl=crawl_id, name=crawl.name, revision=crawl.revision, state=crawl.state)
        self._unread.clear()

    async def _read_spending_elsewhere(self, crawls: Sequence[DispatchCrawl]) -> None:
        """Read from SQL the spending in partitions of other masters. The owners here count their own."""
        spent = await self._store.counters_by_partition([crawl.crawl_id for crawl in crawls])
        # Computed after the read: an owner that claimed meanwhile has read the earlier spending and counts by itself.
        owned = {owner.partition for owner in self._fleet}
        for crawl in crawls:
            for partition, part in spent[crawl.crawl_id].items():
                if partition not in owned:
                    crawl.allowance.restore(partition, Spent(part.pages, part.bytes, part.leased))

    def _forget_queues(self, crawl_id: CrawlId) -> None:
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.hosts.drop_crawl(crawl_id)

    def _mark_queues_incomplete(self, crawl_id: CrawlId) -> None:
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.hosts.mark_incomplete(crawl_id)

    def _may_dispatch(self, crawl: DispatchCrawl, row: CrawlRow) -> bool:
        if crawl.refused is not None or row.state is CrawlState.PAUSED:
            return False
        return not time_spent(crawl.spec.budget, row.active_ms)


def _new(row: CrawlRow, spec: CrawlSpec) -> DispatchCrawl:
    budget = spec.budget
    return DispatchCrawl(
        crawl_id=row.crawl_id,
        name=row.name,
        revision=row.revision,
        spec=spec,
        state=row.state,
        allowance=BudgetReservation(budget.max_pages, budget.max_bytes, {}),
        dispatching=False,
        refused=_refused(row, spec),
    )


def _refused(row: CrawlRow, spec: CrawlSpec) -> str | None:
    """Return and log why the spec keeps the crawl from being dispatched; None if it can be dispatched."""
    reason = refused_pattern(spec.scope, spec.extract)
    if reason is not None:
        log.error("crawl_pattern.refused", crawl=row.crawl_id, name=row.name, revision=row.revision, reason=reason)
    return reason


def time_spent(budget: Budget, active_ms: int) -> bool:
    """Return True if the crawl has used up its `max_seconds`."""
    return budget.max_seconds is not None and active_ms >= budget.max_seconds * 1000


def _renew(crawl: DispatchCrawl, row: CrawlRow, spec: CrawlSpec) -> None:
    crawl.name, crawl.revision, crawl.spec, crawl.refused = row.name, row.revision, spec, _refused(row, spec)
    crawl.allowance.max_pages, crawl.allowance.max_bytes = spec.budget.max_pages, spec.budget.max_bytes
