"""The state in memory of a partition that is owned, and decisions by it. Pure; times are monotonic seconds.

Invariant: an `Ownership` mirrors the last committed transaction. It changes only inside `PartitionWriter.writing`,
after a commit. If it is unknown whether a transaction committed, the ownership is dropped and loaded again.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from api.frontier.capacity import PoolCapacity
from api.frontier.commands import Commands
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls, adaptive_schedule
from api.frontier.host_queues import HostQueues
from api.frontier.hosts import facts_of
from api.frontier.leases import Leases, TrackedLease
from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.recrawl_pages import PageCounts, RecrawlPages
from shared.domain.frontier.states import Position
from shared.domain.frontier.store_model import FIRST_HOST, Changes, Claimed, CommandRun, DiscoveryResult, QueueRow
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, numbered
from shared.ports.broker import ReportKind
from shared.runtime.wake_up import WakeUp

_COMMANDS_UNREAD_S: Final = 30.0
"""For this many seconds after the claim of a partition, its new owner may not have read all commands.

An unread `rescope` command means that queued URLs may be outside the crawl's changed scope. So during this time, the
owner checks the URLs of each new lease by the scope before it publishes the shard. Crawls with an unchanged spec need
no check.
"""


class FrontierSettings(Struct, frozen=True):
    """Limits of an owner, in seconds and counts.

    - `grant_s`: how long a worker may fetch without asking again.
    - `longest_grant_s`: how long a grant of an earlier owner may last. If `grant_s` is longer, `grant_s` is used.
    - `ack_wait_s`: the time after which the broker delivers an unacknowledged shard again.
    - `barrier_s`: how long the owner waits at most for earlier outcomes to be applied. It waits before it answers a
      worker that asks for a grant, and before it ends leases.
    - `republish_s`: how old a published shard must be before it is published again.
    - `max_hosts`: hosts kept in memory per partition. The other hosts stay in SQL.
    - `batch`, `batch_bytes`: the maximum number of reports that one transaction applies, and their maximum bytes.
    - `linger_s`: how long a small batch waits for more, so that transactions stay few.
    - `dispatch_batch_size`: leases written in one transaction.
    - `orphans_interval_s`: how often the queues are searched for shards without a lease.
    - `split_after_expiries`: expired grants after which a shard of several URLs is split into smaller ones.
    - `dead_letter_after_expiries`: expired grants after which the single URL of a lease becomes a dead letter.
    - `first_claim_rests`: used when an owner claims a partition that never had a host. True: the first request to each
      host waits for the host's delay. False: the first request is sent at once. In all other partitions it waits.
    """

    partitions: int = 64
    grant_s: float = 30.0
    ack_wait_s: float = 30.0
    republish_s: float = 10.0
    barrier_s: float = 5.0
    sweep_interval_s: float = 1.0
    max_hosts: int = 5_000
    batch: int = 256
    batch_bytes: int = 1 << 20
    linger_s: float = 0.02
    dispatch_batch_size: int = 64
    orphans_interval_s: float = 10.0
    longest_grant_s: float = 0.0
    split_after_expiries: int = 2
    dead_letter_after_expiries: int = 5
    first_claim_rests: bool = False

    def retries_exhausted(self, urls: int, strikes: int) -> bool:
        """Return True if a lease that failed `strikes` times must end.

        `urls`: how many of its URLs have no outcome. A single URL is given up. Several are split into smaller shards.
        """
        return strikes >= (self.dead_letter_after_expiries if urls == 1 else self.split_after_expiries)


class Ownership:
    """The state in memory of one partition under one term: its position, leases, host queues and commands.

    All tasks of the owner share it.

    - `in_hand`: by kind, the broker's time (Unix ns) of the oldest report that is read but not applied.
    - `with_contexts`: True for a crawl if any of its URLs in this partition has a seed context (labels or a source).
      A crawl without an entry was not looked up in SQL yet.
    - `orphans_suspected`: True if the broker may have a shard without a lease. Then the next sweep searches the
      broker's visit queues for shards without a lease.
    - `work`: wakes dispatch.
    - `moved`: wakes the tasks that wait until more reports are applied.
    - `repair_needed`: notified when something may need repair. If a round of the sweep has left nothing to repair, the
      sweep first waits for this notice, or until it must search for orphaned shards.
    - `settings_changed`: notified when settings change. Before each new round, the sweep pauses for `sweep_interval_s`.
      This notice ends the pause early.
    """

    def __init__(
        self,
        claimed: Claimed,
        *,
        crawls: DispatchCrawls,
        capacity: PoolCapacity,
        settings: FrontierSettings,
        now: float,
    ) -> None:
        self.partition: Partition = claimed.fence.partition
        self.position: Position = claimed.position
        self.settings = settings
        self.crawls = crawls
        self.capacity = capacity
        self.next_host = claimed.next_host
        self.next_lease = claimed.next_lease
        self.work, self.moved, self.settings_changed, self.repair_needed = WakeUp(), WakeUp(), WakeUp(), WakeUp()
        self.leases = Leases(grant_s=settings.grant_s, longest_s=settings.longest_grant_s)
        self.commands = Commands(claimed.commands)
        # An earlier owner may have fetched any host until just now, unless the partition never had one.
        rested_from = now if claimed.next_host > FIRST_HOST or settings.first_claim_rests else float("-inf")
        self.hosts = HostQueues(
            capacity.shares,
            max_hosts=settings.max_hosts,
            rested_from=rested_from,
            wake=self.work.notify,
            on_incomplete=self.repair_needed.notify,
        )
        self.in_hand: dict[ReportKind, int] = {}
        self.recrawls: dict[CrawlId, RecrawlPages] = {}
        self.with_contexts: dict[CrawlId, bool] = {}
        self.orphans_suspected = False
        self._claimed_at = now

    def __repr__(self) -> str:
        return f"<Ownership p={self.partition} {self.position} {self.leases!r} {self.hosts!r}>"

    def tune(self, settings: FrontierSettings) -> None:
        """Apply changed settings. Grants that were given keep their duration."""
        self.settings = settings
        self.leases.grant_s = settings.grant_s
        self.hosts.max_hosts = settings.max_hosts
        self.settings_changed.notify()
        self.repair_needed.notify()
        self.work.notify()

    def look(self) -> None:
        """Wake dispatch if the partition has a host or a lease in memory. Without any, dispatch has nothing to do."""
        if len(self.hosts) or len(self.leases):
            self.work.notify()

    def stopped(self) -> bool:
        """Return True if dispatch has nothing to do until `resumed` is called.

        Two conditions must be true:

        - No crawl with queues in memory may send requests now. For example, all these crawls are paused.
        - No host in memory has run out of URLs. Such a host would still have to be removed from memory.
        """
        return not self.hosts.may_evict() and all(map(self.crawls.is_stopped, self.hosts.crawls()))

    def resumed(self) -> None:
        """Wake dispatch and the sweep, because a crawl may be dispatched again."""
        self.work.notify()
        self.repair_needed.notify()

    def capacity_changed(self) -> None:
        """Wake dispatch after workers may have got new capacity.

        Do nothing if no host is due, or if the crawls of all due hosts are stopped.
        """
        if not all(map(self.crawls.is_stopped, self.hosts.lines.crawls())):
            self.work.notify()

    def move(self, position: Position) -> None:
        """Store the position of a committed transaction, and wake the tasks that wait for it."""
        self.position = position
        self.moved.notify()
        self.repair_needed.notify()

    def rescoping(self, crawl_id: CrawlId, now: float) -> bool:
        """Return True if queued URLs of the crawl may be outside its scope, because the scope was changed.

        After a change, the command `rescope` applies the new scope to the queued URLs. These cases count:

        - The owner is applying a `rescope` of the crawl.
        - The spec was changed, and the `rescope` may not have reached the owners yet.
        - The spec was ever changed, and the owner claimed the partition less than `_COMMANDS_UNREAD_S` seconds ago.
          The owner may then have an unread `rescope`.

        Return False if the crawl is not loaded for dispatch.
        """
        crawl = self.crawls.get(crawl_id)
        if self.commands.rescopes(crawl_id) or crawl is None:
            return crawl is not None
        return crawl.changing or (crawl.revision > 1 and now - self._claimed_at < _COMMANDS_UNREAD_S)

    def suspect_orphans(self) -> None:
        """Have the next sweep search the queues for shards without a lease."""
        self.orphans_suspected = True
        self.repair_needed.notify()

    def new_changes(self) -> Changes:
        """Return a new `Changes`, to collect what one transaction writes. Only its field `marks` is filled in.

        Each row of a URL that the transaction writes gets a mark: the number of the crawl's newest command in progress.
        A command skips rows whose mark is its own number or a higher one. Example: command 7 is in progress, and a row
        is written now. The row gets the mark 7, so command 7 does not change this newer row.
        """
        return Changes(marks=self.commands.marks())

    def needing_page_counts(self, crawl_ids: Iterable[CrawlId]) -> list[DispatchCrawl]:
        """Return those of the crawls whose page counts must be read from SQL.

        Page counts say how many pages change how often, such as 50 pages that change about once a day. Only a crawl
        that fetches pages sooner if they change often (`recrawl.requests_per_day`) needs page counts. They must be read
        in three cases: they are not in memory, they are outdated, or the limits in the crawl's spec have changed.
        """
        crawls = [crawl for crawl in map(self.crawls.find, set(crawl_ids)) if crawl is not None]
        return [crawl for crawl in crawls if crawl.spec.recrawl.requests_per_day and not self._is_read(crawl)]

    def set_page_counts(self, crawl: DispatchCrawl, counts: PageCounts, now_ms: int) -> None:
        """Store the crawl's page counts in memory. The caller has just read `counts` from SQL.

        Page counts say how many pages change how often, such as 50 pages that change about once a day.
        """
        spec = crawl.spec.recrawl
        interval = PageInterval(RecrawlPolicy.ADAPTIVE, int(spec.min_s * 1000), int(spec.max_s * 1000))
        known = self.recrawls.get(crawl.crawl_id)
        if known is not None and self._is_like(known, crawl):
            known.recount(counts)
        else:
            self.recrawls[crawl.crawl_id] = RecrawlPages(spec.requests_per_day or 1, interval, counts, now_ms)

    def signs(self, crawl_ids: Iterable[CrawlId], now_ms: int) -> dict[CrawlId, PageSigns | None]:
        """Return, by crawl, the rules by which a date in a sitemap or feed makes a page due sooner.

        - A crawl that fetches its pages again, but not by the adaptive schedule, has None: it ignores these dates.
        - A crawl that fetches each page once is not in the result.
        """
        found: dict[CrawlId, PageSigns | None] = {}
        for crawl in map(self.crawls.find, crawl_ids):
            if crawl is None or (recrawl := crawl.recrawl) is None:
                continue
            adaptive = adaptive_schedule(self.recrawls.get(crawl.crawl_id), crawl, self.partition, now_ms)
            found[crawl.crawl_id] = None if adaptive is None else PageSigns(recrawl, adaptive)
        return found

    def _is_read(self, crawl: DispatchCrawl) -> bool:
        known = self.recrawls.get(crawl.crawl_id)
        return known is not None and not known.outdated and self._is_like(known, crawl)

    @staticmethod
    def _is_like(known: RecrawlPages, crawl: DispatchCrawl) -> bool:
        """Return True if `known` was made for the limits that the crawl's spec has now.

        The limits are the requests a day, and the bounds of the interval between two fetches of a page.
        """
        spec = crawl.spec.recrawl
        bounds = (int(spec.min_s * 1000), int(spec.max_s * 1000))
        return known.requests_per_day == spec.requests_per_day and bounds == (
            known.interval.min_ms,
            known.interval.max_ms,
        )

    def allot_lease(self) -> LeaseId:
        """Return a new lease id. It is durable once the dispatch that uses it is committed."""
        lease_id = LeaseId(numbered(self.next_lease, self.partition))
        self.next_lease += 1
        return lease_id

    def offer(self, row: QueueRow, now: float, now_ms: int, *, pinned: bool = False) -> bool:
        """Add a queue from its SQL row to memory, or update it there. Return True if that was done.

        `pinned`: True if a lease of the queue is out. Such a queue is needed in memory, so two rules are relaxed.

        Return False in each of these cases:

        - The crawl is being deleted.
        - The crawl is not loaded for dispatch. With `pinned`, it is enough that the crawl was looked up in SQL.
        - The host is not in memory, and memory has its maximum of hosts. With `pinned`, the host is added all the same.
        """
        crawl = self.crawls.find(row.crawl_id) if pinned else self.crawls.get(row.crawl_id)
        if crawl is None:
            # The crawl may be loaded later. Its queues must be read then.
            self.hosts.mark_incomplete(row.crawl_id)
            return False
        if self.commands.deletes(row.crawl_id):
            return False
        facts = facts_of(row)
        delay_s, slots = crawl.pace(row.host, facts)
        return self.hosts.offer(
            row,
            facts=facts,
            delay_s=delay_s,
            slots=slots,
            now=now,
            now_ms=now_ms,
            pinned=pinned,
            weight=crawl.spec.weight,
            pool=crawl.spec.pool,
        )

    def discovered(self, result: DiscoveryResult, now: float, now_ms: int) -> list[tuple[CrawlId, HostId]]:
        """Update the state in memory after discoveries were committed.

        Return the queues (crawl, host) that the caller must load from SQL:
        - Queues that got URLs and are not in memory.
        - Queues in memory without waiting URLs, if the discoveries made one of their stored pages wait.

        `now` is `Clock.elapsed` in seconds, `now_ms` Unix ms.
        """
        self.next_host = result.next_host
        self.with_contexts.update(dict.fromkeys(result.with_contexts, True))
        for lease_id, fingerprint, depth in result.lowered:
            self.leases.lower(lease_id, fingerprint, depth)
        for lease_id, fingerprint, extra in result.hops:
            self.leases.at_hops(lease_id, fingerprint, extra)
        for lease_id, fingerprint in result.also_pages:
            self.leases.also_page(lease_id, fingerprint)
        for (crawl_id, kind, bucket), n in result.counts.items():
            if (pages := self.recrawls.get(crawl_id)) is not None:
                pages.count(bucket, n, kind)
        for key in result.listing:
            if (known := self.hosts.find(*key)) is not None:
                known[1].found_ms = result.listing_ms
        unread = [key for key in result.due if (queue := self.hosts.queue(*key)) is not None and not queue.waiting]
        for key, due_ms in result.due.items():
            if (known := self.hosts.find(*key)) is not None:
                host, queue = known
                queue.next_due = min(queue.next_due, now + (due_ms - now_ms) / 1000)
                self.hosts.reschedule(host, queue)
            else:
                self.hosts.mark_incomplete(key[0])
        for key in result.requisites:
            if (known := self.hosts.find(*key)) is not None:
                known[1].without_requisites = False
        return unread + [key for key, n in result.queues.items() if not self.hosts.added(*key, n)]

    def outdate_page_counts(self, changes: Changes) -> None:
        """Update the memory after a committed transaction gave up URLs: their state is now `failed` or `excluded`.

        `changes.give_up` names the queues of these URLs. The page counts of their crawls may be wrong now. So these
        counts are marked as outdated, and are read from SQL again.
        """
        for crawl_id, *_ in changes.give_up:
            if (pages := self.recrawls.get(crawl_id)) is not None:
                pages.outdated = True

    def forget_deleted(self, crawl_id: CrawlId, now: float) -> None:
        """Forget a deleted crawl's queues, and its leases without a grant. Its late outcomes are then stale.

        A lease with a grant loses its URLs, but keeps the slot of its host until the grant expires. Then the sweep ends
        the lease.
        """
        self.suspect_orphans()
        self.with_contexts.pop(crawl_id, None)
        for held in self.leases.of_crawl(crawl_id):
            unbegun = held.grant is None
            self.leases.update(held.row.lease_id, {}, freed=unbegun)
            host = self.hosts.host(held.row.host_id)
            if host is not None and unbegun:
                self.hosts.release(host, held.row.slot, now, held.row.delay_ms / 1000)
        self.hosts.drop_crawl(crawl_id)

    def queues_of_host(self, name: str) -> list[tuple[CrawlId, HostId]]:
        """Return the queues (crawl, host) to read again after a command changed the host `name`.

        If the host is not in memory, the list is empty. Otherwise it has one queue for each of these crawls:

        - each crawl that is loaded for dispatch
        - each other crawl that still has a lease of the host, although the crawl is not loaded
        """
        host = self.hosts.host_named(name)
        if host is None:
            return []
        leased = {lease.row.crawl_id for lease in self.leases if lease.row.host_id == host.host_id}
        return [(crawl_id, host.host_id) for crawl_id in {crawl.crawl_id for crawl in self.crawls} | leased]

    def chunk_applied(self, run: CommandRun, rest: int | None, now: float) -> None:
        """Record that a chunk of a command was applied. `rest`: where the next chunk starts, None if this was the last.

        Then update the memory for what the command changed in SQL:

        - EXCLUDE: only after the last chunk, mark the queues and page counts of all crawls to be read again.
        - DELETE: after the last chunk, forget the crawl's queues and leases (`forget_deleted`).
        - Other commands: after each chunk, mark the queues and page counts of the command's crawl to be read again.
        """
        self.commands.advance(run, rest)
        for crawl_id, pages in self.recrawls.items():
            pages.outdated |= rest is None if run.kind == CommandKind.EXCLUDE else crawl_id == run.crawl_id
        if run.kind == CommandKind.EXCLUDE:
            for crawl in self.crawls if rest is None else ():
                self.hosts.mark_stale(crawl.crawl_id)
            return
        if run.kind == CommandKind.DELETE:
            if rest is None:
                self.forget_deleted(run.crawl_id, now)
        elif self.crawls.get(run.crawl_id) is not None:
            if rest is None:
                self.hosts.mark_stale(run.crawl_id)
            else:
                self.hosts.mark_incomplete(run.crawl_id)

    def to_publish(self, held: TrackedLease, now: float) -> bool:
        """Return True if the lease's shard must be published again, because the broker may have lost it.

        That is so if more than `republish_s` passed since the shard was last published, and one of these is true:

        - No worker ever got a grant for the shard.
        - More than `ack_wait_s` passed since the end of its last grant.
        """
        if held not in self.leases or now - held.published_at <= self.settings.republish_s:
            return False
        return held.grant is None or now > held.grant.until + self.settings.ack_wait_s

    def to_end(self, now: float) -> list[TrackedLease]:
        """Return the leases that must end now. None of these leases has a live grant.

        A lease that never had a grant must end if one of these is true:

        - The lease's shard is too large for the broker.
        - The crawl is over, and the shard was published more than `republish_s` ago.

        A lease whose grant has expired must end if one of these is true:

        - The lease's shard is too large for the broker.
        - The crawl is over, or its dispatch is stopped.
        - The worker is known to be dead, or the retries of the lease are exhausted.
        - The lease has no URL left.
        - The lease has a URL that the crawl's scope excludes or that a command must withdraw.
        """
        return [held for held in self.leases if self._is_abandoned(held, now)]

    def _is_abandoned(self, held: TrackedLease, now: float) -> bool:
        row, crawl = held.row, self.crawls.get(held.row.crawl_id)
        over = not self.crawls.going_on(row.crawl_id)
        if held.grant is None:
            return held.too_large is not None or (over and now - held.published_at > self.settings.republish_s)
        return not held.live(now) and bool(
            over
            or held.orphan
            or not row.urls
            or held.too_large is not None
            or held.outside
            or held.recalled
            or (crawl is not None and not crawl.dispatching)
            or self.settings.retries_exhausted(len(row.urls), row.expired)
        )
