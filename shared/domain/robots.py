"""robots.txt by RFC 9309, on Protego's parser: what a site says, and what it means that it said nothing.

The matching is the RFC's: the rule with the longest pattern (octets, percent-encoding normalised on both sides)
decides, allow wins a tie, `*` stands for anything and a final `$` for the end, no match means allowed, groups of one
agent are merged, `*` holds where no group names us. Protego adds leniency (misspelt directives, `Allow: /x/index.html`
allows `/x/`) and one quirk: a group whose name is a prefix of our product token is taken to name us.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

import msgspec
from protego import Protego

from shared.domain.url import origin_of

MAX_ROBOTS_BYTES: Final = 512 * 1024
"""How much of a robots.txt is read (RFC 9309 §2.5: at least 500 KiB)."""

MAX_ROBOTS_HOPS: Final = 5
"""Redirects of a robots.txt that are followed (RFC 9309 §2.3.1.2)."""

MAX_LIFETIME_S: Final = 86_400.0
MIN_LIFETIME_S: Final = 300.0
UNREACHABLE_LIFETIME_S: Final = 300.0
"""After this long an unreachable robots.txt is asked for again; the host's back-off may make it longer."""

AHEAD_S: Final = 300.0
"""How far two clocks may differ before one takes the other's records for older than they say."""

MAX_CRAWL_DELAY_S: Final = 30 * 86_400.0
"""A longer crawl-delay counts as this one, which no crawl outlives."""

_VERSIONED_AGENT: Final = re.compile(rb"(?im)^([ \t]*user-?agent[ \t]*:[ \t]*[a-z_-]+)/[^\s#]*")
_COMPATIBLE: Final = re.compile(r"\(compatible;\s*([A-Za-z0-9_-]+)")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+")


class RobotsRules:
    """A parsed robots.txt. Parsing costs far more than asking: callers keep the object."""

    __slots__ = ("_parser", "sitemaps")

    def __init__(self, parser: Protego) -> None:
        self._parser = parser
        self.sitemaps: Final = tuple(parser.sitemaps)

    @classmethod
    def parse(cls, body: bytes) -> "RobotsRules":
        """The rules in `body`, of which `MAX_ROBOTS_BYTES` are read, up to the last whole line. Anything parses."""
        if len(body) > MAX_ROBOTS_BYTES:
            body = body[: body.rfind(b"\n", 0, MAX_ROBOTS_BYTES) + 1]
        # A name is a product token; what follows a slash is a version nobody can match by.
        body = _VERSIONED_AGENT.sub(rb"\1", body)
        return cls(Protego.parse(body.decode("utf-8-sig", "replace")))

    def allows(self, url: str, agent: str) -> bool:
        """Whether `agent` (a product token, see `product_token`) may fetch the canonical `url`."""
        return bool(self._parser.can_fetch(url, agent))

    def crawl_delay(self, agent: str) -> float | None:
        """Seconds between requests that the site asks of `agent`, if any."""
        delay = self._parser.crawl_delay(agent)
        if delay is None or not math.isfinite(delay) or delay < 0:
            return None
        return min(delay, MAX_CRAWL_DELAY_S)


class RobotsRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of fetching a robots.txt, as it is shared between workers.

    `status` is that of the last answer (of a chain of redirects too long: the redirect's), 0 where none came, `detail`
    then says why. `body` is decoded content, at most `MAX_ROBOTS_BYTES`, empty unless the status is 2xx.
    """

    status: int
    fetched_at_ms: int
    lifetime_s: float
    body: bytes = b""
    detail: str = ""

    def fresh(self, now_ms: int) -> bool:
        """Whether the record may still be used. One from the near future (another machine's clock) may; one from
        further ahead may not: the clock it was fetched by was wrong, or has jumped back since, and its age is unknown.
        """
        end_ms = self.fetched_at_ms + self.lifetime_s * 1000
        return self.fetched_at_ms - AHEAD_S * 1000 <= now_ms < end_ms


@dataclass(frozen=True, slots=True)
class AllowAll:
    """There is no robots.txt: everything may be fetched."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What robots.txt says, holds."""

    rules: RobotsRules


@dataclass(frozen=True, slots=True)
class Unreachable:
    """It could not be known: nothing may be fetched now and the host is deferred."""

    reason: str


RobotsPolicy = AllowAll | Rules | Unreachable


def robots_url(canonical: str) -> str:
    """Where the robots.txt that holds for a canonical URL is."""
    return origin_of(canonical) + "/robots.txt"


def product_token(user_agent: str) -> str:
    """The name in a User-Agent that robots.txt groups are matched with: its first token, or the one after
    `(compatible;`; `*` where it has none."""
    match = _COMPATIBLE.search(user_agent)
    if match is not None:
        return match[1]
    token = _TOKEN.search(user_agent)
    return "*" if token is None else token[0]


def robots_record(
    status: int, body: bytes, *, fetched_at_ms: int, max_age_s: float | None = None, detail: str = ""
) -> RobotsRecord:
    """The record of an answer (`status` 0: none came). `max_age_s` is what Cache-Control said; 24 h at most."""
    if _unreachable(status):
        lifetime = UNREACHABLE_LIFETIME_S
    else:
        lifetime = MAX_LIFETIME_S if max_age_s is None else min(max(max_age_s, MIN_LIFETIME_S), MAX_LIFETIME_S)
    kept = body[:MAX_ROBOTS_BYTES] if 200 <= status < 300 else b""
    return RobotsRecord(status=status, body=kept, fetched_at_ms=fetched_at_ms, lifetime_s=lifetime, detail=detail)


def with_cached(new: RobotsRecord, old: RobotsRecord | None) -> RobotsRecord:
    """`new`, or where it is unreachable what `old` said, for as long as `new` would have held (RFC 9309 §2.3.1.4)."""
    if old is None or not _unreachable(new.status) or _unreachable(old.status):
        return new
    return msgspec.structs.replace(old, fetched_at_ms=new.fetched_at_ms, lifetime_s=new.lifetime_s)


def policy_of(record: RobotsRecord) -> RobotsPolicy:
    """What follows from a record: 2xx its rules; 5xx, 429 and no answer defer the host; all else allows everything."""
    if _unreachable(record.status):
        return Unreachable(record.detail or (f"status {record.status}" if record.status else "no answer"))
    if 200 <= record.status < 300:
        return Rules(RobotsRules.parse(record.body))
    if 300 <= record.status < 400:
        return AllowAll(f"more than {MAX_ROBOTS_HOPS} redirects")
    return AllowAll(f"status {record.status}")


def _unreachable(status: int) -> bool:
    return status < 200 or status == 429 or status >= 500
