"""States of URLs and crawls, up to where an owner has applied reports, and its fence against a later owner."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from shared.domain.ids import Partition, Term


class UrlState(IntEnum):
    """A URL's state in the frontier. The counter `queued` includes QUEUED and WAITING; a dead letter is FAILED."""

    QUEUED = 0
    WAITING = 1
    LEASED = 2
    DONE = 3
    FAILED = 4
    EXCLUDED = 5


class UrlEnd(IntEnum):
    """How a worker's attempt at a URL ended: the server answered, no response came, or a rule forbade the request."""

    ANSWERED = 1
    FAILED = 2
    DENIED = 3


class CrawlState(StrEnum):
    """A crawl's state.

    CREATED: declared, never started. SEEDING: not all of its first seeds are acknowledged, so it cannot finish.
    """

    CREATED = "created"
    SEEDING = "seeding"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    DELETED = "deleted"


WORKED_ON: Final = frozenset({CrawlState.SEEDING, CrawlState.RUNNING, CrawlState.PAUSED})
"""States in which URLs of a crawl may still change state."""

USES_TIME: Final = WORKED_ON - {CrawlState.PAUSED}
"""States in which a crawl uses up active time."""


class UrlKind(IntEnum):
    """What a URL was found as. Sitemaps and feeds are read for their entries, and are not pages.

    - LISTED: a page that a sitemap or feed lists.
    - SITEMAP: may list what is at or below its path.
    - HOST_SITEMAP: may list every URL of its host, since the robots.txt there names it or the index that lists it.
    - FEED: named by a page.
    - REQUISITE: what a page needs to be replayed, such as an image. Its value is a bit of its own (`kind_of`).
    """

    PAGE = 0
    LISTED = 1
    SITEMAP = 2
    HOST_SITEMAP = 3
    FEED = 4
    REQUISITE = 8

    @classmethod
    def _missing_(cls, value: object) -> "UrlKind":
        """Return PAGE for a kind of a newer version."""
        return cls.PAGE

    @property
    def listing(self) -> bool:
        """True for a sitemap or feed."""
        return UrlKind.SITEMAP <= self <= UrlKind.FEED


_KIND_SHIFT: Final = 5
_KIND_BITS: Final = 15
KIND_BITS: Final = _KIND_BITS << _KIND_SHIFT
"""The bits of a URL's flags that have what it was found as."""


def kind_flags(kind: int) -> int:
    """Return the flags of a URL that was found as `kind`."""
    return (kind & _KIND_BITS) << _KIND_SHIFT


def kind_of(flags: int) -> UrlKind:
    """Return what a URL with these flags was found as. A page that is a requisite, too, is a requisite at first."""
    if flags & IS_REQUISITE:
        return UrlKind.REQUISITE
    kind = flags >> _KIND_SHIFT & _KIND_BITS
    return UrlKind(kind) if kind else UrlKind.PAGE


COUNTED_AS_PAGE: Final = 1
"""Flag of a URL whose page already counts in `pages`: fetching it again uses no further budget."""

FOUND_NEARER: Final = 2
"""Flag of a leased URL that was found at a lesser depth than it was sent with. A new owner then queues the page again
(merge_link). The flag is removed when the URL is settled.
"""

COUNTED_LOSSES: Final = 4
"""Flag of a URL whose fetch counts in the tallies `left_out` or `truncated`: another fetch replaces what it counted."""

REVISIT: Final = 8
"""Flag of a sitemap, or of a URL whose page is stored, that is fetched again when it is due. It is WAITING until then,
never QUEUED."""

RETRY: Final = 16
"""Flag of a queued URL that waits for a retry, or did. It counts in the counter `retries`."""

IS_REQUISITE: Final = UrlKind.REQUISITE << _KIND_SHIFT
"""Flag of a requisite. Queued it counts in the counter `requisites`, and its rank is negative (`requisite_rank`)."""

ALSO_PAGE: Final = 512
"""Flag of a requisite that is linked as a page, too. It is queued again as a page if it is HTML (`as_page`)."""

HTML_REQUISITE: Final = 1024
"""Flag of a fetched requisite whose answer is HTML, so that a link to it queues it as a page."""

MAX_EXTRA_HOPS: Final = 3
"""The greatest `scope.extra_hops`. Two bits of a URL's flags have its number of hops beyond the scope."""

_EXTRA_SHIFT: Final = 11
EXTRA_BITS: Final = MAX_EXTRA_HOPS << _EXTRA_SHIFT
"""The bits of the flags that have the number of hops beyond the scope, 0 for a URL in scope."""

FOUND_FEWER_HOPS: Final = 8192
"""Flag of a leased URL that was found with fewer hops beyond the scope than it was sent with. Like FOUND_NEARER."""

OF_SET: Final = 16_384
"""Flag of a URL that is a seed only because a seed set has it, or had it. Neither the spec nor an upload gave it."""

OUTSIDE_BUDGET: Final = REVISIT | IS_REQUISITE
"""Flags of a leased URL that uses no page of the budget. It counts in the counter `revisiting`."""

