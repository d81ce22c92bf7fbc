"""The pages of one crawl in one partition by how often they change: when each is due, and what may be spent. Pure.

An owner has one for each crawl with the policy `adaptive`. It counts the pages by rate and solves for the price at
which they need the partition's share of the requests a day. The counts are in SQL, so a new owner goes on with them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.frontier.change_rate import decoded, prior
from shared.domain.frontier.page_history import PageHistory
from shared.domain.frontier.recrawl import (
    BUCKETS,
    DAY_S,
    RecrawlSchedule,
    advanced_s,
    bucket_of,
    bucket_rate,
    freshness,
    solved,
    within,
)
from shared.domain.frontier.recrawl_budget import RecrawlBudget, Share
from shared.domain.frontier.signals import (
    FOLLOWED,
    SITEMAP_PART,
    HostSignals,
    requests_per_day,
    signalled_bucket,
    sitemap_wait_ms,
    waiting_bucket,
    waiting_code,
)

RATES: Final = "rates"
"""The kind of tally that counts pages by the bucket of their changes without a sign (`signals.waiting_bucket`)."""

SIGNALLED: Final = "signalled"
"""The kind of tally that sums the followed parts of pages (`PageHistory.followed`) by the bucket of all changes."""

FOLLOWED_PAGES: Final = "followed"
"""The kind of tally that counts the pages of which SIGNALLED has a part, by the same bucket."""

SITEMAPS: Final = "sitemap_rates"
"""The kind of tally that counts sitemaps and feeds by the bucket of the rate at which they are fetched."""

COUNTED: Final = (RATES, SIGNALLED, FOLLOWED_PAGES, SITEMAPS)
PageCounts = Mapping[str, Mapping[int, int]]
"""The counts of a crawl's pages in a partition: number by bucket, for each kind of COUNTED that has some."""

_SOLVE_EVERY_MS: Final = 10_000
_MOVED_PART: Final = 50


