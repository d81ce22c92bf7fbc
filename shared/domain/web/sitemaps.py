"""Sitemaps by sitemaps.org: which sitemaps a robots.txt names, which URLs a sitemap may list, and the dates in it."""

import re
from contextlib import suppress
from datetime import date, datetime
from typing import Final

from shared.domain.web.url import Location, locate, origin_of

MAX_ROBOTS_SITEMAPS: Final = 1_000
"""The maximum number of sitemaps that are taken from one robots.txt."""

WELL_KNOWN_SITEMAP: Final = "/sitemap.xml"
"""Where a site most likely has its sitemap if its robots.txt names none."""

MAX_DATE_CHARS: Final = 64
"""A longer date of a sitemap or feed is ignored."""

_W3C: Final = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?[ ]?([Zz]|[+-]\d\d:?\d\d)?)?)?)?",
    re.ASCII,
)
_RFC_822: Final = re.compile(
    r"(?:[A-Za-z]{3,9},? +)?(\d{1,2})[ -]([A-Za-z]{3})[a-z]*[ -](\d{4}) +(\d\d):(\d\d)(?::(\d\d))?"
    r"(?: +([A-Za-z]{1,4}|[+-]\d{4}))?",
    re.ASCII,
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ZONES: Final = {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
_UTC: Final = frozenset(("Z", "+00:00"))
_USUAL: Final = re.compile(r"....-..-..(?:T(?!24)..:..:..(?:Z|[+-]..:..))?").fullmatch
"""Matches text in the shape of a W3C date (`2029-01-31`), or of one with a time and a zone, as most sitemaps have it.

`datetime.fromisoformat` parses such text fast. It is not used for other text, because it accepts too many formats.
"""

_FIRST_DAY: Final = date(1970, 1, 1).toordinal()

_DATE_CHARS: Final = len("2029-01-01")

_LINE: Final = re.compile(rb"^[ \t]*site-?map[ \t]*:[ \t]*([^\r\n#]+)", re.IGNORECASE | re.MULTILINE)


def sitemaps_of(robots: bytes, origin: str) -> tuple[Location, ...]:
    """Return the sitemaps that the robots.txt of `origin` names, in order, without duplicates.

    A sitemap line applies to every crawler, whatever group it is in. A path that begins with `/` is resolved against
    `origin`. Any other relative reference is ignored.
    """
    found: dict[str, Location] = {}
    for match in _LINE.finditer(robots.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"\n")):
        text = match[1].decode("utf-8", "replace").strip()
        location = locate(text, origin if text.startswith("/") else None)
        if location is not None:
            found.setdefault(location.url, location)
            if len(found) >= MAX_ROBOTS_SITEMAPS:
                break
    return tuple(found.values())


def listing_folder(sitemap: str) -> str:
    """Return the prefix that every URL in a sitemap must have: the sitemap's canonical URL up to the path's last `/`.

    The rule is that of https://www.sitemaps.org/protocol.html#location.
    """
    path = sitemap.partition("?")[0]
    return path[: path.rindex("/") + 1]


def lists_whole_host(sitemap: str) -> bool:
    """Return True if a sitemap may list every URL of its origin, because it is in the root folder."""
    return listing_folder(sitemap) == origin_of(sitemap) + "/"


def date_s(text: str) -> int:
    """Return the time that a date in a sitemap or feed gives, in Unix seconds.

    Return 0 for text that is no such date, and for a date before 1970. The formats are those of W3C
    (https://www.w3.org/TR/NOTE-datetime) and RFC 822. A date without a time means the beginning of the day, month or
    year. A time without a zone is in UTC.
    """
    text = text.strip()
    if _USUAL(text) is not None:
        with suppress(ValueError):  # Real files have second 60, and other values that only the general form accepts.
            if len(text) == _DATE_CHARS:
                return max(0, (date.fromisoformat(text).toordinal() - _FIRST_DAY) * 86_400)
            return max(0, int(datetime.fromisoformat(text).timestamp()))
    return general_date_s(text)


def general_date_s(text: str) -> int:
    """Return the Unix time in seconds of a date in a sitemap or feed, in any format of `date_s`.

    Return 0 if `text` is no such date, or before 1970. `date_s` calls this only for unusual formats, because it is
    slow. `text` must have no space at its ends.
    """
    if len(text) > MAX_DATE_CHARS:
        return 0
    if (match := _W3C.fullmatch(text)) is not None:
        year, month, day, hour, minute, second, zone = match.groups()
        return _moment(year, month or "1", day or "1", hour or "0", minute or "0", second or "0", zone)
    if (match := _RFC_822.fullmatch(text)) is not None:
        day, name, year, hour, minute, second, zone = match.groups()
        if (name := name.lower()) in _MONTHS:
            return _moment(year, str(_MONTHS.index(name) + 1), day, hour, minute, second or "0", zone)
    return 0


def _moment(year: str, month: str, day: str, hour: str, minute: str, second: str, zone: str | None) -> int:
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _FIRST_DAY
    except ValueError:
        return 0
    hours, minutes = int(hour), int(minute)
    if hours > 23 or minutes > 59:
        return 0
    return max(0, days * 86_400 + hours * 3_600 + minutes * 60 + min(int(second), 59) - _offset_s(zone))


def _offset_s(zone: str | None) -> int:
    """Return by how many seconds a time zone is ahead of UTC. 0 for None, `Z`, or an unknown name.

    `zone` is an offset such as `+02:00`, or a zone name of RFC 822 such as `EST`.
    """
    if zone is None or zone in _UTC:
        return 0
    if zone[0] not in "+-":
        return _ZONES.get(zone.upper(), 0) * 3_600
    seconds = int(zone[1:3]) * 3_600 + int(zone[-2:]) * 60
    return seconds if zone[0] == "+" else -seconds
