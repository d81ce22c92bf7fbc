"""Count the pages of one crawl in one partition by their rate of change, and decide from that how long each waits.

An owner has a `RecrawlPages` for each crawl whose pages are fetched by their rates of change (recrawl policy
`adaptive`). A page is due when the value of a fetch reaches a price (see the module `recrawl`). A `RecrawlPages`
computes this price from the counts of pages and the partition's share of the crawl's requests a day. A new owner reads
the counts from SQL. The module does no I/O.

Pages are counted by bucket. A bucket is a range of rates of change, such as about 4 to 5 changes a day. Sitemaps and
feeds are counted by bucket, too, but by their rate of fetching.

A page has a sign of change if a sitemap or feed gives it a date later than its last fetch. An owner estimates which
share of a page's changes have such a sign.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct
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
    FULL_SIGN_SHARE,
    PAGE_FETCHES_PER_SITEMAP_FETCH,
    HostSignals,
    rate_code_without_signs,
    requests_per_day,
    signalled_bucket,
    sitemap_wait_ms,
    waiting_bucket,
)

RATES: Final = "rates"
"""A key of PageCounts. For example, `counts[RATES][70]` is the number of pages in bucket 70.

A bucket is a range of rates of change. Here the rate counts only the changes without a sign (`waiting_bucket`). For
example, a page changes 4 times a day. A sitemap shows 3 of these changes, so 1 change a day has no sign. The page is in
the bucket of about 1 change a day.
"""

SIGN_SHARE_SUM: Final = "signalled"
"""A key of PageCounts. `counts[SIGN_SHARE_SUM][70]` is the sum of `PageHistory.sign_share` over the pages in bucket 70.

`PageHistory.sign_share` is the share of a page's changes that is expected to have a sign, from 0 (none) to 255 (all).
For example, bucket 70 has two pages. One page has signs for all its changes: 255. The other page has signs for about
half of its changes: 128. Then the sum is 255 + 128 = 383.

A bucket is a range of rates of change. All changes of a page decide its bucket, not only the changes with a sign.
"""
PAGES_WITH_SIGNS: Final = "followed"
"""A key of PageCounts. `counts[PAGES_WITH_SIGNS][70]` is the number of pages with signs in bucket 70.

A page with signs is a page for which at least some changes are expected to have a sign (`PageHistory.sign_share` > 0).
Such a page is counted under two keys. For example, a page changes 4 times a day, and 3 of the changes have signs:

- Here all changes decide the bucket: the page is in the bucket of about 4 changes a day.
- Under RATES only the changes without a sign decide: the page is in the bucket of about 1 change a day.
"""

SITEMAPS: Final = "sitemap_rates"
"""A key of PageCounts. `counts[SITEMAPS][70]` is the number of sitemaps and feeds in bucket 70.

Here a bucket is a range of rates of fetching, not of rates of change. For example, a sitemap that is fetched twice a
day is in the bucket of 2 fetches a day.
"""

COUNTED: Final = (RATES, SIGN_SHARE_SUM, PAGES_WITH_SIGNS, SITEMAPS)
PageCounts = Mapping[str, Mapping[int, int]]
"""The counts of a crawl's pages in a partition, as kind of count -> bucket -> number.

