"""Signs that a stored page has changed, such as `lastmod` in a sitemap, and how an owner follows them.

A page has a sign of change if a sitemap or feed gives it a date later than its last fetch. An owner stores for each
queue (crawl and host) how often the signs were right. The more often they were, the sooner a page with a sign is due.
Signs that are right only by chance change no due time. The module does no I/O.
"""

import struct
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.frontier.change_rate import ChangeRate, decoded, prior
from shared.domain.frontier.recrawl import DAY_S, SignalTrust, bucket_of, bucket_rate

TRUSTED: Final = 0.5
"""A host's signs of change are trusted if they are more reliable than this, from 0 to 1 (`SignalTrust.precision`)."""

FULL_SIGN_SHARE: Final = 255
"""The value of `PageHistory.sign_share` that means: all changes of the page are expected to have a sign.

The value 0 means that no change is expected to have one.
"""

PAGE_FETCHES_PER_SITEMAP_FETCH: Final = 5.0
"""A sitemap is fetched at most once for every 5 page fetches that the budget allows on its host.

The limit is for crawls with the recrawl policy `adaptive`. For example, the budget of a crawl allows to fetch each of
its pages every 10 days:

- A host with 50 pages may get 50 / 10 = 5 page fetches a day. Its sitemap is fetched at most once a day.
- A host with one page may get 5 page fetches in 50 days. Its sitemap is fetched at most once in 50 days.

But a sitemap never waits longer than the longest wait of the spec. If that is 30 days, the second sitemap waits only 30
days.
"""

_STORED: Final = struct.Struct(">ffffI")


class HostSignals(Struct, frozen=True):
    """What is stored of one host's signs of change, the dates that its sitemaps and feeds give for pages.

    `trust`: how often these dates were right. `read_ms`: when a sitemap of the host was last read (Unix ms, 0: never).
    """

    trust: SignalTrust = SignalTrust()
    read_ms: int = 0

    @property
    def trusted(self) -> bool:
        """True if the host's signs of change are reliable enough to be used: `trust.precision` is above TRUSTED."""
        return self.trust.precision > TRUSTED

    @property
    def sign_share(self) -> int:
        """How many future changes of the host's pages will probably have a sign, as a share from 0 (none) to 255 (all).

        A sign is a date in a sitemap or feed that is later than the page's last fetch. For example, a share of 128
        means: about half of the changes will have a sign, and the other half will not.

        If the host's signs are not reliable (`trusted` is False), the share is 0.
        """
        return round((1 - self.trust.unsignalled) * FULL_SIGN_SHARE) if self.trusted else 0

    def read(self, now_ms: int) -> "HostSignals":
        """Return the signals with `now_ms` as the time at which a sitemap was last read."""
        return replace(self, read_ms=now_ms)

    def compared(
        self, rate: ChangeRate, *, signalled: bool, changed: bool, checked_ms: int, now_ms: int
    ) -> "HostSignals":
        """Return the signals after one of the host's pages was fetched again and compared at `now_ms` (Unix ms).

        - `rate`: the page's rate of change before the comparison.
        - `signalled`: the page has got a sign of change since its previous fetch.
        - `changed`: the page had changed.
        - `checked_ms`: the time of the previous fetch (Unix ms).

        If the page has no sign, and no sitemap was read since `checked_ms`, return the signals unchanged.
        """
        if not signalled and self.read_ms <= checked_ms:
            return self
        elapsed_s = (now_ms - checked_ms) / 1000
        return replace(
            self, trust=self.trust.compared(signalled=signalled, changed=changed, rate=rate.mean, elapsed_s=elapsed_s)
        )

    def encoded(self) -> bytes:
        """Return the signals as 20 bytes for the column `queues.signals`. `signals_of` reads them."""
        trust = self.trust
        return _STORED.pack(
            trust.wrong, trust.wrong_by_chance, trust.missed, trust.missed_by_chance, self.read_ms // 1000
        )


NO_SIGNALS: Final = HostSignals()


def signals_of(stored: bytes | None) -> HostSignals:
    """Return the signals that `HostSignals.encoded` wrote as `stored`. Return NO_SIGNALS if there are none."""
    if not stored or len(stored) < _STORED.size:
        return NO_SIGNALS
    wrong, wrong_by_chance, missed, missed_by_chance, read_s = _STORED.unpack_from(stored)
    return HostSignals(SignalTrust(wrong, wrong_by_chance, missed, missed_by_chance), read_s * 1000)


