"""Conditional requests (RFC 9110 §8.8 and §13, RFC 9111 §4.3): how to ask if a page has changed.

Validators come from servers, so each is checked before it is sent. An entity tag that is malformed or longer than
ETAG_BYTES is not sent. A date that is invalid or in the future is not sent either.
"""

import re
from calendar import timegm
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

ETAG_BYTES: Final = 1024
"""The maximum size of an entity tag in bytes. A longer one is not used."""

SKEW_S: Final = 86_400
"""How many seconds a server's clock may be ahead of ours. A Last-Modified further in the future is not used."""

_ETAG: Final = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_DAY: Final = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY: Final = r"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTH: Final = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME: Final = r"(?P<h>[0-9]{2}):(?P<m>[0-9]{2}):(?P<s>[0-9]{2})"
_DATES: Final = (
    re.compile(rf"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"{_DAY} {_MONTH} (?P<day>[0-9 ][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)
"""IMF-fixdate, and the two obsolete formats that must be accepted: that of RFC 850 and that of asctime()."""


class NotModified(StrEnum):
    """What a response 304 means for the stored page.

    CONFIRMED: the stored page has not changed. UNASKED: the request had no condition, so the response means nothing.
    CONTRADICTED: the response has a validator of another page than the stored one. Fetch the page without a condition.
    """

    CONFIRMED = "confirmed"
    UNASKED = "unasked"
    CONTRADICTED = "contradicted"


def conditions(etag: str | None, last_modified: str | None, now_s: float) -> tuple[tuple[str, str], ...]:
    """Return the request headers that ask for a page only if it has changed since these validators.

    Return one header for each usable validator (RFC 9111 §4.3.1), () if none is usable. A date in an obsolete format is
    sent as IMF-fixdate. `now_s` is Unix time.
    """
    headers: tuple[tuple[str, str], ...] = ()
    if etag is not None and is_etag(etag):
        headers = (("If-None-Match", etag),)
    modified_s = None if last_modified is None else http_date(last_modified, now_s)
    if modified_s is not None and 0 <= modified_s <= now_s + SKEW_S:
        headers += (("If-Modified-Since", imf_fixdate(modified_s)),)
    return headers


def judged(sent: tuple[tuple[str, str], ...], received: Mapping[str, str], now_s: float) -> NotModified:
    """Return what a response 304 means for the stored page.

    - `sent`: those headers of the request that `conditions` returned. Empty: the request had no condition.
    - `received`: the headers of the response, by lower-case name.
    - `now_s`: the Unix time of the fetch.
    """
    asked = dict(sent)
    if not asked:
        return NotModified.UNASKED
    tag, etag = asked.get("If-None-Match"), received.get("etag")
    if tag is not None and etag is not None and is_etag(etag):
        return NotModified.CONFIRMED if same_etag(tag, etag) else NotModified.CONTRADICTED
    since, modified = asked.get("If-Modified-Since"), received.get("last-modified")
    if tag is None and since is not None and modified is not None:
        before_s, after_s = http_date(since, now_s), http_date(modified, now_s)
        if before_s is not None and after_s is not None and after_s > before_s:
            return NotModified.CONTRADICTED
    return NotModified.CONFIRMED


def is_etag(text: str) -> bool:
    """Return True if `text` is an entity tag (RFC 9110 §8.8.3) of at most ETAG_BYTES."""
    return len(text) <= ETAG_BYTES and _ETAG.fullmatch(text) is not None


def same_etag(one: str, other: str, *, strong: bool = False) -> bool:
    """Return True if two entity tags are equal by weak comparison, or by strong comparison if `strong` is True."""
    if strong and (one.startswith("W/") or other.startswith("W/")):
        return False
    return one.removeprefix("W/") == other.removeprefix("W/")


def http_date(text: str, now_s: float) -> int | None:
    """Return the Unix time of an HTTP date (IMF-fixdate or an obsolete format). Return None for any other text.

    A date with a two-digit year is at most 50 years after `now_s` (RFC 9110 §5.6.7): in 2030, `79` means 2079 and `81`
    means 1981. Day names are not checked.
    """
    for form in _DATES:
        if (parts := form.fullmatch(text)) is None:
            continue
        year, day = int(parts["year"]), int(parts["day"])
        hour, minute, second = int(parts["h"]), int(parts["m"]), int(parts["s"])
        month = _MONTHS.index(parts["month"]) + 1
        if hour > 23 or minute > 59 or second > 60:  # 60 is a leap second.
            return None
        if len(parts["year"]) == 2:
            now = datetime.fromtimestamp(now_s, UTC)
            year += now.year // 100 * 100 + 100
            while (year, month, day, hour, minute, second) > (now.year + 50, *now.timetuple()[1:6]):
                year -= 100
        try:
            start = datetime(year, month, day, tzinfo=UTC)
        except ValueError:
            return None
        return timegm(start.timetuple()) + hour * 3600 + minute * 60 + second
    return None


def imf_fixdate(unix_s: int) -> str:
    """Return a Unix time as a date for an HTTP header, such as `Sun, 06 Nov 1994 08:49:37 GMT` (IMF-fixdate).

    The names of days and months are always English, whatever the locale of this process is.
    """
    at = datetime.fromtimestamp(unix_s, UTC)
    return f"{_DAYS[at.weekday()]}, {at.day:02} {_MONTHS[at.month - 1]} {at.year:04} {at:%H:%M:%S} GMT"
