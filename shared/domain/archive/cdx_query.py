"""Queries of a CDX server: which captures match a URL and a time range, and in which order. No I/O.

The parameters are those of pywb's CDX server. A capture is one stored fetch. Captures are compared by the sort key of
their URL (`cdxj.surt`), which is the same for http and https, and with and without `www.`.
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
    """Which captures match a query for a URL.

    - EXACT: those with the sort key of the URL.
    - PREFIX: those whose sort key begins with that of the URL.
    - HOST: those of the URL's host.
    - DOMAIN: those of the URL's host and of its subdomains.
    """

    EXACT = "exact"
    PREFIX = "prefix"
    HOST = "host"
    DOMAIN = "domain"


class CdxSort(StrEnum):
    """The order of captures.

    - DEFAULT: by sort key, then by time.
    - REVERSE: the reverse of DEFAULT.
    - CLOSEST: by the distance from a given time.
    """

    DEFAULT = "default"
    REVERSE = "reverse"
    CLOSEST = "closest"


@dataclass(frozen=True, slots=True)
class CdxQuery:
    """A query of the CDX server, with its parameters.

    - `location`: the URL. `match`: which captures match it.
    - `key`: what the sort key of a capture must equal if `match` is EXACT, else what it must begin with.
    - `since`, `until` (both inclusive) and `closest`: the first digits of a time as yyyymmddhhmmss; empty means none.
    - `max_count`: at most so many captures are returned.
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
        """Return the URLs that have the sort key of `location`: with http and https, and with and without `www.`."""
        _, _, rest = self.location.url.partition("://")
        rests = (rest, rest.removeprefix(_WWW) if rest.startswith(_WWW) else _WWW + rest)
        found = (locate(f"{scheme}://{each}") for each in rests for scheme in ("http", "https"))
        return tuple({place.fingerprint: place for place in (self.location, *found) if place is not None}.values())

    def hosts(self) -> Sequence[str]:
        """Return the host of the queried URL, and the host that differs from it only in a leading `www.`.

        A query for `example.org` gives `example.org` and `www.example.org`. A query for `www.example.org` gives the
        same two hosts. The queried host is the first.
        """
        return tuple(dict.fromkeys(place.host for place in self.locations()))

    def selected(self, rows: Iterable[IndexRow]) -> list[IndexRow]:
        """Return the captures among `rows` that match, sorted as the query says, and at most `max_count` of them."""
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
    """Return the `location`, `match` and `key` of the CdxQuery for `url`. Return None if `url` is not valid.

    `url` may lack a scheme; then http is used. If `match` is None, a trailing `*` in `url` means PREFIX, a leading `*.`
    means DOMAIN, and anything else means EXACT.
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
    """Return the earliest time that begins with these digits of yyyymmddhhmmss, as Unix ms.

    For example, `202403` gives 2024-03-01 00:00:00. If no time begins with the digits, use only the first four:
    the year. If the year is invalid, return the beginning of 1970.
    """
    padded = digits + _FIRST[len(digits) :]
    for text in (padded, digits[:4].zfill(4) + _FIRST[4:], f"1970{_FIRST[4:]}"):
        try:
            return int(datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
    return 0
