"""The recrawl policies of the benchmark: the product's two, others to compare them with, and two that know more."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.frontier.change_rate import ChangeRate, decoded, prior
from shared.domain.frontier.recrawl import (
    BUCKETS,
    RecrawlSchedule,
    SignalTrust,
    advanced_s,
    bucket_of,
    solved,
    wait_s,
)
from shared.domain.frontier.recrawl_pages import (
    COUNTED,
    PAGES_WITH_SIGNS,
    RATES,
    SIGN_SHARE_SUM,
    SITEMAPS,
    AdaptiveSchedule,
    RecrawlPages,
    rate_after,
)
from shared.domain.frontier.signals import (
    NO_SIGNALS,
    HostSignals,
    rate_signalled,
    signalled_bucket,
    signals_of,
    sitemap_code,
    waiting_bucket,
)
from shared.domain.web.url import partition_of
from tests.support.simulation.changing_web import DAY_S, ChangingWeb, Page, WebHost
from tests.support.simulation.fixed_policy import MAX_S, MIN_S, Fixed, part_of
from tests.support.simulation.knowing_policies import Oracle, SignsKnown
from tests.support.simulation.recrawl_run import PARTITIONS, Policy, Record

BOUNDS: Final = PageInterval(RecrawlPolicy.ADAPTIVE, int(MIN_S * 1000), int(MAX_S * 1000))
_TRUSTED: Final = 0.5
_SITEMAP_PART: Final = 5.0
"""A sitemap gets at most one in this many of its host's requests."""

_UNSPENT_MAX: Final = 1.4
"""The price is set for at most this many times the budget while requests are left over."""


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


class Halving(Fixed):
    """StormCrawler's AdaptiveScheduler: an interval shrinks by half after a change, and else grows by half.

    `code` is the interval in seconds.
    """

    def first(self, page: Page, now: float) -> Record:
        record = super().first(page, now)
        record.code = int(self.every_s)
        return record

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        record.code = int(min(max(record.code * (0.5 if changed else 1.5), MIN_S), MAX_S))
        record.checked_s, record.due_s = now, now + record.code


@dataclass(slots=True)
class OwnerState:
    """What an owner of a partition keeps for the policy: pages by bucket, and the requests for sitemaps.

    `signalled`: pages by bucket, each as the part of its changes that its sitemap tells.
    """

    requests_per_day: float = 0.0
    pages: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    signalled: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    schedule: RecrawlSchedule | None = None
    sent: int = 0
    sent_per_day: float = 0.0
    sitemaps: int = 0
    sitemaps_per_day: float = 0.0


@dataclass(slots=True)
class HostState:
    """What is stored of a host: its usual rate, and how far its sitemap is right. `read`: when it was read last."""

    rate: ChangeRate
    trust: SignalTrust = field(default_factory=SignalTrust)
    read_s: float = -1.0


