"""robots.txt by RFC 9309: the result of fetching it, and which URLs it allows. `robots_rules` parses the rules."""

import re
from enum import StrEnum
from typing import Final

import msgspec

from shared.domain.web.robots_rules import MAX_ALIKE, AgentRules, rules_for
from shared.domain.web.sitemaps import sitemaps_of
from shared.domain.web.url import Location

MAX_ROBOTS_BYTES: Final = 512 * 1024
"""How much of a robots.txt is used (RFC 9309 §2.5: at least 500 KiB). The rest is cut off at a line end."""

MAX_ROBOTS_HOPS: Final = 5
"""The number of redirects of a robots.txt that are followed (RFC 9309 §2.3.1.2)."""

MAX_LIFETIME_S: Final = 86_400.0
MIN_LIFETIME_S: Final = 300.0
UNREACHABLE_LIFETIME_S: Final = 300.0
"""Seconds after which an unreachable robots.txt is requested again. The host's back-off may make it longer."""

DELAYS_KEPT: Final = 2
"""The lifetime of a robots.txt is at least this many host delays (`outliving_delay`)."""

BEYOND_DELAY_S: Final = 3_600.0
"""Seconds that a robots.txt stays valid beyond a very long host delay. With a delay of 24 h, the lifetime is 25 h."""

MAX_STALE_S: Final = 86_400.0
"""While a site's robots.txt is unreachable, an old copy is used for this many seconds beyond its lifetime."""

AHEAD_S: Final = 300.0
"""A RobotsRecord is used even if its fetch time is up to this many seconds in the future: machines' clocks differ."""

MAX_AGENTS: Final = 16
"""The maximum number of product tokens for which a RobotsRules caches rules. A further token empties the cache."""

TOO_COSTLY: Final = f"over {MAX_ALIKE} of its patterns with * are alike"
"""The reason why a robots.txt counts as unreachable if matching its rules could take too long."""

_COMPATIBLE: Final = re.compile(r"\(compatible;\s*([A-Za-z0-9_-]+)")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+")


class NotIndexed(StrEnum):
    """Why a page that was requested appears in no list, no export and no items.

    - NOINDEX and UNAVAILABLE_AFTER: the robots directive of the page that forbids to index the page.
    - MEDIA_TYPE: the crawl does not store pages of this media type (`media.stored`).
    - NOT_FETCHED: the body was skipped, because the crawl does not fetch this media type (`media.fetched`).
    """

    NOINDEX = "noindex"
    UNAVAILABLE_AFTER = "unavailable_after"
    MEDIA_TYPE = "media_type"
    NOT_FETCHED = "not_fetched"


BY_DIRECTIVE: Final = (NotIndexed.NOINDEX, NotIndexed.UNAVAILABLE_AFTER)
"""The values of NotIndexed that come from a robots directive. After a fetch with such a value, an earlier
stored version of the page is also taken out of lists, exports and items."""

BY_TYPE: Final = (NotIndexed.MEDIA_TYPE, NotIndexed.NOT_FETCHED)
"""The values of NotIndexed that follow from the media type of a response.

- MEDIA_TYPE: the crawl fetches this type, but does not store it.
- NOT_FETCHED: the crawl does not fetch this type, so the worker skipped the body of the response.

In both cases the response is not written to the archive. A page with another value of NotIndexed is in the archive.
"""


class RobotsLine(msgspec.Struct, frozen=True):
    """The line of a robots.txt that decides if a URL may be fetched.

    `number` counts from 1. `group` is the product token (or `*`) of the User-agent group that contains the line.
    `allows`: the URL may be fetched.
    """

    number: int
    text: str
    group: str
    allows: bool


