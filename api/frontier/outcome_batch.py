"""What outcomes change: pure decisions, collected as the `Changes` of one transaction.

A batch decides from the committed leases and hosts, and changes neither until `commit` is called after the
transaction. The first outcome of a URL under a live lease wins. Every other outcome is counted as stale. The last
message of a visit (`final`) ends the lease, unless another worker has got a newer grant meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from api.frontier.capacity import Spent
from api.frontier.dead_letters import letter_of_shard
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls, adaptive_schedule
from api.frontier.host_queues import HostQueues
from api.frontier.host_shares import CrawlQueue
from api.frontier.hosts import Host, HostFacts, grown_cap, host_change
from api.frontier.leases import SPLIT_BY, Leases, TrackedLease
from api.frontier.outcome_facts import (
    RecrawlFetch,
    after_denial,
    broken_off,
    count_losses,
    end_of,
    facts_after,
    facts_noted,
    fetch_row,
    reason_of,
    retry_after_s,
)
from api.frontier.ownership import FrontierSettings
from shared.domain.frontier.failure import HOST_UNREACHABLE, Decision, decide, policy_for
from shared.domain.frontier.page_visits import Finding, links_again
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.recrawl_pages import COUNTED, RecrawlPages
from shared.domain.frontier.requisites import requisite_done
from shared.domain.frontier.states import (
    COUNTED_AS_PAGE,
    IS_REQUISITE,
    LOSSES_COUNTED,
    OUTSIDE_BUDGET,
    RETRY,
    REVISIT,
    UrlEnd,
    UrlState,
    queued_as,
)
from shared.domain.frontier.store_model import Changes, DeadLetterRow, LeasedUrl, UrlChange
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, partition_of_id
from shared.ports.broker import QueuedVisit
from shared.wire.messages import HostNote, Outcome, ShardUnreadable, UrlOutcome


@dataclass(slots=True)
class OutcomeBatch:
    """Decides what a batch of outcomes changes, and collects that in `changes`, for one transaction.

    `now` is `Clock.elapsed` in seconds, `now_ms` Unix ms. `rng01` returns a random number in 0..1. `discarded` counts
    the fetches that change nothing, by reason: `late` or `deleted`. The caller first looks up those crawls of the batch
    that are not loaded (`PartitionWriter.look_up`). A crawl that is still missing counts as deleted.
    """

    leases: Leases
    hosts: HostQueues
    crawls: DispatchCrawls
    settings: FrontierSettings
    now: float
    now_ms: int
    rng01: Callable[[], float]
    changes: Changes = field(default_factory=Changes)
    recrawls: Mapping[CrawlId, RecrawlPages] = field(default_factory=dict)
    partition: Partition = Partition(0)  # noqa: RUF009  a NewType returns its argument
    discarded: Counter[str] = field(default_factory=Counter)
    _left: dict[LeaseId, dict[Fingerprint, LeasedUrl]] = field(default_factory=dict)
    _facts: dict[HostId, HostFacts] = field(default_factory=dict)
    _visited: set[HostId] = field(default_factory=set)
    _freed: set[LeaseId] = field(default_factory=set)
    _ended: dict[LeaseId, float] = field(default_factory=dict)
    _releases: list[tuple[HostId, int, float, float]] = field(default_factory=list)
    _settled: dict[tuple[CrawlId, Partition], Spent] = field(default_factory=lambda: defaultdict(Spent))

    def outcome(self, message: Outcome, arrived: float | None = None) -> None:
        """Decide what one outcome message changes, and add that to the batch.

        `arrived`: when the owner received the message (`Clock.elapsed`), None for now. If the message ends the visit,
        the host's next delay begins at the end of the last response, which was `message.quiet_ms` before `arrived`.
        """
        lease_id = LeaseId(message.lease)
        held = None if lease_id in self._freed else self.leases.get(lease_id)
        if held is None or (held.row.crawl_id, held.row.host_id) != (message.crawl, message.host_id):
            self._stale(CrawlId(message.crawl), message.results)
            return
        crawl = self.crawls.find(held.row.crawl_id)
        left = self._left_of(held)
        for result in message.results:
            url = left.pop(Fingerprint(result.fingerprint), None)
            if url is None:
                self._stale(held.row.crawl_id, [result])
            elif crawl is None:
                # The crawl is deleted. Requeue the URL: the counts must stay right until a command removes the rows.
                self._discard("deleted", [result])
                self._give_back(held, Fingerprint(result.fingerprint), url)
            else:
                self._result(held, crawl, url, result)
        newest = held.grant is not None and held.grant.number == message.grant
        rested_from = (self.now if arrived is None else arrived) - max(message.quiet_ms, 0) / 1000
        # URLs that an earlier holder did not attempt belong to the current holder.
        for fingerprint in message.not_attempted if newest else ():
            url = left.pop(Fingerprint(fingerprint), None)
            if url is not None:
                self._give_back(held, Fingerprint(fingerprint), url)
        if message.note is not None and crawl is not None:
            self._note(held, message.note)
        self._write_host_facts(held.row.host_id)
        if message.final and newest:
            self._free(held, left, rested_from)
        elif message.failed and newest and held.grant is not None and not held.grant.end_recorded:
            self._ended[lease_id] = rested_from
            self.record_failures(held, self.changes.expired.get(lease_id, held.row.expired) + 1)

    def unreadable(self, message: ShardUnreadable, partition: Partition, at_ms: int) -> None:
        """Record that a worker could not read a shard: add a dead letter, and count a failure of the shard's lease.

        Count no failure while a worker has a live grant. Too many failures end the lease, now or in a later sweep.
        """
        self.changes.dead_letters.append(letter_of_shard(partition, message, at_ms))
        held = self.leases.at(QueuedVisit(message.pool, HostId(message.host_id), message.slot))
        if held is None or held.row.lease_id in self._freed or held.live(self.now):
            return
        strikes = self.changes.expired.get(held.row.lease_id, held.row.expired) + 1
        if held.grant is not None:
            self.changes.expired[held.row.lease_id] = strikes
        else:
            self.record_failures(held, strikes)

    def record_failures(self, held: TrackedLease, strikes: int) -> bool:
        """End the lease if `strikes` failures are too many. Otherwise set the lease's number of failures to `strikes`.

        A lease fails if a grant expires, a visit fails, or its shard is unreadable. Return True if the lease goes on.
        """
        left = self._left_of(held)
        if left and not self.settings.retries_exhausted(len(left), strikes):
            self.changes.expired[held.row.lease_id] = strikes
            return True
        reason = f"{strikes} grants of this URL ended without an outcome, or its shard could not be read"
        self.split_or_give_up(held, reason)
        return False

    def split_or_give_up(self, held: TrackedLease, reason: str) -> None:
        """End a lease whose shard cannot be fetched in one piece.

        A single URL becomes a dead letter. Several go back to the queue, to be leased again in smaller shards.
        """
        left = self._left_of(held)
        if len(left) == 1:
            [(fingerprint, url)] = left.items()
            left.clear()
            self.changes.dead_letters.append(DeadLetterRow(held.row.crawl_id, "url", self.now_ms, reason, url=url.url))
            self.changes.tallies[held.row.crawl_id, "failed", "poison"] += 1
            self._settle_url(held, fingerprint, url, UrlState.FAILED, 0, url.attempt, "poison")
        elif left:
            self.changes.queue(*_key(held)).shard_cap = max(1, len(left) // SPLIT_BY)
        self.end(held)

    def end(self, held: TrackedLease) -> None:
        """End the lease `held`, under which no worker fetches now. Put its remaining URLs back into the queue."""
        left = self._left_of(held)
        host = self.hosts.host(held.row.host_id)
        unbegun = host.rested_from if host is not None else self.now
        rested = self._ended.get(held.row.lease_id, held.grant.until if held.grant is not None else unbegun)
        self._free(held, left, rested)

    def commit(self) -> None:
        """Apply the decisions to the leases, hosts and budgets in memory, after the transaction has committed."""
        for lease_id, left in self._left.items():
            self.leases.update(lease_id, left, freed=lease_id in self._freed, now=self.now)
        for lease_id, n in self.changes.expired.items():
            if (held := self.leases.get(lease_id)) is not None:
                held.row.expired = n
        for lease_id, rested_from in self._ended.items():
            if (held := self.leases.get(lease_id)) is not None:
                self.leases.handed_back(held, self.now)
                if (host := self.hosts.host(held.row.host_id)) is not None:
                    host.rested_from = max(host.rested_from, rested_from)
        for host_id, facts in self._facts.items():
            if (host := self.hosts.host(host_id)) is not None:
                before, host.facts = host.facts, facts
                # A latency changes adaptive delays only. Dispatch computes those of the other crawls.
                if (before.crawl_delay_ms, before.visited) != (facts.crawl_delay_ms, facts.visited):
                    for other in host.queues.values():
                        self._learn(other, host)
                blocked_ms = facts.health.blocked_until_ms - self.now_ms
                if blocked_ms > 0:
                    self.hosts.block(host, max(host.blocked_until, self.now + blocked_ms / 1000))
        for (crawl_id, host_id), delta in self.changes.queues.items():
            known = self.hosts.find(crawl_id, host_id)
            if known is None:
                self.hosts.mark_incomplete(crawl_id)
                continue
            host, queue = known
            if host_id in self._facts:
                self._learn(queue, host)
            queue.queued += delta.queued
            queue.waiting += delta.waiting
            queue.leased += delta.leased
            queue.pages += delta.pages
            queue.without_requisites = queue.without_requisites and delta.queued <= 0
            queue.stored_only = queue.stored_only and delta.queued <= 0
            if delta.shard_cap is not None:
                queue.cap = delta.shard_cap
            if delta.next_due_ms is not None:
                queue.next_due = min(queue.next_due, self.now + (delta.next_due_ms - self.now_ms) / 1000)
            self.hosts.reschedule(host, queue)
        for host_id, slot, rested_from, delay_s in self._releases:
            if (host := self.hosts.host(host_id)) is not None:
                self.hosts.release(host, slot, rested_from, delay_s)
        for (crawl_id, kind, key), n in self.changes.tallies.items() if self.recrawls else ():
            if kind in COUNTED and (pages := self.recrawls.get(crawl_id)) is not None:
                pages.count(int(key), n, kind)
        self.hosts.learn_signals(self.changes.signals)
        for crawl_id, host_id, _, _ in self.changes.give_up:
            if (known := self.hosts.find(crawl_id, host_id)) is not None:
                known[1].queued = known[1].waiting = 0
                self.hosts.reschedule(*known)
        for (crawl_id, partition), settled in self._settled.items():
            if (crawl := self.crawls.get(crawl_id)) is not None:
                crawl.allowance.settled(partition, settled.leased, settled.pages, settled.bytes)

    def _learn(self, queue: CrawlQueue, host: Host) -> None:
        crawl = self.crawls.find(queue.crawl_id)
        if crawl is not None:
            queue.delay_s, queue.slots = crawl.pace(host.name, host.facts)

    def _result(self, held: TrackedLease, crawl: DispatchCrawl, url: LeasedUrl, result: UrlOutcome) -> None:
        fingerprint = Fingerprint(result.fingerprint)
        crawl_id, place = held.row.crawl_id, (*_key(held), fingerprint)
        adaptive = adaptive_schedule(self.recrawls.get(crawl_id), crawl, self.partition, self.now_ms)
        if result.end == UrlEnd.DENIED:
            denied, queue = (crawl, place, url, result.reason or "denied", self.now_ms), self.hosts.queue(*_key(held))
            made = after_denial(self.changes, *denied, queue, adaptive)
            self._settle_url(held, fingerprint, url, made.state, made.rank, made.attempts, made.reason, made.flags)
            return
        decision = self._decide(held, crawl, url, result)
        self._health(held, crawl, decision, result)
        self.changes.counters[crawl_id]["fetches"] += 1
        if result.end == UrlEnd.ANSWERED:
            self.changes.tallies[crawl_id, "status", str(result.status)] += 1
        page = decision.state is UrlState.DONE and 200 <= result.status < 300 and result.record is not None
        page = page and result.entries < 0 and not url.flags & IS_REQUISITE
        recrawl = crawl.recrawl_of(url)
        if recrawl is not None and (page or url.last is not None or result.entries > 0):
            of = (crawl, recrawl, place, url, result, decision, page, held.row.spec, self.now_ms)
            made = RecrawlFetch(*of, adaptive).verdict(self.changes, self.hosts.queue(*_key(held)))
            if page and made.finding is Finding.NEW:
                self._stored(held, result.size)
            self._settle_url(held, fingerprint, url, made.state, made.rank, made.attempts, made.reason, made.flags)
            return
        row = fetch_row(*place, result, page=page, requisite=url.flags & IS_REQUISITE != 0, revision=held.row.spec)
        self.changes.fetches.append(row)
        attempts = url.attempt if decision.attempt_used else url.attempt - 1
        flags = url.flags & ~(RETRY | REVISIT)
        if decision.state is UrlState.DONE or flags & LOSSES_COUNTED:
            flags = count_losses(self.changes, row, result, flags)
        match decision.state:
            case UrlState.DONE if flags & IS_REQUISITE:
                end = requisite_done(url, flags, result.status, result.mime, attempts)
                self._stored(held, result.size if end.stored else 0, pages=0)
                self._settle_url(held, fingerprint, url, end.state, end.rank, end.attempts, None, end.flags)
            case UrlState.DONE:
                if page and not flags & COUNTED_AS_PAGE:
                    flags |= COUNTED_AS_PAGE
                    self._stored(held, result.size)
                if links_again(url, crawl.max_depth):
                    self._settle_url(held, fingerprint, url, UrlState.QUEUED, url.rank, 0, "depth", flags)
                else:
                    self._settle_url(held, fingerprint, url, UrlState.DONE, 0, attempts, None, flags)
            case UrlState.WAITING:
                due_ms, flags = self.now_ms + int(decision.wait_s * 1000), flags | RETRY
                reason = reason_of(result)
                self.changes.tallies[crawl_id, "retried", reason] += 1
                self._settle_url(held, fingerprint, url, UrlState.WAITING, due_ms, attempts, reason, flags)
            case _:
                self.changes.tallies[crawl_id, "failed", reason_of(result)] += 1
                self._settle_url(held, fingerprint, url, UrlState.FAILED, 0, attempts, reason_of(result), flags)

    def _decide(self, held: TrackedLease, crawl: DispatchCrawl, url: LeasedUrl, result: UrlOutcome) -> Decision:
        end = end_of(result)
        effect = policy_for(end).host
        health = self._facts_of(held.row.host_id).health
        refuses = effect is not None and self._gave_pages(held) and health.after(effect)
        decision = decide(
            end,
            attempt=url.attempt,
            retry=crawl.spec.retry,
            rng01=self.rng01(),
            retry_after_s=retry_after_s(result),
            host_refuses=refuses,
        )
        if decision.state is UrlState.FAILED and broken_off(result):
            # After all attempts a partial page is better than none. It is counted as truncated.
            return replace(decision, state=UrlState.DONE)
        return decision

    def _gave_pages(self, held: TrackedLease) -> bool:
        """Return True if a page of the lease's crawl was ever stored from the host."""
        known = self.hosts.find(*_key(held))
        return (known is not None and known[1].pages > 0) or self.changes.queue(*_key(held)).pages > 0

    def _settle_url(
        self,
        held: TrackedLease,
        fingerprint: Fingerprint,
        url: LeasedUrl,
        state: UrlState,
        rank: int,
        attempts: int,
        reason: str | None,
        flags: int | None = None,
    ) -> None:
        """Add two things to the batch: the new state of a leased URL, and the counters that change with this state.

        - `rank`: the sort key of a QUEUED URL, or the due time of a WAITING URL (Unix ms).
        - `flags`: the new flags in the URL's row, None to keep them. `reason`: the reason in the row, like `http_404`.
        """
        crawl_id, host_id = held.row.crawl_id, held.row.host_id
        flags = url.flags if flags is None else flags
        self.changes.urls.append(UrlChange(crawl_id, host_id, fingerprint, state, rank, attempts, flags, reason))
        queue = self.changes.queue(crawl_id, host_id)
        queue.leased -= 1
        counters = self.changes.counters[crawl_id]
        counters["leased"] -= 1
        if url.flags & OUTSIDE_BUDGET:
            counters["revisiting"] -= 1
        else:
            self._settled_of(held).leased += 1
        if state in (UrlState.QUEUED, UrlState.WAITING) and (part := queued_as(flags)):
            counters[part] += 1
        match state:
            case UrlState.QUEUED:
                queue.queued += 1
                counters["queued"] += 1
            case UrlState.WAITING:
                queue.waiting += 1
                counters["queued"] += 1
                queue.next_due_ms = rank if queue.next_due_ms is None else min(queue.next_due_ms, rank)
            case _:
                counters[state.name.lower()] += 1

    def _give_back(self, held: TrackedLease, fingerprint: Fingerprint, url: LeasedUrl) -> None:
        # A stored page stays due. It leaves the queue of new URLs to them.
        state = UrlState.WAITING if url.flags & REVISIT else UrlState.QUEUED
        self._settle_url(held, fingerprint, url, state, url.rank, url.attempt - 1, None)

    def _stored(self, held: TrackedLease, size: int, pages: int = 1) -> None:
        counters = self.changes.counters[held.row.crawl_id]
        counters["pages"] += pages
        counters["bytes"] += size
        self.changes.queue(held.row.crawl_id, held.row.host_id).pages += pages
        settled = self._settled_of(held)
        settled.pages += pages
        settled.bytes += size

    def _left_of(self, held: TrackedLease) -> dict[Fingerprint, LeasedUrl]:
        """Return the lease's URLs that have no outcome yet, neither in memory nor in this batch."""
        left = self._left.get(held.row.lease_id)
        if left is None:
            left = self._left[held.row.lease_id] = dict(held.row.urls)
        return left

    def _settled_of(self, held: TrackedLease) -> Spent:
        return self._settled[held.row.crawl_id, partition_of_id(held.row.lease_id)]

    def _stale(self, crawl_id: CrawlId, results: Sequence[UrlOutcome]) -> None:
        known = self.crawls.find(crawl_id) is not None
        if results and known:
            self.changes.counters[crawl_id]["stale"] += len(results)
        self._discard("late" if known else "deleted", results)

    def _discard(self, reason: str, results: Sequence[UrlOutcome]) -> None:
        """Count in `discarded[reason]` the results of URLs that were requested. Ignore URLs that were not requested."""
        self.discarded[reason] += sum(result.end != UrlEnd.DENIED for result in results)

    def _free(self, held: TrackedLease, left: dict[Fingerprint, LeasedUrl], rested_from: float) -> None:
        for fingerprint, url in left.items():
            self._give_back(held, fingerprint, url)
        left.clear()
        row = held.row
        self._freed.add(row.lease_id)
        self.changes.freed.append(row.lease_id)
        queue = self.changes.queue(*_key(held))
        queue.active_at_ms = self.now_ms
        if held.row.expired == 0 and queue.shard_cap is None:
            known = self.hosts.find(*_key(held))
            queue.shard_cap = None if known is None else grown_cap(known[1].cap)
        crawl = self.crawls.find(row.crawl_id)
        learnt_s = crawl.delay_s(row.host, self._facts_of(row.host_id)) if crawl is not None else 0.0
        self._releases.append((row.host_id, row.slot, rested_from, max(row.delay_ms / 1000, learnt_s)))

    def _facts_of(self, host_id: HostId) -> HostFacts:
        if host_id not in self._facts:
            host = self.hosts.host(host_id)
            self._facts[host_id] = host.facts if host is not None else HostFacts(HostHealth())
        return self._facts[host_id]

    def _note(self, held: TrackedLease, note: HostNote) -> None:
        crawl, host = self.crawls.find(held.row.crawl_id), self.hosts.host(held.row.host_id)
        facts = self._facts_of(held.row.host_id)
        if note.crawl_delay_ms < facts.crawl_delay_ms and host is not None and not self.crawls.share_rules(host.queues):
            # robots.txt may still require the longer delay of another crawl, whose visits would all be handed back.
            note = replace(note, crawl_delay_ms=-1)
        facts = facts_noted(facts, note, crawl, self.now_ms, self.rng01)
        if note.failure and crawl is not None:
            self.changes.tallies[held.row.crawl_id, "host_failures", note.failure] += 1
            self._perhaps_give_up(held, crawl, facts.health)
        self._facts[held.row.host_id] = facts
        self._visited.add(held.row.host_id)

    def _health(self, held: TrackedLease, crawl: DispatchCrawl, decision: Decision, result: UrlOutcome) -> None:
        facts = self._facts_of(held.row.host_id)
        facts = facts_after(facts, decision.host, result, crawl, held.row.host, self.now_ms, self.rng01)
        if decision.host is not None:
            self._perhaps_give_up(held, crawl, facts.health)
        self._facts[held.row.host_id] = facts
        self._visited.add(held.row.host_id)

    def _write_host_facts(self, host_id: HostId) -> None:
        """Add a host's facts, such as its latency and failures, to `changes`, if messages of the batch changed them."""
        if host_id in self._visited:
            facts = self._facts[host_id]
            if not facts.visited:
                facts = self._facts[host_id] = replace(facts, visited=True)
            self.changes.hosts[host_id] = host_change(host_id, facts, self.now_ms)

    def _perhaps_give_up(self, held: TrackedLease, crawl: DispatchCrawl, health: HostHealth) -> None:
        """Fail the crawl's queued and waiting URLs of the host if `health` says that the host is dead for the crawl."""
        if not health.dead(self.now_ms, crawl.spec.retry, gave_pages=self._gave_pages(held)):
            return
        end = (*_key(held), UrlState.FAILED, HOST_UNREACHABLE)
        if end not in self.changes.give_up:
            self.changes.give_up.append(end)


def _key(held: TrackedLease) -> tuple[CrawlId, HostId]:
    return held.row.crawl_id, held.row.host_id
