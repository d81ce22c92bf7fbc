"""Queries of a CDX server: which captures match a URL and a time, and in which order. Pure.

The parameters are those of pywb's CDX server. Captures are compared by the sort key of their URL (`cdxj.surt`). It is
the same for http and https, and with and without `www.`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from shared.domain.archive.cdxj import IndexRow, surt, timestamp14
from shared.domain.web.url import Location, locate

_DIGITS: Final = 14
_FIRST: Final = "00000101000000"
_WWW: Final = "www."
_BEHIND_DOMAIN: Final = frozenset("),:")


class CdxMatch(StrEnum):
    """Which captures match a URL: its own, those below it, those of its host, or those of its host and all below."""

    EXACT = "exact"
    PREFIX = "prefix"
    HOST = "host"
    DOMAIN = "domain"


class CdxSort(StrEnum):
    """The order of captures: by sort key and time, the reverse of it, or by the distance from a time."""

    DEFAULT = "default"
    REVERSE = "reverse"
    CLOSEST = "closest"


@dataclass(frozen=True, slots=True)
class CdxQuery:
    """A query: the `location` of its URL, which captures match, and the beginning of their sort keys.

    `since`, `until` and `closest` are the first digits of a time as yyyymmddhhmmss, empty for none.
    """

    location: Location
    match: CdxMatch
    key: str
    since: str = ""
    until: str = ""
    closest: str = ""
    sort: CdxSort = CdxSort.DEFAULT
    max_count: int = 1_000

    def locations(self) -> Sequence[Location]:
        """Return the URLs that an exact query looks up: with both schemes, and with and without `www.`."""
        _, _, rest = self.location.url.partition("://")
        rests = (rest, rest.removeprefix(_WWW) if rest.startswith(_WWW) else _WWW + rest)
        found = (locate(f"{scheme}://{each}") for each in rests for scheme in ("http", "https"))
        return tuple({place.fingerprint: place for place in (self.location, *found) if place is not None}.values())

    def hosts(self) -> Sequence[str]:
        """Return the hosts whose captures a query by host or prefix reads."""
        return tuple(dict.fromkeys(place.host for place in self.locations()))

    def selected(self, rows: Iterable[IndexRow]) -> list[IndexRow]:
        """Return the captures that match, in the order of the query, and at most as many as it asks for."""
        since, until = self.since + "0" * (_DIGITS - len(self.since)), self.until + "9" * (_DIGITS - len(self.until))
        found = [row for row in rows if self._matches(row) and since <= timestamp14(row.fetched_at_ms) <= until]
        found.sort(key=lambda row: (row.surt, row.fetched_at_ms), reverse=self.sort is CdxSort.REVERSE)
        if self.closest:
            at_ms = _unix_ms(self.closest)
            found.sort(key=lambda row: abs(row.fetched_at_ms // 1000 * 1000 - at_ms))
        return found[: self.max_count]

    def _matches(self, row: IndexRow) -> bool:
        if self.match is CdxMatch.EXACT:
            return row.surt == self.key
        # The key of a domain is also the beginning of longer names, such as `test,a` of `test,ab)`.
        return row.surt.startswith(self.key) and (
            self.match is not CdxMatch.DOMAIN or row.surt[len(self.key)] in _BEHIND_DOMAIN
        )


def cdx_query(url: str, match: CdxMatch | None) -> tuple[Location, CdxMatch, str] | None:
    """Return the location, the kind of match and the beginning of the sort keys for a URL. None if it is no URL.

    Without `match`, a `*` at its end means `prefix`, and `*.` before it means `domain`. The scheme may be missing.
    """
    if match is None:
        match = CdxMatch.EXACT
        if url.startswith("*."):
            url, match = url[2:], CdxMatch.DOMAIN
        elif url.endswith("*"):
            url, match = url[:-1], CdxMatch.PREFIX
    location = locate(url if "://" in url else f"http://{url}")
    if location is None:
        return None
    key = surt(location.url)
    host_key = key[: key.index(")")]
    match match:
        case CdxMatch.HOST:
            key = f"{host_key})"
        case CdxMatch.DOMAIN:
            key = host_key
        case CdxMatch.PREFIX if location.url.endswith("/") and not key.endswith("/"):
            key += "/"
    return location, match, key


def _unix_ms(digits: str) -> int:
    """Return the Unix ms of the first digits of a time. A time that does not exist counts as the year's beginning."""
    padded = digits + _FIRST[len(digits) :]
    for text in (padded, digits[:4].zfill(4) + _FIRST[4:], f"1970{_FIRST[4:]}"):
        try:
            return int(datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
    return 0
