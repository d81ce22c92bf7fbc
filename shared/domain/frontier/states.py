"""States of URLs and crawls, flags of URLs, an owner's position in the reports, and the fence of its transactions."""

from enum import IntEnum, StrEnum
from typing import Final, Literal

from msgspec import Struct

from shared.domain.ids import Partition, Term


class UrlState(IntEnum):
    """A URL's state in the frontier. The counter `queued` counts QUEUED and WAITING. A dead letter's URL is FAILED."""

    QUEUED = 0
    WAITING = 1
    LEASED = 2
    DONE = 3
    FAILED = 4
    EXCLUDED = 5


class UrlEnd(IntEnum):
    """How a worker's attempt at a URL ended.

    ANSWERED: the server answered. FAILED: no response came. DENIED: a rule forbade the request, so it was not sent.
    """

    ANSWERED = 1
    FAILED = 2
    DENIED = 3


class CrawlState(StrEnum):
    """A crawl's state.

    CREATED: declared, never started. SEEDING: its seeds are being published, so it cannot finish yet.
    """

    CREATED = "created"
    SEEDING = "seeding"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    DELETED = "deleted"


WORKED_ON: Final = frozenset({CrawlState.SEEDING, CrawlState.RUNNING, CrawlState.PAUSED})
"""The states of crawls that were started and have not ended. A paused crawl is among them, because it can go on."""

USES_TIME: Final = WORKED_ON - {CrawlState.PAUSED}
"""States in which the active time of a crawl grows. The budget limits the active time (`max_seconds`)."""


LetterKind = Literal["url", "outcome", "discovery", "items", "shard"]
"""What became a dead letter: a URL, or a message of this kind."""


class UrlKind(IntEnum):
    """What a URL was found as. Sitemaps and feeds are read for their entries, and are not pages.

    - PAGE: a page that a link or a seed names.
    - LISTED: a page that a sitemap or feed lists.
    - SITEMAP: a sitemap that may list only URLs at or below its path.
    - HOST_SITEMAP: a sitemap that may list every URL of its host. The host's robots.txt names it, or names a sitemap
      index that lists it.
    - FEED: a feed that a page names.
    - REQUISITE: a URL that a page needs to be replayed, such as an image. Its value is a bit that no other kind has.
    """

    PAGE = 0
    LISTED = 1
    SITEMAP = 2
    HOST_SITEMAP = 3
    FEED = 4
    REQUISITE = 8

    @classmethod
    def _missing_(cls, value: object) -> "UrlKind":
        """Return PAGE for an unknown value, which a newer version may have stored."""
        return cls.PAGE

    @property
    def listing(self) -> bool:
        """True for a sitemap or feed."""
        return UrlKind.SITEMAP <= self <= UrlKind.FEED


_KIND_SHIFT: Final = 5
_KIND_BITS: Final = 15
KIND_BITS: Final = _KIND_BITS << _KIND_SHIFT
"""The bits of a URL's flags that store its UrlKind."""


def kind_flags(kind: int) -> int:
    """Return the bits of a URL's flags that store `kind`, the value of a UrlKind."""
    return (kind & _KIND_BITS) << _KIND_SHIFT


def kind_of(flags: int) -> UrlKind:
    """Return the UrlKind that is stored in a URL's flags. For a requisite that is also a page, return REQUISITE."""
    if flags & IS_REQUISITE:
        return UrlKind.REQUISITE
    kind = flags >> _KIND_SHIFT & _KIND_BITS
    return UrlKind(kind) if kind else UrlKind.PAGE


COUNTED_AS_PAGE: Final = 1
"""Flag of a URL whose page already counts in `pages`: fetching it again uses no further budget."""

FOUND_NEARER: Final = 2
"""Flag of a leased URL for which a link with a lesser depth was found after it was sent. More of the page's links may
then be in scope. An applied outcome removes the flag."""

