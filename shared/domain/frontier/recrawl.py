"""Decide when a stored page is fetched again: as soon as the value of a fetch reaches a threshold, the price.

A stored page is fresh while it equals the page on the server. The value of a fetch is the time for which the fetch is
expected to make the stored page fresh (`value_s`). Two facts follow:

- The value grows with the time since the last fetch. A fetch is useful only if the page has changed, and a change
  becomes more likely with time.
- The value is limited. A page with D changes a second changes again after 1/D seconds on average. So the value stays
  below 1/D. If 1/D is below the price, the value never reaches the price. Such a page is fetched only every `max_s`
  seconds, the longest wait of the spec.

An owner computes one price for the pages of a crawl in its partition (`solved`). At this price the pages need as many
requests a day as the owner may start. The owner counts the pages by bucket, a range of rates of change (`bucket_of`).

Times, values and prices are in seconds. Rates are in changes per second. Sources: Cho and Garcia-Molina, Effective page
refresh policies for web crawlers, 2003. Azar et al., Tractable near-optimal policies for crawling, 2018.
"""

from collections.abc import Sequence
from math import exp, expm1, inf, log, sqrt
from typing import Final

from msgspec import Struct

from shared.domain.frontier.change_rate import OCTAVES, SLOWEST

BUCKETS: Final = 128
"""The number of buckets: ranges of the rate of change in which pages are counted. Rates that differ by a factor of 2
are four buckets apart."""

DAY_S: Final = 86_400.0
_SHIFT: Final = 17
SIGNALS_REMEMBERED: Final = 64.0
"""Limits how much the past of a host counts in `SignalTrust`, so that new fetches count more than old ones.

`SignalTrust` has four numbers. Two of them, `wrong_by_chance` and `missed_by_chance`, grow with each comparison.
When the sum of these two exceeds 64, the next comparison halves all four numbers.
"""

_SIGN_WORTH: Final = 0.9
"""The price from which `solved` ignores a page's signs of change, as a fraction of the page's highest value.

For example, a page changes every 1,000 seconds on average. Then the highest value of fetching the page is 1,000
seconds. `solved` ignores the signs of this page if the price is 900 seconds or more. At such a price, a fetch of the
page is hardly worth the price (below 1,000 seconds) or never worth it (from 1,000 seconds on).
"""

_SMALL: Final = 1e-3
_SOLVED: Final = 1e-9
_PRICES: Final = (-40.0, 34.0)
"""`solved` searches the price from 2^-40 to 2^34 seconds; these are the exponents. At the lowest price all pages are
due, at the highest none is."""

_PRICE_STEP: Final = 1e-5


def bucket_of(code: int) -> int:
    """Return the bucket of a page, from 0 to BUCKETS - 1: the range of rates of change in which the page is counted.

    `code`: the page's rate of change, as `ChangeRate.code`. A higher rate has a higher bucket.
    """
    return code >> _SHIFT


def bucket_rate(bucket: int) -> float:
    """Return the rate of change, in changes a second, in the middle of a bucket (`bucket_of`)."""
    return float(2.0 ** ((bucket + 0.5) * OCTAVES / BUCKETS - OCTAVES))


def value_s(rate: float, elapsed_s: float) -> float:
    """Return the value in seconds of fetching a page again `elapsed_s` seconds after its last fetch.

    `rate`: the page's rate of change. The value grows with the elapsed time and stays below 1/rate.
    """
    # (1/D) (1 - (1 + D t) e^(-D t)), with the rate D and the elapsed time t.
    return _fraction(max(rate, SLOWEST) * elapsed_s) / max(rate, SLOWEST)


def wait_s(rate: float, price_s: float, importance: float = 1.0) -> float:
    """Return the seconds after a fetch until the value of the next fetch reaches `price_s`. Infinity if it never does.

    `rate`: the page's rate of change. `importance`: a factor of the value.
    """
    rate = max(rate, SLOWEST)
    wanted = price_s * rate / importance
    return _inverse(wanted) / rate if wanted < 1.0 else inf


def freshness(rate: float, interval_s: float) -> float:
    """Return the fraction of the time, from 0 to 1, for which a stored page equals the page on the server.

    `interval_s`: the seconds between two fetches of the page. `rate`: the page's rate of change.
    """
    events = rate * interval_s
    return -expm1(-events) / events if events > 1e-9 else 1.0


def within(seconds: float, min_s: float, max_s: float) -> float:
    """Return `seconds`, raised to `min_s` or lowered to `max_s` if it is outside these bounds of the spec."""
    return min(max(seconds, min_s), max_s)


