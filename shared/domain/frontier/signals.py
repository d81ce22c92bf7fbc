"""Signs that a stored page has changed, such as `lastmod` in a sitemap, and how an owner follows them. Pure.

An owner keeps for each queue (crawl and host) how often the signs were right. A page whose `lastmod` is later than its
last fetch has a sign. It is due sooner: by the time for which the sign makes it as likely stale. A host whose signs say
nothing changes no due time.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.frontier.change_rate import ChangeRate, decoded, prior
from shared.domain.frontier.recrawl import DAY_S, SignalTrust, bucket_of, bucket_rate

TRUSTED: Final = 0.5
"""The precision of a host's signs from which its pages are planned to be fetched when they have one."""

FOLLOWED: Final = 255
"""`PageHistory.followed` of a page all of whose changes are expected to have a sign."""

SITEMAP_PART: Final = 5.0
"""An adaptive crawl fetches a sitemap at most once in the time in which that many of its host's pages are fetched."""

_STORED: Final = struct.Struct(">ffffI")


@dataclass(frozen=True, slots=True)
class HostSignals:
    """How far the signs of one host are right, and when a sitemap there was read last (Unix ms, 0: never)."""

    trust: SignalTrust = SignalTrust()  # noqa: RUF009  it is frozen
    read_ms: int = 0

    @property
    def trusted(self) -> bool:
        """True if pages with a sign have changed much more often than others."""
        return self.trust.precision > TRUSTED

    @property
    def followed(self) -> int:
        """The part of the changes of a page that is expected to have a sign, from 0 to FOLLOWED."""
        return round((1 - self.trust.unsignalled) * FOLLOWED) if self.trusted else 0

    def read(self, now_ms: int) -> "HostSignals":
        """Return the signals after a sitemap was read."""
        return replace(self, read_ms=now_ms)

    def compared(
        self, rate: ChangeRate, *, signalled: bool, changed: bool, checked_ms: int, now_ms: int
    ) -> "HostSignals":
        """Return the signals after a comparison of a page whose last fetch was at `checked_ms`.

        Without a sign it counts only if a sitemap was read since.
        """
        if not signalled and self.read_ms <= checked_ms:
            return self
        elapsed_s = (now_ms - checked_ms) / 1000
        return replace(
            self, trust=self.trust.compared(signalled=signalled, changed=changed, rate=rate.mean, elapsed_s=elapsed_s)
        )

    def encoded(self) -> bytes:
        """Return the signals as they are stored in `queues.signals`, in 20 bytes."""
        trust = self.trust
        return _STORED.pack(trust.wrong, trust.still, trust.missed, trust.due, self.read_ms // 1000)


NO_SIGNALS: Final = HostSignals()


def signals_of(stored: bytes | None) -> HostSignals:
    """Return stored signals, those of a host without any if there are none."""
    if not stored or len(stored) < _STORED.size:
        return NO_SIGNALS
    wrong, still, missed, due, read_s = _STORED.unpack_from(stored)
    return HostSignals(SignalTrust(wrong, still, missed, due), read_s * 1000)


def rate_signalled(known: ChangeRate, *, lastmod_ms: int, known_ms: int, read_ms: int, now_ms: int) -> int:
    """Return the code of a page's rate of change after a right sign, read at `now_ms`.

    The page did not change after `lastmod_ms`, nor from `known_ms` until its sitemap was read before (`read_ms`).
    """
    still_ms = max(0, read_ms - known_ms) + max(0, now_ms - lastmod_ms)
    return known.signalled(still_ms / 1000).code


def waiting_bucket(code: int, followed: int) -> int:
    """Return the bucket by which a page is due. Of a followed page only changes without a sign count."""
    return bucket_of(waiting_code(code, followed))


def waiting_code(code: int, followed: int) -> int:
    """Return the code of the rate by which a page is due: of a followed page, that of its changes without a sign.

    What is believed of a followed page is planned with cautiously: its signs show the changes that the wait misses.
    """
    return prior(decoded(code).cautious * (1 - followed / FOLLOWED)).code if followed else code


def signalled_bucket(code: int) -> int:
    """Return the bucket by which the changes of a followed page count that have a sign."""
    return bucket_of(prior(decoded(code).cautious).code)


def sitemap_wait_ms(interval: PageInterval, quiet: int, least_ms: float) -> int:
    """Return the wait until a sitemap's next fetch: the least, doubled for each fetch in a row that found nothing."""
    return int(min(max(interval.min_ms, least_ms) * 2.0 ** min(quiet, 40), max(interval.max_ms, interval.min_ms)))


def sitemap_code(wait_ms: int) -> int:
    """Return the code of the rate at which a sitemap with this wait is fetched."""
    return prior(1000 / max(wait_ms, 1)).code


def requests_per_day(sitemaps: list[int]) -> float:
    """Return the requests a day that sitemaps need, which are counted by bucket of their rate."""
    return DAY_S * sum(n * bucket_rate(bucket) for bucket, n in enumerate(sitemaps) if n > 0)