HOST_BUDGET: Final = "max_pages_per_host"
"""The reason of URLs that are excluded because their host has given as many pages as it may."""

ANSWER_S: Final = 3.0
"""Seconds that a worker waits for an owner's answer before it postpones the shard."""

LEVEL_MS: Final = 3_600_000
"""Ageing: an hour of waiting weighs as much as one level of depth or of priority."""


def rank_of(queued_at_ms: int, depth: int, priority: int) -> int:
    """Return the sort key of a URL in its host's queue: the least is fetched first.

    The order is breadth-first by depth, raised by priority, with ageing. Every URL ages at the same rate, so the order
    of two URLs never changes. The rank is therefore a constant that an index can hold.
    """
    return queued_at_ms + (depth - priority) * LEVEL_MS


REQUISITE_LEAD_MS: Final = 1 << 50
"""How much earlier than its time a requisite is ranked. So requisites come before all other URLs of their host."""


def requisite_rank(queued_at_ms: int) -> int:
    """Return the sort key of a requisite in its host's queue: a negative number, which no other URL has."""
    return queued_at_ms - REQUISITE_LEAD_MS


def as_page(flags: int) -> int:
    """Return the flags of a requisite that becomes a page, or of a page that stays one."""
    return flags & ~(IS_REQUISITE | ALSO_PAGE | HTML_REQUISITE)


def extra_hops_of(flags: int) -> int:
    """Return how many hops beyond the scope a URL with these flags is, 0 for one in scope."""
    return (flags & EXTRA_BITS) >> _EXTRA_SHIFT


def with_extra_hops(flags: int, extra: int) -> int:
    """Return the flags of a URL that is `extra` hops beyond the scope."""
    return flags & ~EXTRA_BITS | extra << _EXTRA_SHIFT


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where a partition's outcomes and discoveries are applied.

    It has the stream's creation time (Unix ns), and for each of the two the sequence of the last applied message and
    when the broker stored it (Unix ns).
    """

    stream_created_ns: int = 0
    outcome_seq: int = 0
    outcome_ns: int = 0
    discovery_seq: int = 0
    discovery_ns: int = 0

    def of(self, kind: str) -> int:
        """Return the sequence of the last applied report of this kind ("outcome" or "discovery")."""
        return self.outcome_seq if kind == "outcome" else self.discovery_seq

    def at_ns(self, kind: str) -> int:
        """Return when the broker stored the last applied report of this kind (Unix ns)."""
        return self.outcome_ns if kind == "outcome" else self.discovery_ns

    def moved(self, kind: str, sequence: int, at_ns: int) -> "Position":
        """Return the position after the report of this kind at `sequence`, stored at `at_ns`, is applied, too."""
        if kind == "outcome":
            return Position(self.stream_created_ns, sequence, at_ns, self.discovery_seq, self.discovery_ns)
        return Position(self.stream_created_ns, self.outcome_seq, self.outcome_ns, sequence, at_ns)


def same_stream(position: Position, created_ns: int, last_sequence: int) -> bool:
    """Return True if `position` belongs to the present stream of reports.

    False if the stream was created anew, or ends before the position (restored from a backup). Then everything in it is
    unread, and reading starts at 0. Sequences alone are not enough, since a new stream counts from 1 again.
    """
    if position.stream_created_ns == 0:
        return position.outcome_seq == 0 and position.discovery_seq == 0
    return position.stream_created_ns == created_ns and last_sequence >= max(
        position.outcome_seq, position.discovery_seq
    )


@dataclass(frozen=True, slots=True)
class Fence:
    """The condition of every transaction of a partition's owner.

    It commits only under this term and directly after this version, so an earlier owner can no longer write.
    """

    partition: Partition
    term: Term
    version: int

    def next(self) -> "Fence":
        """Return the fence for the transaction after this one has committed."""
        return Fence(self.partition, self.term, self.version + 1)


class Merge(IntEnum):
    """What a link to a URL that the crawl knows already changes."""

    NOTHING = 0
    LOWER_DEPTH = 1
    QUEUE_AGAIN = 2


def queued_as(flags: int) -> str | None:
    """Return the counter for the part of `queued` that a URL with these flags belongs to. None: it is a new page."""
    if flags & IS_REQUISITE:
        return "requisites"
    if flags & RETRY:
        return "retries"
    return "revisits" if flags & REVISIT else None


def merge_link(state: UrlState, known_depth: int, found_depth: int, max_depth: int | None) -> Merge:
    """Return what a link found at `found_depth` changes of a URL known at `known_depth`. The lesser depth is kept.

    So the set of pages does not depend on timing. A done page is queued again if a depth limit is set and a link
    reaches it at a lesser depth: its own links may now be within the limit.
    """
    if found_depth >= known_depth:
        return Merge.NOTHING
    if state is UrlState.DONE and max_depth is not None and found_depth < max_depth:
        return Merge.QUEUE_AGAIN
    return Merge.LOWER_DEPTH
