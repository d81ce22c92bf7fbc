"""Load, change and unload the crawls that this master dispatches.

`api.crawls.reconcile` decides what to do. This module also reads from SQL what the owners on other masters have spent
of a crawl's budget. These numbers may be outdated. That is safe: the transaction that dispatches URLs counts the
spending itself.
"""

from collections.abc import Collection, Iterable

import structlog

from api.crawls.reconcile import LoadCrawl, LoadedCrawl, LocalAction, SetDispatch, UnloadCrawl
from api.frontier.capacity import BudgetReservation, spent_in
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls, spec_of
from api.frontier.owner import Owner
from api.frontier.writer import PartitionWriter
from api.members.partition_owners import PartitionOwners
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.published_specs import size_problem
from shared.ports.store import Store

log = structlog.get_logger("orb.control")


class ActiveCrawlSync:
    """Loads, changes and unloads the crawls that this master dispatches.

    - `crawls`: the loaded crawls.
    - `fleet`: the owners of this master's partitions.
    """

    def __init__(self, crawls: DispatchCrawls, fleet: PartitionOwners, store: Store) -> None:
        self._crawls = crawls
        self._fleet = fleet
        self._store = store
        self._unread: set[CrawlId] = set()
        self._counted: set[CrawlId] = set()
        self._unreadable: dict[CrawlId, Revision] = {}

    def loaded(self, crawl_ids: Iterable[CrawlId]) -> dict[CrawlId, LoadedCrawl]:
        """Return the loaded state of each crawl in `crawl_ids`. Leave out crawls that this master has not loaded."""
        found = {crawl_id: crawl for crawl_id in crawl_ids if (crawl := self._crawls.get(crawl_id)) is not None}
        return {crawl_id: _loaded(crawl) for crawl_id, crawl in found.items()}

    def unreadable(self) -> Collection[tuple[CrawlId, Revision]]:
        """Return (crawl id, revision) of each crawl whose spec this version of the program cannot read."""
        return self._unreadable.items()

    async def apply(self, actions: Iterable[LocalAction]) -> None:
        """Load and unload crawls, and start or stop their dispatch.

        If it raises Transient, the crawls were loaded and unloaded, but no dispatch was started or stopped.
        """
        self._crawls.forget_looked_up()
        changes = []
        for action in actions:
            match action:
                case LoadCrawl(row):
                    self._load(row)
                case UnloadCrawl(crawl_id):
                    self._unload(crawl_id)
                case SetDispatch():
                    changes.append(action)
        await self._read_spending_of_new()
        started = False
        for change in changes:
            if (crawl := self._crawls.get(change.crawl_id)) is not None:
                started |= change.dispatching and not crawl.dispatching
                crawl.state, crawl.dispatching = change.state, change.dispatching
                crawl.refresh_ms = change.refresh_ms
        if started:
            self._fleet.resumed()

    async def read_spending(self, counted: Iterable[CrawlId]) -> None:
        """Read from SQL what owners on other masters have spent of the crawls' budgets. Store it in the loaded crawls.

        `counted`: the crawls whose counters have changed. The spending of owners on this master stays as it is, because
        they count it themselves.
        """
        if self._fleet.owns_all():
            self._counted.clear()
            return
        self._counted.update(counted)
        crawls = [crawl for crawl_id in self._counted if (crawl := self._crawls.get(crawl_id)) is not None]
        crawls = [crawl for crawl in crawls if crawl.spec.budget.bounded or crawl.spec.recrawl.requests_per_day]
        if crawls:
            spent = await self._store.counters_by_partition([crawl.crawl_id for crawl in crawls])
            # Computed after the read: an owner that claimed meanwhile has read the earlier spending and counts itself.
            owned = {owner.partition for owner in self._fleet}
            for crawl in crawls:
                for partition, part in spent[crawl.crawl_id].items():
                    if partition not in owned:
                        crawl.allowance.restore(partition, spent_in(part))
        self._counted.clear()

    def _load(self, row: CrawlRow) -> None:
        """Load a new crawl, or apply a new revision to a loaded crawl.

        Record and skip a spec that this version cannot read.
        """
        crawl = self._crawls.get(row.crawl_id)
        spec = spec_of(row)
        if spec is None:
            self._unreadable[row.crawl_id] = row.revision
            return
        self._unreadable.pop(row.crawl_id, None)
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

    def _unload(self, crawl_id: CrawlId) -> None:
        crawl = self._crawls.get(crawl_id)
        if crawl is not None:
            self._crawls.remove(crawl_id)
            self._forget_queues(crawl_id)
            self._unread.discard(crawl_id)
            log.info("crawl.unloaded", crawl=crawl_id, name=crawl.name)

    async def _read_spending_of_new(self) -> None:
        """Read what was spent of the budgets of newly loaded crawls, so that they can be dispatched.

        Store the numbers in the loaded crawls.
        """
        if not self._unread:
            return
        # An owner that loads its state from SQL meanwhile reads the spending itself, so its partition is skipped.
        # An owner with leases of a new crawl is paused during the read: outcomes might change the spending.
        loaded = {owner.partition: owner.writer for owner in self._fleet if owner.writer is not None}
        leased = {
            partition: self._unread & {held.row.crawl_id for held in writer.own.leases}
            for partition, writer in loaded.items()
        }
        spent = await self._store.counters_by_partition(self._unread)
        loading = {owner.partition for owner in self._fleet if not _same_writer(owner, loaded.get(owner.partition))}
        for crawl_id, parts in spent.items():
            if (crawl := self._crawls.get(crawl_id)) is not None:
                for partition, part in parts.items():
                    if partition not in loading and crawl_id not in leased.get(partition, ()):
                        crawl.allowance.restore(partition, spent_in(part))
        for partition, crawl_ids in leased.items():
            if crawl_ids:
                await self._read_spending_at(loaded[partition], crawl_ids)
        for crawl_id in spent:
            if (crawl := self._crawls.get(crawl_id)) is not None:
                self._mark_queues_incomplete(crawl_id)
                log.info("crawl.loaded", crawl=crawl_id, name=crawl.name, revision=crawl.revision, state=crawl.state)
        self._unread.clear()

    async def _read_spending_at(self, writer: PartitionWriter, crawl_ids: Collection[CrawlId]) -> None:
        """Pause `writer`, read what the crawls have spent in its partition, and store it in the loaded crawls."""
        partition = writer.own.partition
        async with writer.paused():
            spent = await self._store.counters_in(crawl_ids, [partition])
            if writer.over:  # Its owner reads the spending again before it goes on.
                return
            for crawl_id, part in spent.items():
                if (crawl := self._crawls.get(crawl_id)) is not None:
                    crawl.allowance.restore(partition, spent_in(part))

    def _forget_queues(self, crawl_id: CrawlId) -> None:
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.hosts.drop_crawl(crawl_id)

    def _mark_queues_incomplete(self, crawl_id: CrawlId) -> None:
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.hosts.mark_incomplete(crawl_id)