class Adaptive(Fixed):
    """The product's policy, by its own classes: an owner of each partition with `RecrawlPages`, and sitemaps that are
    read again.
    """

    def __init__(self, web: ChangingWeb, requests_per_day: int) -> None:
        super().__init__(web, requests_per_day)
        self._partition = {host.name: partition_of(host.name, PARTITIONS) for host in web.hosts}
        count = Counter[int](self._partition[page.host.name] for page in web.pages)
        self._parts = [count[partition] / len(web.pages) for partition in range(PARTITIONS)]
        self._rpd = requests_per_day
        self._pages = [RecrawlPages(requests_per_day, BOUNDS, {}, 0) for _ in range(PARTITIONS)]
        self._hosts = web.hosts
        self._signals: dict[str, HostSignals] = {}

    def _schedule(self, host: WebHost, now: float) -> AdaptiveSchedule:
        partition = self._partition[host.name]
        return AdaptiveSchedule(self._pages[partition], self._parts[partition], _ms(now))

    def _signals_of(self, host: WebHost) -> HostSignals:
        return self._signals.get(host.name, NO_SIGNALS)

    def first(self, page: Page, now: float) -> Record:
        record = super().first(page, now)
        self._counted(page.host, record, self._schedule(page.host, now).first_rate(BOUNDS), 0)
        return record

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        schedule, signals = self._schedule(page.host, now), self._signals_of(page.host)
        known = record.fetched or record.known_s > record.checked_s
        before = record.code if known else schedule.first_rate(BOUNDS)
        checked_ms = _ms(record.checked_s)
        if signals is not NO_SIGNALS:
            signals = self._signals[page.host.name] = signals.compared(
                decoded(before), signalled=record.signalled, changed=changed, checked_ms=checked_ms, now_ms=_ms(now)
            )
        elapsed_ms, updated_by_sign = _ms(now - record.known_s), record.known_s > record.checked_s
        code = rate_after(before, BOUNDS, changed=changed, elapsed_ms=elapsed_ms, updated_by_sign=updated_by_sign)
        self._counted(page.host, record, code, schedule.sign_share(code, signals))
        record.checked_s = record.known_s = now
        record.fetched, record.signalled = True, False
        self.failed(page, record, now)

    def failed(self, page: Page, record: Record, now: float) -> None:
        schedule = self._schedule(page.host, now)
        record.due_s = now + schedule.wait_ms(record.code, BOUNDS, record.sign_share) / 1000

    def sitemap_first(self, host: WebHost) -> Record | None:
        record = Record(0.0)
        self._wait(host, record, 0.0)
        record.due_s *= hash_part(host.name)
        return record

    def sitemap_read(
        self, host: WebHost, record: Record, listed: list[tuple[Page, float]], records: dict[int, Record], now: float
    ) -> list[Page]:
        read_ms = self._signals_of(host).read_ms
        signals = self._signals[host.name] = self._signals_of(host).read(_ms(now))
        schedule, sooner = self._schedule(host, now), []
        for page, lastmod in listed:
            stored = records[page.number]
            if stored.gone:
                continue
            if signals.trusted and lastmod > stored.known_s:
                known, known_ms = decoded(stored.code), _ms(stored.known_s)
                code = rate_signalled(
                    known, lastmod_ms=_ms(lastmod), known_ms=known_ms, read_ms=read_ms, now_ms=_ms(now)
                )
                stored.known_s = now
                self._counted(host, stored, code, schedule.sign_share(code, signals))
            stored.signalled = True
            due_s = stored.checked_s + schedule.signalled_wait_ms(stored.code, BOUNDS, signals) / 1000
            if due_s < stored.due_s:
                stored.due_s = max(due_s, now)
                sooner.append(page)
        record.quiet = 0 if sooner else record.quiet + 1
        self._wait(host, record, now)
        return sooner

    def _wait(self, host: WebHost, record: Record, now: float) -> None:
        """Set when a sitemap is due."""
        wait_ms = self._schedule(host, now).sitemap_wait_ms(BOUNDS, record.quiet, len(host.pages))
        owner, code = self._pages[self._partition[host.name]], sitemap_code(wait_ms)
        if record.code:
            owner.count(bucket_of(record.code), -1, SITEMAPS)
        owner.count(bucket_of(code), 1, SITEMAPS)
        record.code, record.due_s = code, now + wait_ms / 1000

    def restarted(self, pages: list[Page], records: dict[int, Record], sent: list[int]) -> None:
        counts = [{kind: Counter[int]() for kind in COUNTED} for _ in range(PARTITIONS)]
        for number, record in records.items():
            if number < 0:
                counts[self._partition[self._hosts[~number].name]][SITEMAPS][bucket_of(record.code)] += 1
        for page in pages:
            if not (record := records[page.number]).gone:
                count = counts[self._partition[page.host.name]]
                count[RATES][waiting_bucket(record.code, record.sign_share)] += 1
                count[SIGN_SHARE_SUM][signalled_bucket(record.code)] += record.sign_share
                count[PAGES_WITH_SIGNS][signalled_bucket(record.code)] += record.sign_share > 0
        self._pages = [RecrawlPages(self._rpd, BOUNDS, each, 0) for each in counts]
        self._signals = {name: signals_of(each.encoded()) for name, each in self._signals.items()}

    def _counted(self, host: WebHost, record: Record, code: int, sign_share: int) -> None:
        owner = self._pages[self._partition[host.name]]
        if record.code:
            owner.count(waiting_bucket(record.code, record.sign_share), -1)
            owner.count(signalled_bucket(record.code), -record.sign_share, SIGN_SHARE_SUM)
            owner.count(signalled_bucket(record.code), -(record.sign_share > 0), PAGES_WITH_SIGNS)
        owner.count(waiting_bucket(code, sign_share), 1)
        owner.count(signalled_bucket(code), sign_share, SIGN_SHARE_SUM)
        owner.count(signalled_bucket(code), sign_share > 0, PAGES_WITH_SIGNS)
        record.code, record.sign_share = code, sign_share