def rate_signalled(known: ChangeRate, *, lastmod_ms: int, known_ms: int, read_ms: int, now_ms: int) -> int:
    """Return a page's new rate of change after a sitemap or feed gave a date on which the page changed.

    The result is encoded (`ChangeRate.code`). The date counts as one more change of the page. The arguments, with the
    times (Unix ms) in their usual order:

    - `known`: the rate before.
    - `known_ms`: when the rate was last updated, by a fetch of the page or by an earlier date.
    - `read_ms`: when a sitemap of the host was read before. 0 if never.
    - `lastmod_ms`: the date on which the page changed.
    - `now_ms`: the present time.

    In two spans of time the page did not change. The longer they are, the lower is the new rate:

    - From `known_ms` to `read_ms`, because the sitemap gave no new date at `read_ms`.
    - From `lastmod_ms` to `now_ms`, because `lastmod_ms` is the page's latest change.
    """
    # Between `read_ms` and `lastmod_ms` the page changed, but it is unknown how often. This time is ignored.
    still_ms = max(0, read_ms - known_ms) + max(0, now_ms - lastmod_ms)
    return known.signalled(still_ms / 1000).code


def waiting_bucket(code: int, sign_share: int) -> int:
    """Return the bucket of a page. The bucket decides how long the page waits if it has no sign of change.

    A bucket is a range of rates of change (`recrawl.bucket_of`). Changes that have a sign do not count here, because a
    sign makes the page due sooner anyway. For example, a page changes 4 times a day, and 3 of the changes have signs.
    Then the result is about the bucket of 1 change a day.

    - `code`: the rate of all changes of the page, as `ChangeRate.code`.
    - `sign_share`: the expected share of these changes that have a sign. 0 is none, 255 is all.
    """
    return bucket_of(rate_code_without_signs(code, sign_share))


def rate_code_without_signs(code: int, sign_share: int) -> int:
    """Return the rate of a page's changes that have no sign, encoded as `ChangeRate.code`.

    For example, a page changes 4 times a day, and 3 of the changes have signs. Then the result is the code of about 1
    change a day. A page waits for its next fetch by this rate, because a sign makes the page due sooner anyway.

    - `code`: the rate of all changes of the page, as `ChangeRate.code`.
    - `sign_share`: the expected share of these changes that have a sign. 0 is none, 255 is all.
    """
    return prior(decoded(code).cautious * (1 - sign_share / FULL_SIGN_SHARE)).code if sign_share else code


def signalled_bucket(code: int) -> int:
    """Return the bucket in which a page with signs of change is counted. A bucket is a range of rates of change.

    `code`: the estimated rate of all changes of the page, with or without a sign, as `ChangeRate.code`.

    An estimate from few observed changes is often too high. So the bucket is that of a lower rate, which leaves a
    margin for the error (`ChangeRate.cautious`). For example, two pages have an estimate of 4 changes a day:

    - The estimate comes from 1 observed change: return the bucket of about 2 changes a day.
    - The estimate comes from 20 observed changes: return the bucket of about 3.8 changes a day.
    """
    return bucket_of(prior(decoded(code).cautious).code)


def sitemap_wait_ms(interval: PageInterval, quiet: int, least_ms: float) -> int:
    """Return the ms until a sitemap's next fetch, at most `interval.max_ms`.

    The wait begins at `interval.min_ms`, and doubles with each fetch that finds nothing new.

    - `quiet`: how many of the latest fetches in a row found nothing new.
    - `least_ms`: begin at this wait if it is longer than `interval.min_ms`.
    """
    return int(min(max(interval.min_ms, least_ms) * 2.0 ** min(quiet, 40), max(interval.max_ms, interval.min_ms)))


def sitemap_code(wait_ms: int) -> int:
    """Return the rate at which a sitemap is fetched, one fetch in `wait_ms`, encoded as one integer.

    The encoding is that of a page's rate of change (`ChangeRate.code`).
    """
    return prior(1000 / max(wait_ms, 1)).code


def requests_per_day(sitemaps: list[int]) -> float:
    """Return the number of requests a day that a crawl's sitemaps need.

    `sitemaps`: the number of sitemaps in each bucket. A bucket is a range of rates of fetching (`recrawl.bucket_of`).
    """
    return DAY_S * sum(n * bucket_rate(bucket) for bucket, n in enumerate(sitemaps) if n > 0)
