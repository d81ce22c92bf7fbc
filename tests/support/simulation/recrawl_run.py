"""A crawl that fetches a changing web again, in virtual time, under one policy and a budget of requests a day.

Its owners are reduced to what a policy needs: a heap of due pages for each partition, the product's budget
(`RecrawlBudget`) and the product's rules for hosts (`HostHealth`, `host_delay`) and failures (`decide`). What an owner
would find in SQL after a takeover is a `Record` for each page; `restart` drops everything else.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from shared.domain.crawl.spec import Politeness, Retry
from shared.domain.frontier.failure import HostEffect, decide
from shared.domain.frontier.politeness import UNREACHABLE_BASE_S, HostHealth, host_delay
from shared.domain.frontier.recrawl_budget import RecrawlBudget, Share, share
from shared.domain.frontier.states import UrlState
from shared.domain.web.fetch import FailureKind
from shared.domain.web.url import partition_of
from tests.support.simulation.changing_web import DAY_S, ChangingWeb, Page, Response, Sitemap, WebHost

PARTITIONS: Final = 4
EPOCH_MS: Final = 1_790_000_000_000
TICK_S: Final = 300.0
_POLITENESS: Final = Politeness()
_RETRY: Final = Retry()
_MISSED_S: Final = DAY_S
_GONE_AFTER: Final = 2


@dataclass(slots=True)
class Record:
    """What is stored of a page: when it is due and was compared last, and what its policy has learned (`code`).

    `fetched`: it was compared at least once. `signalled`: its sitemap
    named a change since the last fetch. `known_s`: until when its policy has taken account of what is known. `bucket`,
    `rate_bucket` and `part`: as which its owner counts it.
    """

    due_s: float
    checked_s: float = 0.0
    code: int = 0
    bucket: int = -1
    rate_bucket: int = 0
    part: float = 0.0
    sign_share: int = 0
    quiet: int = 0
    fetched: bool = False
    signalled: bool = False
    known_s: float = 0.0
    attempts: int = 0
    misses: int = 0
    gone: bool = False


class Policy(Protocol):
    """What decides when pages are fetched again. Times are seconds since the start."""

    def first(self, page: Page, now: float) -> Record:
        """Return the record of a page that was stored at `now`, with its first due time."""

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        """Learn from a comparison, and set when the page is due."""

    def failed(self, page: Page, record: Record, now: float) -> None:
        """Set when a page is due that could not be fetched."""

    def sitemap_first(self, host: WebHost) -> Record | None:
        """Return the record of a host's sitemap. None: the policy reads none."""

    def sitemap_read(
        self, host: WebHost, record: Record, listed: list[tuple[Page, float]], records: dict[int, Record], now: float
    ) -> list[Page]:
        """Learn from a sitemap's pages and their `lastmod`, and set when it is due. Return pages that are due sooner.

        `lastmod` of each is later than its last fetch.
        """

    def tick(self, sent: list[int], now: float) -> None:
        """Do what is due every hour. `sent`: the requests of each partition so far."""

    def restarted(self, pages: list[Page], records: dict[int, Record], sent: list[int]) -> None:
        """Drop what owners keep in memory, and make it anew from the records."""


@dataclass(slots=True)
class Tally:
    """What requests of the measured time were for, and how fresh the pages were. Times in seconds of a page."""

    requests: int = 0
    sitemaps: int = 0
    changed: int = 0
    new_content: int = 0
    unchanged: int = 0
    failed: int = 0
    fresh_s: float = 0.0
    live_s: float = 0.0
    started: list[float] = field(default_factory=list)

    @property
    def freshness(self) -> float:
        """The part of the pages whose stored copy was the page as it was, on average over time."""
        return self.fresh_s / self.live_s

    @property
    def yielded(self) -> float:
        """The part of the requests that brought content which was not stored."""
        return self.new_content / max(self.requests, 1)

    def busiest_day(self) -> int:
        """Return the greatest number of requests in any 24 hours."""
        times = self.started
        return max((bisect_right(times, first + DAY_S - 1e-6) - index for index, first in enumerate(times)), default=0)