class RobotsRules:
    """The rules of a robots.txt. They are parsed for each product token (a crawler's name) on first use, and cached."""

    __slots__ = ("_body", "_parsed", "_sitemaps")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._sitemaps: tuple[str, tuple[Location, ...]] | None = None
        self._parsed: dict[str, AgentRules] = {}

    def __len__(self) -> int:
        """Return the size of the file in bytes, which bounds the cost of parsing."""
        return len(self._body)

    def parsed(self, agent: str) -> bool:
        """Return True if the rules for the product token `agent` are parsed already."""
        return agent in self._parsed

    def of(self, agent: str) -> AgentRules:
        """Return the rules for the product token `agent` (see `product_token`)."""
        rules = self._parsed.get(agent)
        if rules is None:
            if len(self._parsed) >= MAX_AGENTS:
                self._parsed = {}
            rules = self._parsed[agent] = rules_for(self._body, agent)
        return rules

    def allows(self, url: str, agent: str) -> bool:
        """Return True if the product token `agent` may fetch the canonical `url`."""
        return self.of(agent).allows(url)

    def crawl_delay(self, agent: str) -> float | None:
        """Return the seconds between requests that the file requires of the product token `agent`.

        None if it requires none.
        """
        return self.of(agent).crawl_delay_s

    def sitemaps(self, origin: str) -> tuple[Location, ...]:
        """Return the sitemaps that this robots.txt names. `origin` is the origin from which it was fetched."""
        if self._sitemaps is None or self._sitemaps[0] != origin:
            self._sitemaps = origin, sitemaps_of(self._body, origin)
        return self._sitemaps[1]

    def deciding_line(self, url: str, agent: str) -> RobotsLine | None:
        """Return the line of the file that decides if `agent` may fetch the canonical `url`.

        None if no rule matches it.
        """
        rules = self.of(agent)
        rule = rules.deciding(url)
        if rule is None or rules.group is None:
            return None
        text = self._body.splitlines()[rule.line - 1].decode("utf-8", "replace").strip()
        return RobotsLine(rule.line, text, rules.group, rule.allows)


class RobotsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of fetching a robots.txt, as workers share it.

    - `status`: that of the last response, or of the last redirect if there were too many. 0: no usable response came,
      and `detail` has the reason.
    - `body`: the decoded content, at most `MAX_ROBOTS_BYTES`. It is empty unless the status is 2xx.
    - `stale_until_ms`: 0 if this record has the result of the newest fetch. Otherwise the newest fetch found the file
      unreachable, and this record is a copy of an older one. The copy may be used at most until this time (Unix ms).
    """

    status: int
    fetched_at_ms: int
    lifetime_s: float
    body: bytes = b""
    detail: str = ""
    stale_until_ms: int = 0

    def fresh(self, now_ms: int) -> bool:
        """Return True if the record may still be used at `now_ms`: its lifetime has not passed.

        Return False also if `fetched_at_ms` is more than AHEAD_S in the future: then the age of the record is unknown.
        """
        end_ms = self.fetched_at_ms + self.lifetime_s * 1000
        return self.fetched_at_ms - AHEAD_S * 1000 <= now_ms < end_ms


class AllowAll(msgspec.Struct, frozen=True):
    """The robots policy of a host without a robots.txt: everything may be fetched.

    `reason`: which response came instead of the file.
    """

    reason: str


class Rules(msgspec.Struct, frozen=True):
    """The robots policy of a host with a robots.txt: its rules decide."""

    rules: RobotsRules


class Unreachable(msgspec.Struct, frozen=True):
    """The robots policy of a host whose robots.txt cannot be read: no URL may be fetched now.

    The URLs of the host are tried again later.
    """

    reason: str


RobotsPolicy = AllowAll | Rules | Unreachable


def product_token(user_agent: str) -> str:
    """Return the crawler's name in a User-Agent. It selects the group of a robots.txt that applies to the crawler.

    It is the first token, or the token after `(compatible;`. If there is no token, it is `*`.
    """
    match = _COMPATIBLE.search(user_agent)
    if match is not None:
        return match[1]
    token = _TOKEN.search(user_agent)
    return "*" if token is None else token[0]


def robots_record(
    status: int, body: bytes, *, fetched_at_ms: int, max_age_s: float | None = None, detail: str = ""
) -> RobotsRecord:
    """Return the record of a response to a request for robots.txt. `status` is 0 if no response came.

    `max_age_s`: the lifetime by Cache-Control. The record's lifetime is this value, but at least MIN_LIFETIME_S and at
    most MAX_LIFETIME_S. None: MAX_LIFETIME_S. An unreachable robots.txt has the lifetime UNREACHABLE_LIFETIME_S.
    """
    if _unreachable(status):
        lifetime = UNREACHABLE_LIFETIME_S
    else:
        lifetime = MAX_LIFETIME_S if max_age_s is None else min(max(max_age_s, MIN_LIFETIME_S), MAX_LIFETIME_S)
    kept = _cut(body) if 200 <= status < 300 else b""
    return RobotsRecord(status=status, body=kept, fetched_at_ms=fetched_at_ms, lifetime_s=lifetime, detail=detail)


def with_cached(new: RobotsRecord, old: RobotsRecord | None) -> RobotsRecord:
    """Return the record to use after a robots.txt was fetched again: `new`, or a copy of `old` (RFC 9309 §2.3.1.4).

    - If `new` is unreachable, `old` is not, and the lifetime of `old` ended less than MAX_STALE_S seconds ago: return a
      copy of `old`.
    - Otherwise: return `new`.

    Example: a site was reachable yesterday and is unreachable now. The copy keeps the site's rules in use for another
    300 s, the lifetime of `new`. Then the robots.txt is fetched again.
    """
    # The copy has the fetch time of `new`, so it is fresh. It never outlives the MAX_STALE_S seconds.
    if old is None or not _unreachable(new.status) or _unreachable(old.status):
        return new
    until_ms = old.stale_until_ms or old.fetched_at_ms + int((old.lifetime_s + MAX_STALE_S) * 1000)
    left_s = (until_ms - new.fetched_at_ms) / 1000
    if left_s <= 0:
        return new
    lifetime_s = min(new.lifetime_s, left_s)
    return msgspec.structs.replace(old, fetched_at_ms=new.fetched_at_ms, lifetime_s=lifetime_s, stale_until_ms=until_ms)


def outliving_delay(record: RobotsRecord, delay_s: float) -> RobotsRecord:
    """Return the record with a lifetime longer than the host's delay, so that robots.txt is valid at the next request.

    The lifetime is never shortened. Examples for a record with a lifetime of 5 minutes:

    - A delay of 10 s: the lifetime stays 5 minutes.
    - A delay of 1 h: the lifetime becomes 2 h (DELAYS_KEPT delays).
    - A delay of 20 h: the lifetime becomes 24 h (MAX_LIFETIME_S).
    - A delay of 24 h: the lifetime becomes 25 h (the delay and BEYOND_DELAY_S).

    A record with `stale_until_ms` is an old copy of robots.txt. Its lifetime is not extended beyond that time.
    """
    lifetime_s = min(DELAYS_KEPT * delay_s, max(MAX_LIFETIME_S, delay_s + BEYOND_DELAY_S))
    if record.stale_until_ms:
        lifetime_s = min(lifetime_s, (record.stale_until_ms - record.fetched_at_ms) / 1000)
    return record if lifetime_s <= record.lifetime_s else msgspec.structs.replace(record, lifetime_s=lifetime_s)


def policy_of(record: RobotsRecord) -> RobotsPolicy:
    """Return the policy that follows from a robots.txt record.

    Return Rules for a status 2xx, Unreachable for 5xx, 429 or no response, and AllowAll for any other status.
    """
    if _unreachable(record.status):
        return Unreachable(record.detail or (f"status {record.status}" if record.status else "no answer"))
    if 200 <= record.status < 300:
        return Rules(RobotsRules(record.body))
    if 300 <= record.status < 400:
        return AllowAll(f"more than {MAX_ROBOTS_HOPS} redirects")
    return AllowAll(f"status {record.status}")


def _unreachable(status: int) -> bool:
    return status < 200 or status == 429 or status >= 500


def _cut(body: bytes) -> bytes:
    """Return the first `MAX_ROBOTS_BYTES` of a robots.txt, without an incomplete last line."""
    if len(body) <= MAX_ROBOTS_BYTES:
        return body
    end = max(body.rfind(b"\n", 0, MAX_ROBOTS_BYTES), body.rfind(b"\r", 0, MAX_ROBOTS_BYTES))
    return body[: end + 1]
