"""Rows of crawls as stored in SQL, and the result of a read of what changed in them since an earlier read."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ids import CrawlId, Partition, Revision


class CrawlRow(Struct, frozen=True):
    """The stored row of a crawl. `spec` is the JSON of its active revision.

    - `active_ms`: for how long the crawl was active, at the time of the read. A crawl is active while it is SEEDING or
      RUNNING.
    - `active_pool`: the pool whose stored clock measures the time of this crawl while the crawl is active. None if no
      clock measures it.
    - `active_zero_ms`: the value of that clock at which `active_ms` was 0. It is 0 if `active_pool` is None.
    - `change`: the number of the crawl's last change. The changes of all crawls are numbered together.
    - `refresh_ms`: the run fetches what was due at this time (Unix ms) and then ends. 0: the run is no refresh.
    - `operator_version`: grows with each change that an operator makes.
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
        """The key of the seed publication that the crawl needs while it is SEEDING."""
        return SeededRun(self.crawl_id, self.revision, self.operator_version)

    @property
    def version(self) -> "CrawlVersion":
        """A value that changes with the crawl's revision and state."""
        return CrawlVersion(self.change, self.revision, self.state)


class SeededRun(NamedTuple):
    """The key of one publication of a crawl's seeds: the crawl, its revision and its `operator_version`.

    If an operator changes a crawl that is SEEDING, the leader begins another publication of all its seeds.
    """

    crawl_id: CrawlId
    revision: Revision
    operator_version: int


class CrawlVersion(NamedTuple):
    """A value that differs after each change of a crawl's revision or state.

    `change`: the number of the crawl's last change. Changes of all crawls are numbered together.
    """

    change: int
    revision: Revision
    state: CrawlState


class ChangeMark(Struct, frozen=True):
    """A reader's position in the changes of crawls, to pass to the next read. The default value is for the first read.

    - `change`: the greatest number of a change that was read.
    - `versions`: the version of each partition. While a partition's version is the same, so are its counters.
    - `compared`: a crawl id. Each read also checks a few unfinished crawls in turn, whether or not they seem changed.
      The next read checks those with ids above `compared`.
    """

    change: int = 0
    versions: Mapping[Partition, int] = field(default_factory=dict)
    compared: CrawlId = CrawlId(0)


class CrawlChanges(Struct, frozen=True):
    """What changed in crawls since the read that returned a mark, in one snapshot. Pass `mark` to the next read.

    - `rows`: the crawls whose version is not the one that the caller knows. None for a deleted crawl.
    - `recent`: the versions of the crawls that changed last. An earlier read may have returned some of them.
    - `compared`: the crawls that were checked even if they seem unchanged: the next ones in turn, and those that the
      caller named.
    - `counted`: the crawls whose counters changed.
    - `clocks`: the clock of each pool: for how many ms in all the pool could work.
    - `positions`: the position up to which each partition has applied its reports.
    """

    mark: ChangeMark
    rows: Mapping[CrawlId, CrawlRow | None]
    recent: Mapping[CrawlId, CrawlVersion]
    compared: Collection[CrawlId]
    counted: Collection[CrawlId]
    clocks: Mapping[str, int]
    positions: Mapping[Partition, Position]