@dataclass(slots=True)
class Client:
    """What an owner knows of a host: when it may be requested next."""

    health: HostHealth = field(default_factory=HostHealth)
    free_at: float = 0.0

    def after(self, response: Response, now: float) -> None:
        """Take the response to a request that was sent at `now`."""
        now_ms = EPOCH_MS + int(now * 1000)
        delay_s = host_delay(_POLITENESS, slowed_s=self.health.slowed_ms / 1000)
        effect = _effect(response)
        if effect is None:
            self.health = self.health.answered(now_ms)
        elif effect is HostEffect.UNREACHABLE:
            self.health = self.health.failed(now_ms, retry=_RETRY, base_s=UNREACHABLE_BASE_S, rng01=0.5)
        else:
            self.health = self.health.refused(
                now_ms, effect, retry=_RETRY, delay_s=delay_s, max_delay_s=_POLITENESS.max_delay_s, rng01=0.5,
                retry_after_s=response.retry_after_s,
            )  # fmt: skip
        delay_s = host_delay(_POLITENESS, slowed_s=self.health.slowed_ms / 1000)
        blocked_s = (self.health.blocked_until_ms - EPOCH_MS) / 1000
        self.free_at = max(now + delay_s, blocked_s) + response.took_s


class Run:
    """A crawl of `web` under `policy`, measured from `measured_from` on. `requests_per_day` is for the whole crawl."""

    def __init__(self, web: ChangingWeb, policy: Policy, requests_per_day: int, measured_from: float) -> None:
        self.web, self.policy = web, policy
        self.rpd = requests_per_day
        self.records = {page.number: policy.first(page, 0.0) for page in web.pages}
        for number, host in enumerate(web.hosts):
            if host.sitemap is not Sitemap.NONE and (record := policy.sitemap_first(host)) is not None:
                self.records[~number] = record
        self.tally = Tally()
        self.sent = [0] * PARTITIONS
        self._from = measured_from
        self._partition = {host.name: partition_of(host.name, PARTITIONS) for host in web.hosts}
        self.shares = self._shares()
        self.clients = {host.name: Client() for host in web.hosts}
        self._start(0.0)

    def _shares(self) -> list[Share]:
        counts = [0] * PARTITIONS
        for page in self.web.pages:
            counts[self._partition[page.host.name]] += 1
        return [share(sum(counts[:index]), count, sum(counts)) for index, count in enumerate(counts)]

    def restart(self, now: float) -> None:
        """Stop all owners, and start others from the records, as after a takeover."""
        self.policy.restarted(self.web.pages, self.records, self.sent)
        self._start(now)

    def due(self) -> dict[int, float]:
        """Return when the owners will fetch each page and sitemap next."""
        found: dict[int, float] = {}
        for at, number in (entry for heap in self._heaps for entry in heap):
            if at >= self.records[number].due_s:
                found[number] = min(at, found.get(number, at))
        return found

    def _start(self, now: float) -> None:
        """Start the owners from the records: at the beginning, and after a restart."""
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in range(PARTITIONS)]
        for number, record in self.records.items():
            if not record.gone:
                self._heaps[self._partition[self._host(number).name]].append((record.due_s, number))
        for heap in self._heaps:
            heapify(heap)
        self._budgets = [RecrawlBudget.starting(self.rpd, EPOCH_MS + int(now * 1000)) for _ in range(PARTITIONS)]

    def until(self, end: float, start: float = 0.0) -> None:
        """Let time pass from `start` to `end`."""
        for turn in range(int(start / TICK_S), int(end / TICK_S)):
            now = turn * TICK_S
            if turn % 12 == 0:
                self.policy.tick(self.sent, now)
            for partition in range(PARTITIONS):
                self._turn(partition, now)

    def finish(self) -> Tally:
        """Return the tally, with the freshness of all pages up to now counted."""
        for page in self.web.pages:
            self._count(page, page.stored_at, page.next_change, self.web.end_s)
            self.tally.live_s += max(0.0, min(page.dies_at, self.web.end_s) - self._from)
        return self.tally

    def _turn(self, partition: int, now: float) -> None:
        heap, part = self._heaps[partition], self.shares[partition]
        now_ms = EPOCH_MS + int(now * 1000)
        if not heap or heap[0][0] > now:
            return
        available = self._budgets[partition].available(now_ms, part, len(heap))
        sent = 0
        while sent < available and heap and heap[0][0] <= now:
            at, number = heappop(heap)
            record = self.records[number]
            if record.gone or record.due_s > at:  # It was fetched since, for an earlier due time.
                continue
            if (free_at := self.clients[self._host(number).name].free_at) > now:
                heappush(heap, (free_at, number))
                continue
            sent += 1
            if now >= self._from:
                self.tally.requests += 1
                self.tally.started.append(now)
            if number < 0:
                self._read_sitemap(self.web.hosts[~number], record, now)
            else:
                self._fetch(self.web.pages[number], record, now)
            if not record.gone:
                heappush(heap, (record.due_s, number))
        self.sent[partition] += sent
        _, self._budgets[partition] = self._budgets[partition].spent(now_ms, part, sent)

    def _host(self, number: int) -> WebHost:
        """Return the host of a page, or of a sitemap, whose number is the complement of its host's."""
        return self.web.hosts[~number] if number < 0 else self.web.pages[number].host

    def _read_sitemap(self, host: WebHost, record: Record, now: float) -> None:
        self.tally.sitemaps += now >= self._from
        response, listed = self.web.sitemap(host, now)
        self.clients[host.name].after(response, now)
        for page in self.policy.sitemap_read(host, record, listed, self.records, now):
            heappush(self._heaps[self._partition[host.name]], (self.records[page.number].due_s, page.number))

    def _fetch(self, page: Page, record: Record, now: float) -> None:
        stored_at, next_change = page.stored_at, page.next_change
        response = self.web.get(page, now)
        self.clients[page.host.name].after(response, now)
        measured = now >= self._from
        record.attempts += 1
        if response.end == 200:
            self._count(page, stored_at, next_change, now)
            record.attempts = record.misses = 0
            self.policy.compared(page, record, changed=response.changed, now=now)
            if measured:
                self.tally.changed += response.changed
                self.tally.new_content += response.changed and not page.copy
                self.tally.unchanged += not response.changed
            return
        self.tally.failed += measured
        if response.end == 404:
            record.misses += 1
            record.attempts = 0
            record.gone = record.misses >= _GONE_AFTER
            record.due_s = now + _MISSED_S
            return
        decision = decide(
            response.end, attempt=record.attempts, retry=_RETRY, rng01=0.5, retry_after_s=response.retry_after_s
        )
        if decision.state is UrlState.WAITING:
            record.attempts -= not decision.attempt_used
            record.due_s = max(now + decision.wait_s, self.clients[page.host.name].free_at)
        else:
            record.attempts = 0
            self.policy.failed(page, record, now)

    def _count(self, page: Page, stored_at: float, next_change: float, now: float) -> None:
        """Count the time for which the copy of `stored_at` was fresh until `now`."""
        end = min(next_change, page.dies_at, now)
        self.tally.fresh_s += max(0.0, end - max(stored_at, self._from))


def _effect(response: Response) -> HostEffect | None:
    """Return what a response means for its host, by the product's table."""
    if isinstance(response.end, FailureKind) or response.end >= 400:
        return decide(response.end, attempt=1, retry=_RETRY, rng01=0.5).host
    return None


def impolite(hosts: list[WebHost]) -> int:
    """Return how many requests came too soon, as the servers saw them."""
    return sum(host.impolite for host in hosts)