class RecrawlSchedule(Struct, frozen=True):
    """How long the pages of each bucket wait between two fetches, so that an owner keeps its budget of requests.

    - `waits_s`: the wait in seconds for each bucket, a range of rates of change (`bucket_of`).
    - `price_s`: the price for which these waits were computed. A page is due when the value of fetching it (`value_s`)
      reaches the price.
    """

    price_s: float
    waits_s: tuple[float, ...]

    def interval_s(self, code: int, min_s: float, max_s: float) -> float:
        """Return the seconds between two fetches of a page, within the bounds `min_s` and `max_s` of the spec.

        `code`: the page's rate of change, as `ChangeRate.code`.
        """
        return within(self.waits_s[bucket_of(code)], min_s, max_s)

    def requests_per_day(self, pages: Sequence[int], min_s: float, max_s: float) -> float:
        """Return the number of requests a day that these pages need.

        `pages`: the number of pages in each bucket (`bucket_of`). `min_s` and `max_s` bound the wait of every page.
        """
        waits = [within(wait, min_s, max_s) for wait in self.waits_s]
        return DAY_S * sum(count / wait for count, wait in zip(pages, waits, strict=True) if count)


def solved(
    pages: Sequence[int],
    requests_per_day: float,
    min_s: float,
    max_s: float,
    *,
    sign_share_sum: Sequence[float] = (),
    pages_with_signs: Sequence[int] = (),
) -> RecrawlSchedule:
    """Return the schedule that fetches pages as often as the budget of requests allows.

    A page is fetched again when the value of a fetch reaches the price. With a lower price, pages are fetched more
    often. The schedule has the lowest price at which the pages need no more requests than the budget allows. No page
    waits longer than `max_s`. If the budget is too small for that, the schedule exceeds the budget.

    A sign of change is a date that a sitemap or feed gives for a page, if it is later than the page's last fetch. Signs
    cause additional requests, which use a part of the budget.

    The arguments with a number for each bucket (`bucket_of`, a range of rates of change):

    - `pages`: the count of all pages, with and without signs.
    - `pages_with_signs`: the count of pages with signs. If it is left out, the schedule is less exact.
    - `sign_share_sum`: a sum over the pages with signs. Each page adds the share of its changes that have a sign, up to
      1. For example, one page has signs for all its changes, another page for half of them. Then the count is 2, and
      the sum is 1 + 0.5 = 1.5.

    The other arguments:

    - `requests_per_day`: the budget.
    - `min_s`, `max_s`: the bounds of the wait of every page.
    """
    # With `pages_with_signs`, a request because of a sign replaces the page's next regular request. Without it, both
    # count.
    rates = [(count, bucket_rate(bucket)) for bucket, count in enumerate(pages) if count]
    signs = [
        _Signs(bucket_rate(bucket), count, pages_with_signs[bucket] if pages_with_signs else 0, min_s, max_s)
        for bucket, count in enumerate(sign_share_sum)
        if count > 0
    ]

    def needed(price_s: float) -> float:
        asked = sum(count / within(wait_s(rate, price_s), min_s, max_s) for count, rate in rates)
        shown = sum(each.requests(price_s) for each in signs if price_s * each.rate < _SIGN_WORTH)
        return DAY_S * (asked + shown)

    low, high = _PRICES
    if needed(2.0**low) <= requests_per_day:
        high = low
    elif needed(2.0**high) >= requests_per_day:
        low = high
    while high - low > _PRICE_STEP:
        middle = (low + high) / 2
        low, high = (low, middle) if needed(2.0**middle) <= requests_per_day else (middle, high)
    # A wait goes to infinity between two prices that hardly differ: there the budget is met between the two waits.
    most, least = needed(2.0**low), needed(2.0**high)
    part = min(max((requests_per_day - least) / (most - least), 0.0), 1.0) if most > least else 0.0
    waits = []
    for bucket in range(BUCKETS):
        short, long = (wait_s(bucket_rate(bucket), 2.0**price) for price in (low, high))
        if within(short, min_s, max_s) < within(long, min_s, max_s):
            long = 1 / (part / within(short, min_s, max_s) + (1 - part) / within(long, min_s, max_s))
        waits.append(long)
    return RecrawlSchedule(2.0**high, tuple(waits))


class _Signs(Struct, frozen=True):
    """The pages of one bucket whose changes are expected to have signs: dates in a sitemap or feed.

    For example, one page has signs for all its changes (a share of 1). Another page has signs for half of its changes
    (a share of 0.5). Then `pages` is 2, and `sign_share_sum` is 1 + 0.5 = 1.5.

    - `rate`: the rate of change of each page.
    - `sign_share_sum`: the sum of the shares of all these pages.
    - `pages`: the number of these pages, or 0 if the number is unknown.
    - `min_s`, `max_s`: the bounds of a page's wait.
    """

    rate: float
    sign_share_sum: float
    pages: int
    min_s: float
    max_s: float

    def requests(self, price_s: float) -> float:
        """Return how many requests a second these pages need because of their signs, besides the regular requests.

        `price_s`: the price of a fetch in seconds (see the module).
        """
        # A request because of a sign replaces the page's next regular request, so it is not always one more. If the
        # number of pages is unknown, each request counts as one more.
        signs = self.sign_share_sum * self.rate
        if not self.pages:
            return signs
        part = min(self.sign_share_sum / self.pages, 1.0)
        wait = within(wait_s(self.rate * (1 - part), price_s), self.min_s, self.max_s)
        # A page waits until its next sign, but at most for `wait`.
        one = part * self.rate
        return self.pages * (one / -expm1(-one * wait) - 1 / wait)


