"""Robots directives of a page: its meta elements and the X-Robots-Tag header."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

from shared.domain.web.robots import NotIndexed

_UNAVAILABLE_AFTER: Final = "unavailable_after"
# Directives that have a value after a colon. Any other `word:` names the product that the next directives are for.
_VALUED: Final = frozenset((_UNAVAILABLE_AFTER, "max-snippet", "max-image-preview", "max-video-preview"))
_DATED: Final = re.compile(rf"{_UNAVAILABLE_AFTER}[ \t]*:[ \t]*([a-z]+[ \t]*,)?([^,]*)")
_WEEKDAY: Final = re.compile(r"[a-z]+")


class Directives(Struct, frozen=True):
    """What a page forbids to robots.

    `a | b` is what at least one of `a` and `b` forbids. `unavailable_after_ms`: the Unix ms after which the page must
    not be indexed, None without such a time.
    """

    noindex: bool = False
    nofollow: bool = False
    unavailable_after_ms: int | None = None

    @property
    def dated(self) -> bool:
        """True if there is a date from which on the page must not be indexed, even if its content stays the same."""
        return self.unavailable_after_ms is not None

    def __or__(self, other: "Directives") -> "Directives":
        ends = [end for end in (self.unavailable_after_ms, other.unavailable_after_ms) if end is not None]
        return Directives(self.noindex or other.noindex, self.nofollow or other.nofollow, min(ends, default=None))

    def not_indexed(self, now_ms: int) -> NotIndexed | None:
        """Return why the page must not be indexed at `now_ms` (Unix ms), None if it may be."""
        if self.noindex:
            return NotIndexed.NOINDEX
        past = self.unavailable_after_ms is not None and self.unavailable_after_ms < now_ms
        return NotIndexed.UNAVAILABLE_AFTER if past else None


NOTHING_FORBIDDEN: Final = Directives()


def meta_robots(content: str) -> Directives:
    """Return the directives in `content`, the content of a meta element for robots. Skip unknown directives."""
    content = content.lower()
    dates = [match[2] for match in _DATED.finditer(content)] if _UNAVAILABLE_AFTER in content else []
    return _directives(content.replace(",", " ").split(), dates)


def x_robots_tag(values: Iterable[str], product: str = "orb") -> Directives:
    """Return the directives for all robots and for the crawler in the X-Robots-Tag headers of a response.

    `values` has one text for each header. `product`: the crawler's name in lower case. A robot's name is valid up to
    the next name in the header: in `otherbot: noindex, nofollow, orb: none`, two directives are for `otherbot`.
    """
    words: list[str] = []
    dates: list[str] = []
    for value in values:
        ours = True
        for part in _parts(value.lower()):
            head, colon, rest = part.partition(":")
            if colon and head.strip() not in _VALUED:
                ours = head.strip() == product
                part = rest
                head, _, rest = rest.partition(":")
            if ours and head.strip() == _UNAVAILABLE_AFTER:
                dates.append(rest.rpartition(",")[2])
            elif ours:
                words.append(part.strip())
    return _directives(words, dates)


def _parts(value: str) -> Iterator[str]:
    """Yield the comma-separated parts of a header value. A comma in an `unavailable_after` date is no separator."""
    parts = iter(value.split(","))
    for part in parts:
        name, _, date = part.rpartition(":")
        if name.rpartition(":")[2].strip() == _UNAVAILABLE_AFTER and _WEEKDAY.fullmatch(date.strip()):
            part += "," + next(parts, "")
        yield part


def _directives(words: Iterable[str], dates: Iterable[str]) -> Directives:
    noindex = nofollow = False
    for word in words:
        noindex = noindex or word in ("noindex", "none")
        nofollow = nofollow or word in ("nofollow", "none")
    ends = [end for end in map(_unix_ms, dates) if end is not None]
    if not (noindex or nofollow or ends):
        return NOTHING_FORBIDDEN
    return Directives(noindex, nofollow, min(ends, default=None))


def _unix_ms(date: str) -> int | None:
    """Return the Unix ms of a date in a format of RFC 822, RFC 850 or ISO 8601. Return None for any other text.

    A date without a zone is in UTC.
    """
    date = date.strip().upper()
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        try:
            moment = parsedate_to_datetime(date)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (OverflowError, ValueError):
        return None
