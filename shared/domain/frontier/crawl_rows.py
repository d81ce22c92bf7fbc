"""Crawls as they are stored, and what changed in them since a mark."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ids import CrawlId, Partition, Revision


class CrawlRow(Struct, frozen=True):
    """A crawl as stored. `spec` is its active revision's JSON; `active_ms` the time it was worked on, when it was read.

    While the crawl is worked on and not paused, that time is the clock of `active_pool` less `active_zero_ms`.
    `refresh_ms`: its run fetches what was due at this time (Unix ms) and then ends; 0: the run is no refresh.
    `operator_version` grows with each change that an operator makes.
    """

    crawl_id: CrawlId
    name: str
    revision: Revision
    state: CrawlState
    spec: str
    finished_reason: str | None = None
    created_at_ms: int = 0
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    active_ms: int = 0
    active_pool: str | None = None
    active_zero_ms: int = 0
    change: int = 0
    refresh_ms: int = 0
    operator_version: int = 1

    @property
    def to_seed(self) -> "SeededRun":
        """What the seeds of the crawl are published for. A verb, such as `start`, makes it another."""
        return SeededRun(self.crawl_id, self.revision, self.operator_version)

    @property
    def version(self) -> "CrawlVersion":
        """A value that changes with the crawl's revision and state."""
        return CrawlVersion(self.change, self.revision, self.state)


class SeededRun(NamedTuple):
    """A crawl as its operator left it. Seeds that were published for an earlier one do not stand for those of a later.

    In between, an exclusion may have ended, or seeds may have been deleted, and only seeds that are published later are
    queued again.
    """

    crawl_id: CrawlId
    revision: Revision
    operator_version: int


class CrawlVersion(NamedTuple):
    """A value that differs after each change of a crawl's revision or state.

    `change` is the number of the last change, counted over all crawls.
    """

    change: int
    revision: Revision
    state: CrawlState


class ChangeMark(Struct, frozen=True):
    """Up to where a reader has read the changes of crawls. The default is for the first read.

    - `change`: the greatest number of a change that was read.
    - `versions`: the version of each partition. If it is unchanged, so are the counters there.
    - `compared`: the last crawl that was compared without regard to its number.
    """

    change: int = 0
    versions: Mapping[Partition, int] = field(default_factory=dict)
    compared: CrawlId = CrawlId(0)


class CrawlChanges(Struct, frozen=True):
    """What changed in crawls since a mark, in one snapshot. Pass `mark` to the next read.

    - `rows`: crawls whose version differs from the known one, None for deleted ones.
    - `recent`: the versions of the crawls that changed last.
    - `compared`: crawls that were compared without regard to their numbers.
    - `counted`: crawls whose counters changed.
    - `clocks`: each pool's clock in ms. It counts the time in which the pool's crawls are worked on.
    - `positions`: up to where each partition's reports are applied.
    """

    mark: ChangeMark
    rows: Mapping[CrawlId, CrawlRow | None]
    recent: Mapping[CrawlId, CrawlVersion]
    compared: Collection[CrawlId]
    counted: Collection[CrawlId]
    clocks: Mapping[str, int]
    positions: Mapping[Partition, Position]
