"""The evidence that a run leaves for its judge: plain facts, each from the process that saw it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from shared.domain.frontier.states import UrlState
from tests.support.faults.plan import Fault
from tests.support.web.exchange_log import Exchange


@dataclass(frozen=True, slots=True)
class Round:
    """A fault as it was done. Times are CLOCK_MONOTONIC nanoseconds: when it began, when it was over (for the death of
    a member, when it died: others are to take its place), and when the cluster was whole again (None: the next fault
    struck first)."""

    number: int
    fault: Fault
    victim: str
    begun_ns: int
    over_ns: int
    whole_ns: int | None
    skipped: str | None = None

    @property
    def recovery_s(self) -> float | None:
        """From the end of the fault until the cluster was whole."""
        return None if self.whole_ns is None or self.skipped is not None else (self.whole_ns - self.over_ns) / 1e9


@dataclass(frozen=True, slots=True)
class PageSeen:
    """A page in the index, and where the index places its record."""

    url: str
    status: int
    segment: str
    offset: int
    length: int


class LeaseTurn(IntEnum):
    """What the database saw of a leased URL that bears on how often it may be requested."""

    ACCEPTED = 0
    """An outcome was accepted: its request has its result."""
    ENDED = 1
    """The lease ended without an outcome, and the URL is queued again or given up: its grant expired."""
    REGRANTED = 2
    """The lease was granted again while the URL was still in it: the grant before expired."""
    HANDED_BACK = 3
    """A transaction that applies outcomes queued the URL again: a worker did not attempt it, or stopped on the way."""


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """A Turn of a URL of the crawl, and when it was written (CLOCK_MONOTONIC nanoseconds, to a millisecond)."""

    url: str
    turn: LeaseTurn
    at_ns: int


@dataclass(frozen=True, slots=True)
class CrawlSeen:
    """A crawl at the end: what the site holds, which seeds clients were told are kept, which
    they offered, what the database says.
    `reasons`: why a URL failed or was excluded. `agent`: the User-Agent of its requests, and of no other crawl's."""

    name: str
    state: str
    reason: str | None
    expected: frozenset[str]
    seeds: frozenset[str]
    offered: frozenset[str]
    urls: Mapping[str, UrlState]
    reasons: Mapping[str, str]
    pages: tuple[PageSeen, ...]
    counters: Mapping[str, int]
    leases: int
    agent: str
    turns: tuple[TurnSeen, ...]


@dataclass(frozen=True, slots=True)
class DeletedSeen:
    """A crawl whose deletion was acknowledged: what the database still has of it."""

    name: str
    state: str
    urls: int
    leases: int


@dataclass(frozen=True, slots=True)
class FenceSeen:
    """An owner's transaction that was committed; in the order of commits within a partition. `xid` is 0 and `member`
    empty where the database does not tell them apart."""

    xid: int
    partition: int
    term: int
    member: str


@dataclass(frozen=True, slots=True)
class WriteSeen:
    """A committed transaction that changed an owner's table."""

    xid: int
    relation: str
    member: str


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A lease as it was written, and who owned its partition at that moment."""

    partition: int
    term: int
    owner_term: int


@dataclass(frozen=True, slots=True)
class SharingCrawl:
    """A crawl, by the User-Agent of its requests, that shares by its weight; `delay_s` is what it keeps to a host."""

    agent: str
    weight: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class SharedPeriod:
    """Crawls that always had work and shared `what` from one moment to another (CLOCK_MONOTONIC nanoseconds)."""

    what: str
    from_ns: int
    to_ns: int
    crawls: tuple[SharingCrawl, ...]


@dataclass(frozen=True, slots=True)
class History:
    """All of it. `delay_s`: what every crawl promised every host. `records`: the URL of the record that lies at each
    place an index names. `left`: what still stands in streams, in words. `statuses`: how often clients got each
    answer. `went_on_ns`: when stopped workers went on. `unreadable`: reports that were published although no owner can
    read them, and `noise` shards of that kind; `buried`: the messages that stand among the dead letters, and
    `buried_shards` the shards; `repeated`: letters that were published
    again. `shared`: what crawls shared before the first fault; none where that was not asked for. `rescoped`: how
    often a scope was changed; `rediscovered`: pages that owners read again after the last change of their crawl."""

    seed: int
    delay_s: float
    rounds: tuple[Round, ...]
    crawls: tuple[CrawlSeen, ...]
    deleted: tuple[DeletedSeen, ...]
    exchanges: tuple[Exchange, ...]
    fences: tuple[FenceSeen, ...]
    writes: tuple[WriteSeen, ...]
    leases: tuple[LeaseSeen, ...]
    records: Mapping[tuple[str, int], str]
    left: tuple[str, ...]
    statuses: Mapping[int, int]
    went_on_ns: tuple[int, ...]
    unreadable: tuple[bytes, ...]
    buried: tuple[bytes, ...]
    noise: tuple[bytes, ...]
    buried_shards: tuple[bytes, ...]
    repeated: int
    seconds: float
    shared: tuple[SharedPeriod, ...] = ()
    rescoped: int = 0
    rediscovered: int = 0