The kinds of count are the constants in COUNTED. A kind may be missing if it has no pages. A bucket is a range of rates.
"""

_SOLVE_EVERY_MS: Final = 10_000
_MOVED_PART: Final = 50


class RecrawlPages:
    """The pages of one crawl in one partition: their numbers by rate of change, their schedule and their budget.

    The schedule is how long pages wait between two fetches. The budget is the number of requests that may start now.
    `outdated`: the counts in SQL have changed and must be read again (`recount`). A command changes them, and so does a
    host that is given up.
    """

    def __init__(self, requests_per_day: int, interval: PageInterval, counts: PageCounts, now_ms: int) -> None:
        """Begin with the stored counts, an unspent budget, and no schedule yet.

        `requests_per_day`: the budget of the whole crawl. `interval`: the crawl's bounds of a page's wait. `counts`:
        the counts as SQL has them.
        """
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
        """The number of pages in each bucket, a range of rates of change (`recrawl.bucket_of`)."""
        return self._counts[RATES]

    def recount(self, counts: PageCounts) -> None:
        """Replace the counts by `counts`, read from SQL after a command has changed them. Set `outdated` to False."""
        self._counts = {kind: _by_bucket(counts.get(kind, {})) for kind in COUNTED}
        self._moved += abs(sum(self.pages) - self._count)
        self._count, self.outdated = sum(self.pages), False

    def __repr__(self) -> str:
        return f"<RecrawlPages {self._count} pages, {self.requests_per_day} requests a day>"

    def count(self, bucket: int, n: int, kind: str = RATES) -> None:
        """Add `n`, which may be negative, to the count of one bucket. A count does not fall below 0.

        `kind`: the kind of count, one of COUNTED.
        """
        numbers = self._counts[kind]
        before = numbers[bucket]
        numbers[bucket] = max(0, before + n)
        if kind == RATES:
            self._count += numbers[bucket] - before
            self._moved += abs(n)

    def schedule(self, part: float, now_ms: int) -> RecrawlSchedule:
        """Return the schedule for the present counts. Compute it again only if enough pages have changed their bucket.

        `part`: the part of the crawl's pages that is in this partition, from 0 to 1.
        """
        if self._schedule is None or self._due(now_ms):
            budget = max(self.requests_per_day * part, 1e-6)
            budget = max(budget - requests_per_day(self._counts[SITEMAPS]), budget / 2)
            bounds = (self.interval.min_ms / 1000, self.interval.max_ms / 1000)
            sign_share_sum = [n / FULL_SIGN_SHARE for n in self._counts[SIGN_SHARE_SUM]]
            self._schedule = solved(
                self.pages,
                budget,
                *bounds,
                sign_share_sum=sign_share_sum,
                pages_with_signs=self._counts[PAGES_WITH_SIGNS],
            )
            self._solved_ms, self._moved = now_ms, 0
        return self._schedule

    def equal_s(self, part: float) -> float:
        """Return the seconds between two fetches of a page if this partition fetches all its pages equally often.

        For example, the crawl may send 1,000 requests a day. This partition may send a tenth of them (`part` is 0.1):
        100 requests a day. If the partition has 3,000 pages, the result is 30 days, in seconds.

        `part`: the part of the crawl's requests that this partition may send, from 0 to 1.
        """
        return DAY_S * max(self._count, 1) / max(self.requests_per_day * part, 1e-6)

    def first_rate(self, interval: PageInterval, part: float) -> int:
        """Return the rate of change that is assumed for a page until two of its fetches were compared.

        The result is encoded (`ChangeRate.code`). A page is assumed to change as often as the budget allows to fetch
        it. For example, this partition may send 100 requests a day, and has 3,000 pages. Each page can be fetched every
        30 days, so the rate is one change in 30 days.

        `interval` limits the rate. For example, the waits of `interval` are from 1 to 100 days:

        - The slowest rate is one change in 100 days, the longest wait.
        - The fastest rate is one change in 10 days, the geometric mean of the shortest and the longest wait.

        `part`: the part of the crawl's pages that is in this partition, from 0 to 1. The partition may send this part
        of the crawl's requests.
        """
        # The fastest rate is that of a crawl without a budget.
        equal = 1 / self.equal_s(part)
        return prior(min(max(equal, 1000 / interval.max_ms), decoded(first_rate(interval)).mean)).code

    def begin(self) -> None:
        """Begin a round of dispatch: forget the requests that `reserve` counted in the previous round."""
        self._reserved = 0

    def reserve(self, now_ms: int, share: Share, wanted: int) -> int:
        """Reserve up to `wanted` more requests of the budget for pages to send to workers in this round of dispatch.

        Return how many requests this call has reserved. `share`: the partition's share of the crawl's requests.
        """
        n = max(0, self._budget.available(now_ms, share, self._reserved + wanted) - self._reserved)
        self._reserved += n
        return n

    def spend(self, now_ms: int, share: Share, n: int) -> None:
        """Subtract `n` requests from the budget, one for each stored page that was sent to workers.

        `share`: the partition's share of the crawl's requests.
        """
        self._budget = self._budget.spent(now_ms, share, n)[1]

    def _due(self, now_ms: int) -> bool:
        """Return True if the schedule must be computed again, because enough pages have changed their bucket.

        Return False within `_SOLVE_EVERY_MS` after the last computation.
        """
        enough = self._moved > max(1, self._count // _MOVED_PART)
        return enough and not 0 <= now_ms - self._solved_ms < _SOLVE_EVERY_MS


class AdaptiveSchedule(Struct, frozen=True):
    """Computes how long a page or sitemap of a crawl waits for its next fetch (recrawl policy `adaptive`).

    A page's wait depends on its rate of change and on its signs of change. A sign of change is a date in a sitemap or
    feed that is later than the page's last fetch.

    - `pages`: the counts of the crawl's pages in this partition, and its budget of requests.
    - `part`: the part of the crawl's pages that is in this partition, from 0 to 1.
    - `now_ms`: the present time (Unix ms).
    """

    pages: RecrawlPages
    part: float
    now_ms: int

    def wait_ms(self, code: int, interval: PageInterval, sign_share: int = 0) -> int:
        """Return the ms from a page's last fetch to its next one, if no sign of change comes in between.

        - `code`: the page's rate of change, as `ChangeRate.code`.
        - `interval`: the bounds of the wait.
        - `sign_share`: the expected share of the page's changes that have a sign. 0 is none, 255 is all. The greater
          the share, the longer the wait: without a sign, the page has then probably not changed.
        """
        schedule = self.pages.schedule(self.part, self.now_ms)
        bounds = (interval.min_ms / 1000, interval.max_ms / 1000)
        return int(schedule.interval_s(rate_code_without_signs(code, sign_share), *bounds) * 1000)

    def sign_share(self, code: int, signals: HostSignals) -> int:
        """Return which share of a page's future changes is expected to have a useful sign: 0 for none, 255 for all.

        The caller stores the result as `PageHistory.sign_share`. There are three cases:

        - The host's signs are not trusted: return 0.
        - The page changes so often that a fetch is not worth its price, even after a sign: return 0.
        - Otherwise: return the share for all pages of the host (`HostSignals.sign_share`).

        Arguments:

        - `code`: the page's rate of change, as `ChangeRate.code`.
        - `signals`: what is stored of the signs of change of the page's host.
        """
        if not (sign_share := signals.sign_share):
            return 0
        price_s = self.pages.schedule(self.part, self.now_ms).price_s
        return sign_share if decoded(code).cautious * price_s < 1.0 else 0

    def signalled_wait_ms(self, code: int, interval: PageInterval, signals: HostSignals) -> int:
        """Return the ms from the last fetch to the next one for a page that has a sign of change.

        A sign of change is a date in a sitemap or feed that is later than the last fetch.

        - `code`: the page's rate of change, as `ChangeRate.code`.
        - `interval`: the bounds of the wait. The result is at least `interval.min_ms`.
        - `signals`: how often the signs of the page's host were right.
        """
        sooner_ms = advanced_s(decoded(code).cautious, signals.trust.precision) * 1000
        return max(interval.min_ms, self.wait_ms(code, interval) - int(min(sooner_ms, interval.max_ms)))

    def sitemap_wait_ms(self, interval: PageInterval, quiet: int, pages: int) -> int:
        """Return the ms until the next fetch of a sitemap.

        `quiet`: how many fetches in a row found nothing new. `pages`: the number of stored pages of its host.
        """
        least_s = PAGE_FETCHES_PER_SITEMAP_FETCH * self.pages.equal_s(self.part) / max(pages, 1)
        return sitemap_wait_ms(interval, quiet, least_s * 1000)

    def first_rate(self, interval: PageInterval) -> int:
        """Return the rate of change that is assumed for a page until two of its fetches were compared.

        The result is encoded (`ChangeRate.code`).
        """
        return self.pages.first_rate(interval, self.part)


def counted(history: PageHistory | None, *, page: bool = True) -> Iterator[tuple[str, int, int]]:
    """Yield what a page or sitemap with this history adds to its crawl's counts, as (kind of count, bucket, number).

    - A page adds 1 to RATES.
    - If some of the page's changes are expected to have signs, the page also adds 1 to PAGES_WITH_SIGNS, and
      `history.sign_share` to SIGN_SHARE_SUM. `history.sign_share` is the expected share of its changes that have a
      sign. The value 255 means all of its changes.
    - A sitemap or feed (`page` is False) adds 1 to SITEMAPS.
    - If `history` is None or has no rate, yield nothing.

    A bucket is a range of rates (`recrawl.bucket_of`).
    """
    if history is None or not history.rate:
        return
    if not page:
        yield SITEMAPS, bucket_for(history.rate), 1
    else:
        yield RATES, waiting_bucket(history.rate, history.sign_share), 1
        if history.sign_share:
            yield SIGN_SHARE_SUM, signalled_bucket(history.rate), history.sign_share
            yield PAGES_WITH_SIGNS, signalled_bucket(history.rate), 1


def without_rate(history: PageHistory) -> PageHistory:
    """Return the history without a rate of change, for a page that is not fetched again. `counted` then skips it."""
    return replace(history, rate=0, sign_share=0)


def _by_bucket(numbers: Mapping[int, int]) -> list[int]:
    return [numbers.get(bucket, 0) for bucket in range(BUCKETS)]


def rate_after(
    code: int, interval: PageInterval, *, changed: bool, elapsed_ms: int, updated_by_sign: bool = False
) -> int:
    """Return a page's new rate of change after a fetch. The rate is encoded as `ChangeRate.code`.

    The page was fetched again and compared with its previous fetch:

    - `code`: the rate before this fetch. 0 if the page has no rate yet.
    - `interval`: the shortest and the longest wait of the page. If `code` is 0, a first rate is assumed from them.
    - `changed`: the page has changed since its previous fetch.
    - `elapsed_ms`: the time from the last update of the rate to this fetch. The last update was made at the previous
      fetch, or later because of a sign of change.
    - `updated_by_sign`: a sign of change has updated the rate since the previous fetch. That update has counted the
      change already. So if `changed` is also True, the rate stays the same, and the change is not counted twice.
    """
    known = decoded(code) if code else decoded(first_rate(interval))
    if updated_by_sign and changed:
        return known.code
    return known.observed(changed=changed, elapsed_s=elapsed_ms / 1000).code


def first_rate(interval: PageInterval) -> int:
    """Return the rate of change that is assumed for a new page if no budget is known, encoded as `ChangeRate.code`.

    A new page is assumed to change once in a certain time. This time is the geometric mean of the shortest and the
    longest wait of `interval`. For example, with waits from 1 to 100 days the time is 10 days.
    """
    return prior(1000.0 / (interval.min_ms * interval.max_ms) ** 0.5).code


def bucket_for(code: int) -> int:
    """Return the bucket in which a page is counted: a range of rates of change (`recrawl.bucket_of`).

    `code`: the page's rate of change, as `ChangeRate.code`.
    """
    return bucket_of(code)


def expected(pages: Mapping[int, int], interval: PageInterval, requests_per_day: int | None) -> tuple[float, float]:
    """Return the requests a day that the pages get, and the average fraction of pages (0 to 1) that is fresh.

    - `pages`: the number of pages by bucket, a range of rates of change (`recrawl.bucket_of`). At least one page.
    - `requests_per_day`: the budget of a crawl with the recrawl policy `adaptive`. With None, each page is fetched at
      the shortest interval.
    """
    counts = [pages.get(bucket, 0) for bucket in range(BUCKETS)]
    least, most = interval.min_ms / 1000, interval.max_ms / 1000
    waits = [least] * BUCKETS
    if requests_per_day is not None:
        schedule = solved(counts, requests_per_day, least, most)
        waits = [within(wait, least, most) for wait in schedule.waits_s]
    fresh = sum(n * freshness(bucket_rate(bucket), waits[bucket]) for bucket, n in enumerate(counts) if n)
    return DAY_S * sum(n / wait for n, wait in zip(counts, waits, strict=True)), fresh / sum(counts)