LOSSES_COUNTED: Final = 4
"""Flag of a URL: the losses of an earlier fetch of this URL are included in the counts of the crawl.

Losses are what a fetch left out: excluded links, the missing part of a truncated body, or a page that is not indexed.
The crawl counts the losses of only one fetch for each URL. So at the next fetch, the owner subtracts the old losses
from the counts and adds the new ones. For example, an earlier fetch excluded 5 links, and the next fetch excludes 3.
Then the crawl's count of excluded links falls by 2."""

REVISIT: Final = 8
"""Flag of a URL that is fetched again when it is due: one whose page is stored, or a sitemap. Until then its state is
WAITING, never QUEUED."""

RETRY: Final = 16
"""Flag of a queued URL that failed and gets a retry, due or not. It counts in the counter `retries`."""

DUE_AT_ONCE: Final = REVISIT | RETRY
"""The two flags of a stored page that is fetched again now, for example because more of its links may be in scope.

- REVISIT: the fetch uses no budget.
- RETRY: a running refresh fetches the page too. Without RETRY, a refresh fetches only pages that were due at its start.
"""

IS_REQUISITE: Final = UrlKind.REQUISITE << _KIND_SHIFT
"""Flag of a requisite. A queued URL with it counts in the counter `requisites`, and its rank is negative."""

ALSO_PAGE: Final = 512
"""Flag of a requisite that was also found as a page, such as by a link. If it is HTML, it is queued again as a page."""

HTML_REQUISITE: Final = 1024
"""Flag of a fetched requisite whose answer is HTML. If a link to it is found, it is queued as a page."""

MAX_EXTRA_HOPS: Final = 3
"""The greatest `scope.extra_hops`. Two bits of a URL's flags have its number of hops beyond the scope."""

_EXTRA_SHIFT: Final = 11
EXTRA_BITS: Final = MAX_EXTRA_HOPS << _EXTRA_SHIFT
"""The bits of the flags that store the number of hops beyond the scope, 0 for a URL in scope."""

FOUND_FEWER_HOPS: Final = 8192
"""Flag of a leased URL: after the URL was sent to a worker, a link to it with fewer extra hops was found.

Then more of the links on the page at this URL may be in scope."""

OF_SET: Final = 16_384
"""Flag of a URL that is a seed only because of seed sets. Neither the spec nor an upload has given the URL.

When the URL leaves its last seed set, a command checks this flag: only a URL with the flag may be withdrawn."""

OUTSIDE_BUDGET: Final = REVISIT | IS_REQUISITE
"""Two flags. A URL that has at least one of them uses no page of the budget.

While the URL is leased, it counts in the counter `revisiting`."""

HOST_BUDGET: Final = "max_pages_per_host"
"""The reason of URLs that are excluded because their host has given as many pages as it may."""

ANSWER_S: Final = 3.0
"""Seconds that a worker waits for an owner's answer before it postpones the shard."""

LEVEL_MS: Final = 3_600_000
"""In a URL's rank, one level of depth or priority counts as much as an hour of waiting, in ms (`rank_of`)."""


def rank_of(queued_at_ms: int, depth: int, priority: int) -> int:
    """Return the sort key of a URL in its host's queue. The URL with the least key is fetched first.

    The key is `queued_at_ms` (Unix ms), plus an hour for each level of `depth`, minus an hour for each level of
    `priority`. For example, two URLs have priority 0:

    - Queued at 10:00 with depth 2: the key is 12:00.
    - Queued at 10:30 with depth 1: the key is 11:30. This URL is fetched first, although it was queued later.
    """
    return queued_at_ms + (depth - priority) * LEVEL_MS


REQUISITE_LEAD_MS: Final = 1 << 50
"""A requisite is ranked as if it was queued this many ms earlier, so that requisites come before all other URLs."""


def requisite_rank(queued_at_ms: int) -> int:
    """Return the sort key of a requisite in its host's queue: a negative number, so that it precedes all other URLs."""
    return queued_at_ms - REQUISITE_LEAD_MS