def _same_writer(owner: Owner, writer: PartitionWriter | None) -> bool:
    """Return True if `writer` is still the writer of this owner, and its ownership has not ended."""
    return writer is not None and owner.writer is writer and not writer.over


def _loaded(crawl: DispatchCrawl) -> LoadedCrawl:
    max_s = crawl.spec.budget.max_seconds
    return LoadedCrawl(
        crawl.revision,
        crawl.state,
        crawl.dispatching,
        crawl.spec.pool,
        None if max_s is None else int(max_s * 1000),
        crawl.refused is not None,
        crawl.refresh_ms,
    )


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
        refresh_ms=row.refresh_ms,
    )


def _refused(row: CrawlRow, spec: CrawlSpec) -> str | None:
    """Return why workers cannot use the spec: it has a pattern that they refuse, or it is too large to be published.

    Return None if they can use it. A crawl with such a reason must not be dispatched. Here only a refused pattern is
    logged. The field `blocking_reason` of the API shows both.
    """
    reason = refused_pattern(spec.scope, spec.extract, spec.recrawl, spec.priority, spec.overrides)
    if reason is not None:
        log.error("crawl_pattern.refused", crawl=row.crawl_id, name=row.name, revision=row.revision, reason=reason)
        return reason
    too_large = size_problem(row.spec.encode())
    return None if too_large is None else str(too_large)


def _renew(crawl: DispatchCrawl, row: CrawlRow, spec: CrawlSpec) -> None:
    crawl.name, crawl.revision, crawl.spec, crawl.refused = row.name, row.revision, spec, _refused(row, spec)
    crawl.allowance.max_pages, crawl.allowance.max_bytes = spec.budget.max_pages, spec.budget.max_bytes