def expected_freshness(pages: Sequence[int], requests_per_day: float, min_s: float, max_s: float) -> float:
    """Return the average fraction of pages, from 0 to 1, that is fresh with a budget of `requests_per_day`.

    Return 1 if there are no pages. `pages`: the number of pages in each bucket (`bucket_of`). The result assumes that
    pages change at their rates, and ignores signs of change. If the budget is too small to fetch each page every
    `max_s`, all waits are assumed to be longer by the same factor.
    """
    if not any(pages):
        return 1.0
    schedule = solved(pages, requests_per_day, min_s, max_s)
    late = max(1.0, schedule.requests_per_day(pages, min_s, max_s) / requests_per_day)
    waits = [within(wait, min_s, max_s) * late for wait in schedule.waits_s]
    fresh = (count * freshness(bucket_rate(bucket), waits[bucket]) for bucket, count in enumerate(pages) if count)
    return sum(fresh) / sum(pages)


class SignalTrust(Struct, frozen=True):
    """How reliable a host's signs of change are. A sign of change is the date of a page in a sitemap or feed.

    Each time a page is fetched again, the fetch shows if the page has changed. Two numbers count errors of the signs:

    - `wrong`: the page had a sign, but the fetch found no change.
    - `missed`: the page had no sign, but the fetch found a change.

    Two numbers say how many errors to expect if the signs were random:

    - `wrong_by_chance`: the expected value of `wrong`. Signs are reliable if `wrong` is much lower.
    - `missed_by_chance`: the expected value of `missed`. Most changes have signs if `missed` is much lower.

    The expected values are computed from the pages' rates of change. Old fetches count less than new ones.
    """

    wrong: float = 0.0
    wrong_by_chance: float = 0.0
    missed: float = 0.0
    missed_by_chance: float = 0.0

    def compared(self, *, signalled: bool, changed: bool, rate: float, elapsed_s: float) -> "SignalTrust":
        """Return the trust after one more comparison of a page, whose last fetch was `elapsed_s` seconds before.

        `signalled`: the page had a sign of change. `changed`: it had changed. `rate`: its rate of change before the
        comparison.
        """
        unchanged = exp(-rate * max(elapsed_s, 0.0))
        kept = 0.5 if self.wrong_by_chance + self.missed_by_chance > SIGNALS_REMEMBERED else 1.0
        return SignalTrust(
            (self.wrong + (signalled and not changed)) * kept,
            (self.wrong_by_chance + unchanged * signalled) * kept,
            (self.missed + (not signalled and changed)) * kept,
            (self.missed_by_chance + (1 - unchanged) * (not signalled)) * kept,
        )

    @property
    def precision(self) -> float:
        """How reliable signs are, from 0 to 1: near 1 if nearly all pages with a sign had changed.

        It is 0 if signs carry no information: the pages with a sign had changed no more often than their rates
        predict.
        """
        return max(0.0, 1 - (self.wrong + 1) / (self.wrong_by_chance + 1))

    @property
    def unsignalled(self) -> float:
        """The fraction of the changes, from 0 to 1, that have no sign."""
        return min(1.0, (self.missed + 1) / (self.missed_by_chance + 1))


def advanced_s(rate: float, precision: float) -> float:
    """Return by how many seconds a sign of change makes a page due sooner than without the sign.

    - `rate`: the page's rate of change.
    - `precision`: how reliable signs are (`SignalTrust.precision`).
    """
    # This is the effective elapsed time of a page with noisy signals in arXiv 2502.02430.
    return -log(max(1.0 - precision, 1e-6)) / max(rate, SLOWEST)


def _fraction(events: float) -> float:
    """Return the value of fetching a page again, as a fraction (0 to 1) of the highest possible value of that page.

    `events`: how many times the page is expected to have changed since its last fetch. With x for `events`, the result
    is 1 - (1 + x) e^(-x).
    """
    if events < _SMALL:  # The terms cancel, so use their series.
        return events * events * (0.5 - events / 3 + events * events / 8)
    return -expm1(-events) - events * exp(-events)


def _inverse(wanted: float) -> float:
    """Return the number x for which `_fraction(x)` is `wanted`. If `wanted` is 0 or less, return 0.

    For example, `_fraction(1)` returns about 0.264, so `_inverse(0.264)` returns about 1. This means: when a page is
    expected to have changed once, a fetch has 26.4 % of its highest possible value.

    `wanted`: a value of fetching a page, as a fraction of the page's highest possible value. It must be less than 1.
    """
    if wanted <= 0.0:
        return 0.0
    # Start left of the solution where the curve bends up (x < 1), right of it elsewhere, and step by Newton.
    low, high = 0.0, 60.0
    events = min(sqrt(2 * wanted), 1.0) if wanted < 0.264 else 1.0 - log(1.0 - wanted)
    for _ in range(50):
        error = _fraction(events) - wanted
        low, high = (events, high) if error < 0 else (low, events)
        slope = events * exp(-events)
        step = events - error / slope if slope > 0 else -1.0
        events, before = step if low < step < high else (low + high) / 2, events
        if abs(events - before) <= _SOLVED * events:
            break
    return events