def as_page(flags: int) -> int:
    """Return `flags` without the flags that mark a requisite, for a URL that is only a page from now on."""
    return flags & ~(IS_REQUISITE | ALSO_PAGE | HTML_REQUISITE)


def extra_hops_of(flags: int) -> int:
    """Return how many extra hops (links beyond the scope) lead to a URL with these flags, 0 for a URL in scope."""
    return (flags & EXTRA_BITS) >> _EXTRA_SHIFT


def with_extra_hops(flags: int, extra: int) -> int:
    """Return `flags` with the number of extra hops (links beyond the scope) set to `extra`."""
    return flags & ~EXTRA_BITS | extra << _EXTRA_SHIFT


class Position(Struct, frozen=True):
    """The position up to which a partition's owner has applied outcomes and discoveries, in one reports stream.

    `stream_created_ns` identifies the stream by its creation time (Unix ns). For outcomes and for discoveries there is
    the sequence of the last applied message, and when the broker stored it (Unix ns).
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
        """Return the position after one more report of this kind is applied.

        `kind`: "outcome" or "discovery". `sequence`: that of the report. `at_ns`: when the broker stored it (Unix ns).
        """
        if kind == "outcome":
            return Position(self.stream_created_ns, sequence, at_ns, self.discovery_seq, self.discovery_ns)
        return Position(self.stream_created_ns, self.outcome_seq, self.outcome_ns, sequence, at_ns)


def same_stream(position: Position, created_ns: int, last_sequence: int) -> bool:
    """Return True if `position` is a position in the present stream of reports.

    `created_ns` and `last_sequence` are those of the present stream. Return False in two cases:
    - The stream was created again since the position was stored.
    - The stream was restored from a backup, and ends before the position.

    The caller must then read the stream from its beginning.
    """
    # A new stream may have reached the same sequences, so they do not identify it.
    if position.stream_created_ns == 0:
        return position.outcome_seq == 0 and position.discovery_seq == 0
    return position.stream_created_ns == created_ns and last_sequence >= max(
        position.outcome_seq, position.discovery_seq
    )


class Fence(Struct, frozen=True):
    """The condition of every transaction of a partition's owner, which keeps an earlier owner from writing.

    The transaction commits only if the partition has the owner's `term` and exactly this `version`. The commit
    increases the version by 1.
    """

    partition: Partition
    term: Term
    version: int

    def next(self) -> "Fence":
        """Return the fence of the owner's next transaction, after the one with this fence has committed."""
        return Fence(self.partition, self.term, self.version + 1)


class Merge(IntEnum):
    """What must change in a known URL when another link to it is found.

    - NOTHING: nothing changes.
    - LOWER_DEPTH: its depth becomes that of the link.
    - QUEUE_AGAIN: its depth becomes that of the link, and its page is fetched again because more of its links may be in
      scope.
    """

    NOTHING = 0
    LOWER_DEPTH = 1
    QUEUE_AGAIN = 2


def queued_as(flags: int) -> str | None:
    """Return the name of the counter, besides `queued`, in which a queued URL with these flags counts.

    It is `requisites`, `retries` or `revisits`. Return None for a new page, which has no such counter.
    """
    if flags & IS_REQUISITE:
        return "requisites"
    if flags & RETRY:
        return "retries"
    return "revisits" if flags & REVISIT else None


def merge_link(state: UrlState, known_depth: int, found_depth: int, max_depth: int | None) -> Merge:
    """Return what must change in a URL known at `known_depth` when a link to it is found at `found_depth`.

    The lesser depth is kept. A done page is queued again if the link lowers its depth, and the new depth is below
    `max_depth`. `max_depth`: the crawl's limit of depth, None without one.
    """
    if found_depth >= known_depth:
        return Merge.NOTHING
    # The page's own links may now be within the limit.
    if state is UrlState.DONE and max_depth is not None and found_depth < max_depth:
        return Merge.QUEUE_AGAIN
    return Merge.LOWER_DEPTH
