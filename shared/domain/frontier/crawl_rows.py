"""Rows of crawls as stored in SQL, and the result of a read of what changed in them since an earlier read."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ids import CrawlId, Partition, Revision


class CrawlRow(Struct, frozen=True):
    """The stored row of a crawl. `spec` is the JSON of its active revision.

    A pool's clock is the total time in ms during which the pool could work. A crawl's active time is measured by the
    clock of its pool, and grows only while the crawl is SEEDING or RUNNING.

    - `active_ms`: the crawl's active time when the row was read.
    - `active_pool`: the pool whose clock now measures the active time. None: the active time does not grow now.
    - `active_zero_ms`: the value of the pool's clock at which the active time would be 0. At a later moment, the active
      time is the value of the clock minus `active_zero_ms`. 0 without a pool.
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
        """The key of the publication of seeds that the crawl needs while its state is SEEDING.

        The key consists of the crawl's id, revision and `operator_version`. The leader does not begin a publication
        while another one with the same key is running.
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
    - `recent`: the version of each crawl that changed last. Empty in the first read. The caller stores these versions,
      because the next read finds the same changes again, and perhaps one more that was committed late. The next read
      leaves a crawl out of `rows` if the crawl still has the version that the caller stored.
    - `compared`: the crawls whose stored version this read compared with the version known to the caller, to find
      missed changes. These are the crawls that the caller named, and a few unfinished crawls in turn. Most of these
      crawls are unchanged. If a compared crawl has changed, its new row is in `rows`.
    - `counted`: the crawls whose counters changed.
    - `clocks`: for each pool, the total time in ms during which the pool could work.
    - `positions`: for each partition, the position in the reports up to which its owner has applied them.
    """

    mark: ChangeMark
    rows: Mapping[CrawlId, CrawlRow | None]
    recent: Mapping[CrawlId, CrawlVersion]
    compared: Collection[CrawlId]
    counted: Collection[CrawlId]
    clocks: Mapping[str, int]
    positions: Mapping[Partition, Position]