class WithSitemaps:
    """The prototype of following the signs that sitemaps give. It also knows the usual rate of each host, and sets its
    price anew each day by what was spent.
    """

    def __init__(self, web: ChangingWeb, requests_per_day: int) -> None:
        self._every_s = len(web.pages) / requests_per_day * DAY_S
        self._owners = [OwnerState() for _ in range(PARTITIONS)]
        self._partition = {host.name: partition_of(host.name, PARTITIONS) for host in web.hosts}
        for page in web.pages:
            self._owner(page.host).requests_per_day += requests_per_day / len(web.pages)
        self._hosts = {host.name: HostState(ChangeRate(1 / self._every_s, 1.0)) for host in web.hosts}

    def _owner(self, host: WebHost) -> OwnerState:
        return self._owners[self._partition[host.name]]

    def first(self, page: Page, now: float) -> Record:
        record = Record(now + part_of(page) * self._every_s, now, prior(1 / self._every_s).code)
        self._counted(page, record, bucket_of(record.code), 0, 0.0)
        return record

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        host, elapsed_s = self._hosts[page.host.name], now - record.known_s
        belief = self.rate(page, record, now) if record.fetched else prior(host.rate.mean)
        if host.read_s > record.checked_s:
            since_s = now - record.checked_s
            host.trust = host.trust.compared(
                signalled=record.signalled, changed=changed, rate=belief.mean, elapsed_s=since_s
            )
        if not record.signalled:  # A page with a sign was fetched because it had changed.
            host.rate = host.rate.observed(changed=changed, elapsed_s=now - record.checked_s)
        if not (record.signalled and changed and host.trust.precision > _TRUSTED):
            belief = belief.observed(changed=changed, elapsed_s=elapsed_s)
        record.code, record.checked_s, record.known_s = belief.code, now, now
        record.signalled, record.fetched = False, True
        self._schedule(page, record, now)

    def rate(self, page: Page, record: Record, now: float) -> ChangeRate:
        """Return what the policy takes for the rate of a page."""
        return decoded(record.code)

    def planned(self, belief: ChangeRate) -> float:
        """Return the rate that due times follow from."""
        return belief.cautious

    def failed(self, page: Page, record: Record, now: float) -> None:
        self._schedule(page, record, now)

    def sitemap_first(self, host: WebHost) -> Record | None:
        return Record(hash_part(host.name) * self._sitemap_s(host))

    def sitemap_read(
        self, host: WebHost, record: Record, listed: list[tuple[Page, float]], records: dict[int, Record], now: float
    ) -> list[Page]:
        state, owner = self._hosts[host.name], self._owner(host)
        price_s = owner.schedule.price_s if owner.schedule is not None else 0.0
        read_s, state.read_s = state.read_s, now
        owner.sitemaps += 1
        advanced = []
        for page, lastmod in listed:
            stored = records[page.number]
            if stored.gone:
                continue
            if lastmod > stored.known_s and state.trust.precision > _TRUSTED:
                still_s = max(0.0, read_s - stored.known_s) + now - lastmod
                stored.code, stored.known_s = self.rate(page, stored, now).signalled(still_s).code, now
            stored.signalled = True
            rate = self.planned(self.rate(page, stored, now))
            due = stored.checked_s + max(MIN_S, wait_s(rate, price_s) - advanced_s(rate, state.trust.precision))
            if due < stored.due_s:
                stored.due_s = max(due, now)
                advanced.append(page)
        least = self._sitemap_s(host)
        record.code = 0 if advanced else min(record.code + 1, 4)
        record.due_s = now + least * 2**record.code
        return advanced

    def _sitemap_s(self, host: WebHost) -> float:
        """Return the shortest time between two fetches of a sitemap: at most a fifth of the requests of its host."""
        return max(_SITEMAP_PART * self._every_s / len(host.pages), 6 * 3600.0)

    def tick(self, sent: list[int], now: float) -> None:
        for owner, count in zip(self._owners, sent, strict=True):
            owner.sitemaps_per_day += (owner.sitemaps * 24 - owner.sitemaps_per_day) / (7 * 24)
            owner.sitemaps = 0
            owner.sent_per_day += ((count - owner.sent) * 24 - owner.sent_per_day) / (14 * 24)
            owner.sent = count
            if owner.schedule is None or now % DAY_S == 0:
                unspent = min(max(owner.requests_per_day / max(owner.sent_per_day, 1e-9), 1.0), _UNSPENT_MAX)
                budget = max(owner.requests_per_day * unspent - owner.sitemaps_per_day, 0.5 * owner.requests_per_day)
                owner.schedule = solved(owner.pages, budget, MIN_S, MAX_S, sign_share_sum=owner.signalled)

    def restarted(self, pages: list[Page], records: dict[int, Record], sent: list[int]) -> None:
        for owner in self._owners:
            owner.pages, owner.signalled = [0] * BUCKETS, [0.0] * BUCKETS
            owner.sent_per_day, owner.sitemaps_per_day = owner.requests_per_day, 0.0
        for page in pages:
            if not (record := records[page.number]).gone:
                owner = self._owner(page.host)
                owner.pages[record.bucket] += 1
                owner.signalled[record.rate_bucket] += record.part

    def _schedule(self, page: Page, record: Record, now: float) -> None:
        host, owner = self._hosts[page.host.name], self._owner(page.host)
        assert owner.schedule is not None
        belief = prior(self.planned(self.rate(page, record, now)))
        code, signalled = belief.code, 0.0
        if host.read_s >= 0 and host.trust.precision > _TRUSTED:
            signalled = 1 - host.trust.unsignalled
            if belief.mean * owner.schedule.price_s < 1.0:
                code = prior(belief.mean * host.trust.unsignalled).code
        self._counted(page, record, bucket_of(code), bucket_of(belief.code), signalled)
        record.due_s = now + owner.schedule.interval_s(code, MIN_S, MAX_S)

    def _counted(self, page: Page, record: Record, bucket: int, rate_bucket: int, signalled: float) -> None:
        owner = self._owner(page.host)
        if record.bucket >= 0:
            owner.pages[record.bucket] -= 1
            owner.signalled[record.rate_bucket] -= record.part
        owner.pages[bucket] += 1
        owner.signalled[rate_bucket] += signalled
        record.bucket, record.rate_bucket, record.part = bucket, rate_bucket, signalled


class RatesKnown(WithSitemaps):
    """The policy with sitemaps, and the true rates of change instead of learned ones."""

    def planned(self, belief: ChangeRate) -> float:
        return belief.mean

    def rate(self, page: Page, record: Record, now: float) -> ChangeRate:
        return prior(page.true_rate(now))


POLICIES: Final[dict[str, Callable[[ChangingWeb, int], Policy]]] = {
    "fixed": Fixed, "halving": Halving, "adaptive": Adaptive, "with sitemaps": WithSitemaps, "rates known": RatesKnown,
    "signs known": SignsKnown, "oracle": Oracle,
}  # fmt: skip
"""The policies of the table, by name."""


def hash_part(name: str) -> float:
    """Return a number in [0, 1) of a host's name."""
    return sum(name.encode()) * 0.6180339887 % 1.0
