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

FOLLOWED: Final = 255
"""The greatest value of `PageHistory.followed`: all changes of the page are expected to have a sign."""

SITEMAP_PART: Final = 5.0
"""With the recrawl policy `adaptive`, at least this many pages of a host are fetched for each fetch of a sitemap.

The time that these pages take is computed as if all pages were fetched equally often. If it exceeds the crawl's longest
interval, a sitemap waits only for that interval."""

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
    def followed(self) -> int:
        """The share of a page's changes that are expected to have a sign, from 0 to 255 (FOLLOWED) for all changes.

        It is 0 if `trusted` is False.
        """
        return round((1 - self.trust.unsignalled) * FOLLOWED) if self.trusted else 0

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
        return _STORED.pack(trust.wrong, trust.still, trust.missed, trust.due, self.read_ms // 1000)


NO_SIGNALS: Final = HostSignals()


def signals_of(stored: bytes | None) -> HostSignals:
    """Return the signals that `HostSignals.encoded` wrote as `stored`. Return NO_SIGNALS if there are none."""
    if not stored or len(stored) < _STORED.size:
        return NO_SIGNALS
    wrong, still, missed, due, read_s = _STORED.unpack_from(stored)
    return HostSignals(SignalTrust(wrong, still, missed, due), read_s * 1000)


def rate_signalled(known: ChangeRate, *, lastmod_ms: int, known_ms: int, read_ms: int, now_ms: int) -> int:
    """Return the code (`ChangeRate.code`) of a page's rate of change after a sitemap or feed gave a date for the page.

    Times are Unix ms.

    - `known`: the rate before. `known_ms`: when that rate was estimated.
    - `lastmod_ms`: the date that the sitemap or feed gives. `now_ms`: when it was read.
    - `read_ms`: when a sitemap of the host was read the last time before.
    """
    # If the date is right, the page did not change from `known_ms` to `read_ms`, nor from `lastmod_ms` to `now_ms`.
    still_ms = max(0, read_ms - known_ms) + max(0, now_ms - lastmod_ms)
    return known.signalled(still_ms / 1000).code


def waiting_bucket(code: int, followed: int) -> int:
    """Return the bucket of the rate of a page's changes without a sign: a range of rates (`recrawl.bucket_of`).

    The arguments are those of `waiting_code`.
    """
    return bucket_of(waiting_code(code, followed))


def waiting_code(code: int, followed: int) -> int:
    """Return the rate of those changes of a page that have no sign, as `ChangeRate.code`.

    This rate determines how long the page waits for its next fetch.

    - `code`: the rate of all changes of the page, as `ChangeRate.code`.
    - `followed`: the share of the page's changes that are expected to have a sign, from 0 for none to 255 for all.
    """
    return prior(decoded(code).cautious * (1 - followed / FOLLOWED)).code if followed else code


def signalled_bucket(code: int) -> int:
    """Return the bucket of a page in the counts SIGNALLED and FOLLOWED_PAGES of `recrawl_pages`.

    A bucket is a range of rates (`recrawl.bucket_of`). All changes of the page count, with and without signs.

    `code`: the page's rate of change, as `ChangeRate.code`.
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
    """Return the code (`ChangeRate.code`) of the rate at which a sitemap is fetched: once in `wait_ms`."""
    return prior(1000 / max(wait_ms, 1)).code


def requests_per_day(sitemaps: list[int]) -> float:
    """Return the number of requests a day that a crawl's sitemaps need.

    `sitemaps`: the number of sitemaps in each bucket. A bucket is a range of rates of fetching (`recrawl.bucket_of`).
    """
    return DAY_S * sum(n * bucket_rate(bucket) for bucket, n in enumerate(sitemaps) if n > 0)