class RecrawlPages:
    """The counts of pages by bucket, the schedule that follows from them, and the budget of requests."""

    def __init__(self, requests_per_day: int, interval: PageInterval, counts: PageCounts, now_ms: int) -> None:
        """Make the schedule. `counts`: as SQL has them. `interval`: the bounds of the crawl's own."""
        self.requests_per_day = requests_per_day
        self.interval = interval
        self._counts = {kind: _by_bucket(counts.get(kind, {})) for kind in COUNTED}
        self._count = sum(self.pages)
        self.outdated = False
        self._budget = RecrawlBudget.starting(requests_per_day, now_ms)
        self._schedule: RecrawlSchedule | None = None
        self._solved_ms = 0
        self._moved = 0
        self._reserved = 0

    @property
    def pages(self) -> list[int]:
        """The number of pages in each bucket."""
        return self._counts[RATES]

    def recount(self, counts: PageCounts) -> None:
        """Replace the counts by those of SQL, which a command has changed. They are no longer `outdated`."""
        self._counts = {kind: _by_bucket(counts.get(kind, {})) for kind in COUNTED}
        self._moved += abs(sum(self.pages) - self._count)
        self._count, self.outdated = sum(self.pages), False

    def __repr__(self) -> str:
        return f"<RecrawlPages {self._count} pages, {self.requests_per_day} requests a day>"

    def count(self, bucket: int, n: int, kind: str = RATES) -> None:
        """Add `n` to a bucket of a kind of COUNTED."""
        numbers = self._counts[kind]
        before = numbers[bucket]
        numbers[bucket] = max(0, before + n)
        if kind == RATES:
            self._count += numbers[bucket] - before
            self._moved += abs(n)

    def schedule(self, part: float, now_ms: int) -> RecrawlSchedule:
        """Return the schedule for the counts. It is solved anew once enough pages have moved.

        `part`: the part of the crawl's pages that is in this partition.
        """
        if self._schedule is None or self._due(now_ms):
            budget = max(self.requests_per_day * part, 1e-6)
            budget = max(budget - requests_per_day(self._counts[SITEMAPS]), budget / 2)
            bounds = (self.interval.min_ms / 1000, self.interval.max_ms / 1000)
            signalled = [n / FOLLOWED for n in self._counts[SIGNALLED]]
            self._schedule = solved(
                self.pages, budget, *bounds, signalled=signalled, followed=self._counts[FOLLOWED_PAGES]
            )
            self._solved_ms, self._moved = now_ms, 0
        return self._schedule

    def equal_s(self, part: float) -> float:
        """Return the time between two fetches of a page if all had the same. `part`: as for `schedule`."""
        return DAY_S * max(self._count, 1) / max(self.requests_per_day * part, 1e-6)

    def first_rate(self, interval: PageInterval, part: float) -> int:
        """Return the code of the rate that is assumed of a page before its first comparison.

        It is a change in the time between two fetches that the budget permits if all pages have the same interval. A
        greater rate would let one change count as a page that changes too often for a fetch, and it would wait long. It
        is at least that of `max_s`, and at most that between both bounds. `part`: as for `schedule`.
        """
        equal = 1 / self.equal_s(part)
        return prior(min(max(equal, 1000 / interval.max_ms), decoded(first_rate(interval)).mean)).code

    def begin(self) -> None:
        """Begin a pass of dispatch: nothing is reserved."""
        self._reserved = 0

    def reserve(self, now_ms: int, share: Share, wanted: int) -> int:
        """Reserve requests for at most `wanted` pages in this pass. Return for how many there is budget."""
        n = max(0, self._budget.available(now_ms, share, self._reserved + wanted) - self._reserved)
        self._reserved += n
        return n

    def spend(self, now_ms: int, share: Share, n: int) -> None:
        """Count `n` pages as sent out."""
        self._budget = self._budget.spent(now_ms, share, n)[1]

    def _due(self, now_ms: int) -> bool:
        """Return True if enough pages have moved between buckets for another schedule."""
        enough = self._moved > max(1, self._count // _MOVED_PART)
        return enough and not 0 <= now_ms - self._solved_ms < _SOLVE_EVERY_MS


@dataclass(frozen=True, slots=True)
class AdaptiveSchedule:
    """How long pages wait under the policy `adaptive` at the moment `now_ms`.

    `part`: the part of the crawl's pages that is in this partition.
    """

    pages: RecrawlPages
    part: float
    now_ms: int

    def wait_ms(self, code: int, interval: PageInterval, followed: int = 0) -> int:
        """Return the wait in ms until the next fetch of a page with this code of its rate of change.

        `followed`: the part of its changes that is expected to have a sign (`PageHistory.followed`).
        """
        schedule = self.pages.schedule(self.part, self.now_ms)
        bounds = (interval.min_ms / 1000, interval.max_ms / 1000)
        return int(schedule.interval_s(waiting_code(code, followed), *bounds) * 1000)

    def followed(self, code: int, signals: HostSignals) -> int:
        """Return the part of a page's changes for which it is fetched when they have a sign, 0 if it never is.

        A page that changes too often for a fetch is not worth one with a sign either.
        """
        if not (followed := signals.followed):
            return 0
        price_s = self.pages.schedule(self.part, self.now_ms).price_s
        return followed if decoded(code).cautious * price_s < 1.0 else 0

    def signalled_wait_ms(self, code: int, interval: PageInterval, signals: HostSignals) -> int:
        """Return the wait in ms from a page's last fetch to the next one, since the page has a sign of change."""
        sooner_ms = advanced_s(decoded(code).cautious, signals.trust.precision) * 1000
        return max(interval.min_ms, self.wait_ms(code, interval) - int(min(sooner_ms, interval.max_ms)))

    def sitemap_wait_ms(self, interval: PageInterval, quiet: int, pages: int) -> int:
        """Return the wait in ms until the next fetch of a sitemap of a host with so many stored pages.

        `quiet`: how many fetches in a row found nothing new.
        """
        least_s = SITEMAP_PART * self.pages.equal_s(self.part) / max(pages, 1)
        return sitemap_wait_ms(interval, quiet, least_s * 1000)

    def first_rate(self, interval: PageInterval) -> int:
        """Return the code of the rate that is assumed of a page before its first comparison."""
        return self.pages.first_rate(interval, self.part)


def counted(history: PageHistory | None, *, page: bool = True) -> Iterator[tuple[str, int, int]]:
    """Yield as what a page counts: kind (of COUNTED), bucket and number. One without a rate does not count.

    `page`: False for a sitemap or feed.
    """
    if history is None or not history.rate:
        return
    if not page:
        yield SITEMAPS, bucket_for(history.rate), 1
    else:
        yield RATES, waiting_bucket(history.rate, history.followed), 1
        if history.followed:
            yield SIGNALLED, signalled_bucket(history.rate), history.followed
            yield FOLLOWED_PAGES, signalled_bucket(history.rate), 1


def without_rate(history: PageHistory) -> PageHistory:
    """Return the history of a page that is not fetched again, and so does not count."""
    return replace(history, rate=0, followed=0)


def _by_bucket(numbers: Mapping[int, int]) -> list[int]:
    return [numbers.get(bucket, 0) for bucket in range(BUCKETS)]


def rate_after(code: int, interval: PageInterval, *, changed: bool, elapsed_ms: int, told: bool = False) -> int:
    """Return the code of a page's rate of change after a comparison. 0 stands for a page that was not compared yet.

    `told`: a sign of a trusted host came before. The rate has taken account of the change that it told of, so a fetch
    that finds it says nothing new.
    """
    known = decoded(code) if code else decoded(first_rate(interval))
    if told and changed:
        return known.code
    return known.observed(changed=changed, elapsed_s=elapsed_ms / 1000).code


def first_rate(interval: PageInterval) -> int:
    """Return the code of the rate that is assumed of a new page where no budget is known: between the bounds."""
    return prior(1000.0 / (interval.min_ms * interval.max_ms) ** 0.5).code


def bucket_for(code: int) -> int:
    """Return the bucket of a page with this code, for the counts."""
    return bucket_of(code)


def expected(pages: Mapping[int, int], interval: PageInterval, requests_per_day: int | None) -> tuple[float, float]:
    """Return the requests a day that pages get, and the part of them that is expected to be fresh, from 0 to 1.

    `pages`: how many there are in each bucket, at least one. `requests_per_day`: what an adaptive policy may spend.
    None: each page is fetched at the least interval.
    """
    counts = [pages.get(bucket, 0) for bucket in range(BUCKETS)]
    least, most = interval.min_ms / 1000, interval.max_ms / 1000
    waits = [least] * BUCKETS
    if requests_per_day is not None:
        schedule = solved(counts, requests_per_day, least, most)
        waits = [within(wait, least, most) for wait in schedule.waits_s]
    fresh = sum(n * freshness(bucket_rate(bucket), waits[bucket]) for bucket, n in enumerate(counts) if n)
    return DAY_S * sum(n / wait for n, wait in zip(counts, waits, strict=True)), fresh / sum(counts)
