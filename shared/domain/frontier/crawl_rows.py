"""Rows of crawls as stored in SQL, and the result of a read of what changed in them since an earlier read."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ids import CrawlId, Partition, Revision


class CrawlRow(Struct, frozen=True):
    """The stored row of a crawl. `spec` is the JSON of its active revision.

    A crawl's active time is the time for which it was worked on. It is measured by the clock of the crawl's pool: a
    number of ms that grows only while the pool can work. The active time grows with this clock while the crawl is
    SEEDING or RUNNING.

    - `active_ms`: the crawl's active time at the moment when the row was read.
    - `active_pool`: the pool whose clock now measures the active time. None: the active time does not grow now.
    - `active_zero_ms`: subtract this number from the clock's present value to get the present active time. For example,
      it is 6,000. When the clock shows 9,000, the active time is 3,000 ms. It has no meaning without `active_pool`.
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
    def seeding_key(self) -> "SeededRun":
        """The key under which the leader remembers that it is publishing the seeds of this crawl.

        While the leader publishes seeds under a key, it begins no second publication under the same key. If the
        crawl's revision or `operator_version` changes, the key changes. Then the leader publishes the seeds again.
        """
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
    """The version of a crawl's row. It differs after each change of the crawl's revision or state.

    `change`: the number of the crawl's last change. The changes of all crawls are numbered together.
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
    """The changes of crawls since an earlier read, as one snapshot.

    - `mark`: the position of this read, to pass to the next read.
    - `rows`: the new row of each crawl that changed, None for a deleted crawl. The first read returns the row of each
      crawl that is seeding, running or paused.
    - `recent`: the crawls with the newest changes, each with its version in SQL. The caller keeps these versions, so
      that the next read does not return the same changes again. Empty in the first read.
    - `compared`: the crawls that this read checked for missed changes. These are the crawls that the caller named, and
      a few unfinished crawls in turn. Most of them are unchanged. Only those that have changed are also in `rows`.
    - `counted`: the crawls whose counters changed.
    - `clocks`: for each pool, the total time in ms during which the pool could work.
    - `positions`: for each partition, the position in the reports up to which its owner has applied them.
    """

    # A change may be committed after one with a higher number. So each read looks again at changes shortly before the
    # mark, and skips a crawl whose version in SQL is the one that the caller knows.
    mark: ChangeMark
    rows: Mapping[CrawlId, CrawlRow | None]
    recent: Mapping[CrawlId, CrawlVersion]
    compared: Collection[CrawlId]
    counted: Collection[CrawlId]
    clocks: Mapping[str, int]
    positions: Mapping[Partition, Position]
