"""What a worker's outcomes change: pure decisions, gathered into one transaction's Changes.

A Draft is laid over the committed leases and hosts; nothing shows outside it until `commit` is called after the
transaction. The first outcome of a URL under a live lease wins; everything else is counted stale. `final` frees the
slot only when it comes from the newest grant: an earlier holder's last word must not free a slot that another one
holds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from api.frontier.burying import letter_of_shard
from api.frontier.crawls import ActiveCrawl, Crawls
from api.frontier.fetch_rows import broken_off, count_losses, fetch_row, reason_of
from api.frontier.front import Front
from api.frontier.host_facts import facts_after, facts_noted, host_change, retry_after_s
from api.frontier.hosts import Host, HostFacts
from api.frontier.leases import SPLIT_BY, Held, Leases
from api.frontier.ownership import FrontierSettings
from api.frontier.turns import Queue
from shared.domain.failure import HOST_UNREACHABLE, Decision, decide, policy_for
from shared.domain.fetch import FailureKind
from shared.domain.frontier import COUNTED_AS_PAGE, COUNTED_LOSSES, End, Merge, UrlState, merge_link
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, partition_of_id
from shared.domain.ledger import Changes, DeadLetter, LeasedUrl, UrlChange
from shared.domain.politeness import HostHealth
from shared.ports.broker import QueuedVisit
from shared.wire.messages import HostNote, Outcome, Unreadable, UrlOutcome


@dataclass(slots=True)
class _Release:
    host_id: HostId
    slot: int
    rested_from: float
    delay_s: float


@dataclass(slots=True)
class _Settled:
    """Per crawl and partition: URLs no longer out, new pages among them, their bytes."""

    urls: int = 0
    pages: int = 0
    size: int = 0


def worn_out(urls: int, strikes: int, limits: FrontierSettings) -> bool:
    """Whether a lease of so many URLs came to nothing often enough to be split, or for its only URL to be given up."""
    return strikes >= (limits.bury_after if urls == 1 else limits.split_after)


@dataclass(slots=True)
class Draft:
    """One batch of outcomes being decided. `now` is elapsed seconds, `now_ms` Unix ms, `rng01` gives 0..1.

    The crawls of the batch are loaded or looked up before (`Ownership.look_up`): one that is not found is deleted.
    `discarded` counts the fetches that change nothing, by reason: `late` or `deleted`.
    """

    leases: Leases
    front: Front
    crawls: Crawls
    now: float
    now_ms: int
    rng01: Callable[[], float]
    changes: Changes = field(default_factory=Changes)
    discarded: Counter[str] = field(default_factory=Counter)
    _left: dict[LeaseId, dict[Fingerprint, LeasedUrl]] = field(default_factory=dict)
    _facts: dict[HostId, HostFacts] = field(default_factory=dict)
    _visited: set[HostId] = field(default_factory=set)
    _freed: set[LeaseId] = field(default_factory=set)
    _ended: dict[LeaseId, float] = field(default_factory=dict)
    _releases: list[_Release] = field(default_factory=list)
    _settled: dict[tuple[CrawlId, Partition], _Settled] = field(default_factory=dict)

    def outcome(self, message: Outcome, limits: FrontierSettings) -> None:
        """Decide one outcome."""
        lease_id = LeaseId(message.lease)
        held = None if lease_id in self._freed else self.leases.get(lease_id)
        if held is None or held.row.crawl_id != message.crawl:
            self._stale(CrawlId(message.crawl), message.results)
            return
        crawl = self.crawls.find(held.row.crawl_id)
        left = self._left.setdefault(lease_id, dict(held.row.urls))
        for result in message.results:
            url = left.pop(Fingerprint(result.fingerprint), None)
            if url is None:
                self._stale(held.row.crawl_id, [result])
            elif crawl is None:
                # The crawl is deleted. Until the command that removes its rows, each URL is somewhere.
                self._discard("deleted", [result])
                self._give_back(held, Fingerprint(result.fingerprint), url)
            else:
                self._result(held, crawl, url, result)
        newest = held.grant is not None and held.grant.number == message.grant
        # What an earlier holder left is the present one's to fetch.
        for fingerprint in message.not_attempted if newest else ():
            url = left.pop(Fingerprint(fingerprint), None)
            if url is not None:
                self._give_back(held, Fingerprint(fingerprint), url)
        if message.note is not None and crawl is not None:
            self._note(held, message.note)
        self._keep_facts(held.row.host_id)
        if message.final and newest:
            self._free(held, left, self.now - max(message.quiet_ms, 0) / 1000)
        elif message.failed and newest and held.grant is not None and not held.grant.counted:
            self._ended[lease_id] = self.now - max(message.quiet_ms, 0) / 1000
            self.struck(held, self.changes.expired.get(lease_id, held.row.expired) + 1, limits)

    def unreadable(self, message: Unreadable, partition: Partition, at_ms: int, limits: FrontierSettings) -> None:
        """A worker could not read a shard: a dead letter. What is leased for its place is sent anew, as often as where
        grants run out; while somebody fetches under that lease, the message was another's. Where somebody did, the
        sweep ends it in time: behind what he has reported."""
        self.changes.dead_letters.append(letter_of_shard(partition, message, at_ms))
        held = self.leases.at(QueuedVisit(message.pool, HostId(message.host_id), message.slot))
        if held is None or held.row.lease_id in self._freed or held.live(self.now):
            return
        strikes = self.changes.expired.get(held.row.lease_id, held.row.expired) + 1
        if held.grant is not None:
            self.changes.expired[held.row.lease_id] = strikes
        else:
            self.struck(held, strikes, limits)

    def struck(self, held: Held, strikes: int, limits: FrontierSettings) -> bool:
        """A lease came to nothing for the `strikes`-th time; whether it lives on."""
        left = self._left.setdefault(held.row.lease_id, dict(held.row.urls))
        if left and not worn_out(len(left), strikes, limits):
            self.changes.expired[held.row.lease_id] = strikes
            return True
        self.cut(held, f"{strikes} grants of this URL ended without an outcome, or its shard could not be read")
        return False

    def cut(self, held: Held, reason: str) -> None:
        """End a lease whose shard cannot go on as it is: split several URLs, and bury a single one for the reason."""
        left = self._left.setdefault(held.row.lease_id, dict(held.row.urls))
        match len(left):
            case 0:
                self.end(held)
            case 1:
                self.bury(held, reason)
            case _:
                self.split(held)

    def split(self, held: Held) -> None:
        """Put what is left of a shard back into the queue, to come again in smaller shards."""
        left = self._left.setdefault(held.row.lease_id, dict(held.row.urls))
        queue = self.changes.queue(held.row.crawl_id, held.row.host_id)
        queue.shard_cap = max(1, len(left) // SPLIT_BY)
        self.end(held)

    def end(self, held: Held) -> None:
        """End a lease that no worker holds. What is left goes back to the queue.

        A host whose shard no worker has begun goes on to rest from its last response.
        """
        left = self._left.setdefault(held.row.lease_id, dict(held.row.urls))
        host = self.front.host(held.row.host_id)
        unbegun = host.rested_from if host is not None else self.now
        rested = self._ended.get(held.row.lease_id, held.grant.until if held.grant is not None else unbegun)
        self._free(held, left, rested)

    def bury(self, held: Held, reason: str) -> None:
        """Make the single URL of a lease a dead letter."""
        left = self._left.setdefault(held.row.lease_id, dict(held.row.urls))
        for fingerprint, url in list(left.items()):
            del left[fingerprint]
            self.changes.dead_letters.append(DeadLetter(held.row.crawl_id, "url", self.now_ms, reason, url=url.url))
            self.changes.tallies[held.row.crawl_id, "failed", "poison"] += 1
            self._settle_url(held, fingerprint, url, UrlState.FAILED, 0, url.attempt, "poison")
        self.end(held)

    def commit(self) -> None:
        """Show the decisions: the transaction is in."""
        for lease_id, left in self._left.items():
            self.leases.settle(lease_id, left, freed=lease_id in self._freed, now=self.now)
        for lease_id, n in self.changes.expired.items():
            held = self.leases.get(lease_id)
            if held is not None:
                held.row.expired = n
        for lease_id, rested_from in self._ended.items():
            held = self.leases.get(lease_id)
            if held is not None:
                self.leases.handed_back(held, self.now)
                host = self.front.host(held.row.host_id)
                if host is not None:
                    host.rested_from = max(host.rested_from, rested_from)
        for host_id, facts in self._facts.items():
            host = self.front.host(host_id)
            if host is not None:
                before, host.facts = host.facts, facts
                # A latency changes adaptive delays only, and those of the other crawls when they dispatch.
                if (before.crawl_delay_ms, before.visited) != (facts.crawl_delay_ms, facts.visited):
                    for other in host.queues.values():
                        self._learn(other, facts)
                blocked_ms = facts.health.blocked_until_ms - self.now_ms
                if blocked_ms > 0:
                    self.front.block(host, max(host.blocked_until, self.now + blocked_ms / 1000))
        for (crawl_id, host_id), delta in self.changes.queues.items():
            host = self.front.host(host_id)
            queue = host.queues.get(crawl_id) if host is not None else None
            if host is None or queue is None:
                self.front.mark_incomplete(crawl_id)
                continue
            if host_id in self._facts:
                self._learn(queue, host.facts)
            queue.queued += delta.queued
            queue.waiting += delta.waiting
            queue.leased += delta.leased
            queue.pages += delta.pages
            if delta.shard_cap is not None:
                queue.cap = delta.shard_cap
            if delta.next_due_ms is not None:
                queue.next_due = min(queue.next_due, self.now + (delta.next_due_ms - self.now_ms) / 1000)
            self.front.rearm(host, queue)
        for release in self._releases:
            host = self.front.host(release.host_id)
            if host is not None:
                self.front.released(host, release.slot, release.rested_from, release.delay_s)
        for crawl_id, host_id, _, _ in self.changes.give_up:
            host = self.front.host(host_id)
            queue = host.queues.get(crawl_id) if host is not None else None
            if host is not None and queue is not None:
                queue.queued = queue.waiting = 0
                self.front.rearm(host, queue)
        for (crawl_id, partition), settled in self._settled.items():
            crawl = self.crawls.get(crawl_id)
            if crawl is not None:
                crawl.allowance.settled(partition, settled.urls, settled.pages, settled.size)

    def _learn(self, queue: Queue, facts: HostFacts) -> None:
        crawl = self.crawls.find(queue.crawl_id)
        if crawl is not None:
            queue.delay_s, queue.slots = crawl.pace(facts)

    # --- one URL ------------------------------------------------------------------------------------------------------

    def _result(self, held: Held, crawl: ActiveCrawl, url: LeasedUrl, result: UrlOutcome) -> None:
        fingerprint = Fingerprint(result.fingerprint)
        crawl_id, host_id = held.row.crawl_id, held.row.host_id
        if result.end == End.DENIED:
            reason = result.reason or "denied"
            self.changes.tallies[crawl_id, "excluded", reason] += 1
            self._settle_url(held, fingerprint, url, UrlState.EXCLUDED, 0, url.attempt - 1, reason)
            return
        decision = self._decide(held, crawl, url, result)
        self._health(held, crawl, decision, result)
        counters = self.changes.counters[crawl_id]
        counters["fetches"] += 1
        if result.end == End.ANSWERED:
            self.changes.tallies[crawl_id, "status", str(result.status)] += 1
        page = decision.state is UrlState.DONE and 200 <= result.status < 300 and result.record is not None
        row = fetch_row(crawl_id, host_id, fingerprint, result, page=page)
        self.changes.fetches.append(row)
        attempts = url.attempt if decision.attempt_used else url.attempt - 1
        flags = url.flags
        if decision.state is UrlState.DONE or flags & COUNTED_LOSSES:
            flags = count_losses(self.changes, row, result, flags)
        match decision.state:
            case UrlState.DONE:
                if page and not flags & COUNTED_AS_PAGE:
                    flags |= COUNTED_AS_PAGE
                    self._new_page(held, result.size)
                if merge_link(UrlState.DONE, url.depth, url.least, crawl.max_depth) is Merge.QUEUE_AGAIN:
                    self._settle_url(held, fingerprint, url, UrlState.QUEUED, url.rank, 0, "depth", flags)
                else:
                    self._settle_url(held, fingerprint, url, UrlState.DONE, 0, attempts, None, flags)
            case UrlState.WAITING:
                due_ms = self.now_ms + int(decision.wait_s * 1000)
                self.changes.tallies[crawl_id, "retried", reason_of(result)] += 1
                self._settle_url(held, fingerprint, url, UrlState.WAITING, due_ms, attempts, reason_of(result), flags)
            case _:
                self.changes.tallies[crawl_id, "failed", reason_of(result)] += 1
                self._settle_url(held, fingerprint, url, UrlState.FAILED, 0, attempts, reason_of(result), flags)

    def _decide(self, held: Held, crawl: ActiveCrawl, url: LeasedUrl, result: UrlOutcome) -> Decision:
        if broken_off(result):
            end: FailureKind | int = FailureKind.RESET
        elif result.end == End.ANSWERED:
            end = result.status
        else:
            known = result.reason in FailureKind.__members__.values()
            end = FailureKind(result.reason) if known else FailureKind.OTHER
        effect = policy_for(end).host
        refuses = (
            effect is not None and self._gave_pages(held) and self._facts_of(held.row.host_id).health.after(effect)
        )
        decision = decide(
            end,
            attempt=url.attempt,
            retry=crawl.spec.retry,
            rng01=self.rng01(),
            retry_after_s=retry_after_s(result),
            host_refuses=refuses,
        )
        if broken_off(result) and decision.state is UrlState.FAILED:
            # What came of the page after all attempts is better than nothing. It is counted as cut.
            return replace(decision, state=UrlState.DONE)
        return decision

    def _gave_pages(self, held: Held) -> bool:
        """Return True if the host has given a page of the lease's crawl."""
        host = self.front.host(held.row.host_id)
        queue = host.queues.get(held.row.crawl_id) if host is not None else None
        return (queue is not None and queue.pages > 0) or self.changes.queue(*_key(held)).pages > 0

    def _settle_url(
        self,
        held: Held,
        fingerprint: Fingerprint,
        url: LeasedUrl,
        state: UrlState,
        rank: int,
        attempts: int,
        reason: str | None,
        flags: int | None = None,
    ) -> None:
        """Move one URL out of its lease into `state`, with every count that follows."""
        crawl_id, host_id = held.row.crawl_id, held.row.host_id
        self.changes.urls.append(
            UrlChange(
                crawl_id, host_id, fingerprint, state, rank, attempts, url.flags if flags is None else flags, reason
            )
        )
        queue = self.changes.queue(crawl_id, host_id)
        queue.leased -= 1
        counters = self.changes.counters[crawl_id]
        counters["leased"] -= 1
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
        self._settled_of(held).urls += 1

    def _give_back(self, held: Held, fingerprint: Fingerprint, url: LeasedUrl) -> None:
        self._settle_url(held, fingerprint, url, UrlState.QUEUED, url.rank, url.attempt - 1, None)

    def _new_page(self, held: Held, size: int) -> None:
        counters = self.changes.counters[held.row.crawl_id]
        counters["pages"] += 1
        counters["bytes"] += size
        self.changes.queue(held.row.crawl_id, held.row.host_id).pages += 1
        settled = self._settled_of(held)
        settled.pages += 1
        settled.size += size

    def _settled_of(self, held: Held) -> _Settled:
        key = (held.row.crawl_id, partition_of_id(held.row.lease_id))
        return self._settled.setdefault(key, _Settled())

    def _stale(self, crawl_id: CrawlId, results: Sequence[UrlOutcome]) -> None:
        known = self.crawls.find(crawl_id) is not None
        if results and known:
            self.changes.counters[crawl_id]["stale"] += len(results)
        self._discard("late" if known else "deleted", results)

    def _discard(self, reason: str, results: Sequence[UrlOutcome]) -> None:
        """Count the results for which a request was sent."""
        self.discarded[reason] += sum(result.end != End.DENIED for result in results)

    # --- the host and its slot ----------------------------------------------------------------------------------------

    def _free(self, held: Held, left: dict[Fingerprint, LeasedUrl], rested_from: float) -> None:
        for fingerprint, url in left.items():
            self._give_back(held, fingerprint, url)
        left.clear()
        row = held.row
        self._freed.add(row.lease_id)
        self.changes.freed.append(row.lease_id)
        queue = self.changes.queue(row.crawl_id, row.host_id)
        queue.active_at_ms = self.now_ms
        if held.row.expired == 0 and queue.shard_cap is None:
            queue.shard_cap = self._grown_cap(row.crawl_id, row.host_id)
        crawl = self.crawls.find(row.crawl_id)
        learnt_s = crawl.delay_s(self._facts_of(row.host_id)) if crawl is not None else 0.0
        delay_s = max(row.delay_ms / 1000, learnt_s)
        self._releases.append(_Release(row.host_id, row.slot, rested_from, delay_s))

    def _grown_cap(self, crawl_id: CrawlId, host_id: HostId) -> int | None:
        """After a shard that came through, later ones may be twice as large again; 0 is no cap."""
        host = self.front.host(host_id)
        queue = host.queues.get(crawl_id) if host is not None else None
        if queue is None or queue.cap == 0:
            return None
        return 0 if queue.cap >= 250 else queue.cap * 2

    def _facts_of(self, host_id: HostId) -> HostFacts:
        if host_id not in self._facts:
            host: Host | None = self.front.host(host_id)
            self._facts[host_id] = host.facts if host is not None else HostFacts(HostHealth())
        return self._facts[host_id]

    def _note(self, held: Held, note: HostNote) -> None:
        crawl = self.crawls.find(held.row.crawl_id)
        facts = facts_noted(self._facts_of(held.row.host_id), note, crawl, self.now_ms, self.rng01)
        if note.failure and crawl is not None:
            self.changes.tallies[held.row.crawl_id, "host_failures", note.failure] += 1
            self._perhaps_give_up(held, crawl, facts.health)
        self._facts[held.row.host_id] = facts
        self._visited.add(held.row.host_id)

    def _health(self, held: Held, crawl: ActiveCrawl, decision: Decision, result: UrlOutcome) -> None:
        facts = self._facts_of(held.row.host_id)
        facts = facts_after(facts, decision.host, result, crawl, self.now_ms, self.rng01)
        if decision.host is not None:
            self._perhaps_give_up(held, crawl, facts.health)
        self._facts[held.row.host_id] = facts
        self._visited.add(held.row.host_id)

    def _keep_facts(self, host_id: HostId) -> None:
        """Write what is known of a visited host, once for all results of a message."""
        if host_id in self._visited:
            facts = self._facts[host_id]
            if not facts.visited:
                facts = self._facts[host_id] = replace(facts, visited=True)
            self.changes.hosts[host_id] = host_change(host_id, facts, self.now_ms)

    def _perhaps_give_up(self, held: Held, crawl: ActiveCrawl, health: HostHealth) -> None:
        """Where the host is dead for this crawl, everything of it still queued or waiting fails."""
        if not health.dead(self.now_ms, crawl.spec.retry, gave_pages=self._gave_pages(held)):
            return
        end = (*_key(held), UrlState.FAILED, HOST_UNREACHABLE)
        if end not in self.changes.give_up:
            self.changes.give_up.append(end)


def _key(held: Held) -> tuple[CrawlId, HostId]:
    return held.row.crawl_id, held.row.host_id
