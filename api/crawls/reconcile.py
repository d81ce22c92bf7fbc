"""Decide what must be done for crawls: a pure comparison of the state in SQL with what this master has done.

`CrawlController` carries out the actions. It asks again about each crawl that needed an action, until the crawl needs
none. So an action that fails, or that a crash interrupts, is repeated.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from shared.domain.frontier.crawl_rows import CrawlRow, SeededRun
from shared.domain.frontier.states import USES_TIME, WORKED_ON, CrawlState
from shared.domain.ids import CrawlId, Revision


@dataclass(frozen=True, slots=True)
class LoadedCrawl:
    """A crawl that this master has loaded for dispatch.

    - `dispatching`: True if its URLs may be dispatched now.
    - `max_ms`: its `budget.max_seconds` in ms; None: no limit.
    - `refused`: True if it must not be dispatched, because workers refuse its spec.
    - `refresh_ms`: when its present refresh began (Unix ms); 0 if no refresh is running.
    """

    revision: Revision
    state: CrawlState
    dispatching: bool
    pool: str
    max_ms: int | None = None
    refused: bool = False
    refresh_ms: int = 0


@dataclass(frozen=True, slots=True)
class SpecState:
    """What the published spec of a crawl says.

    - `revision`: the revision of the spec.
    - `gone`: True if the crawl is deleted.
    - `paused`: True if workers must start no request of the crawl.
    """

    revision: Revision
    gone: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class LeaderView:
    """What the leader has published and begun.

    - `published`: for each crawl with a published spec, what the workers were last sent (`SpecState`). A value is None
      if the published spec cannot be read. The field itself is None until the leader has read the published specs.
    - `ending`: crawls that have ended or were deleted, and whose published spec is scheduled to be deleted.
    - `seeding`: the crawls whose seeds are being published now. Each entry also has the crawl's revision and the number
      of its last change by an operator.
    """

    published: Mapping[CrawlId, SpecState | None] | None = None
    ending: Collection[CrawlId] = ()
    seeding: Collection[SeededRun] = ()


@dataclass(frozen=True, slots=True)
class MasterView:
    """What this master has done for crawls so far. `reconcile` compares it with the rows in SQL.

    - `unreadable`: the specs that this version cannot read.
    - `leader`: what it has done as leader; None if it does not lead.
    """

    loaded: Mapping[CrawlId, LoadedCrawl] = field(default_factory=dict)
    unreadable: Collection[tuple[CrawlId, Revision]] = ()
    leader: LeaderView | None = None


@dataclass(frozen=True, slots=True)
class LoadCrawl:
    """Action: load the crawl into memory for dispatch, or replace it by its new revision."""

    row: CrawlRow


@dataclass(frozen=True, slots=True)
class UnloadCrawl:
    """Action: unload a crawl from this master's memory, because the crawl has ended or was deleted."""

    crawl_id: CrawlId


@dataclass(frozen=True, slots=True)
class SetDispatch:
    """Action: set the state of a crawl in memory, allow or stop its dispatch, and set when its refresh began.

    `refresh_ms` is in Unix ms; 0 if no refresh is running.
    """

    crawl_id: CrawlId
    state: CrawlState
    dispatching: bool
    refresh_ms: int = 0


@dataclass(frozen=True, slots=True)
class PublishSeeds:
    """Action of the leader: publish the seeds of the spec in `row`."""

    row: CrawlRow


@dataclass(frozen=True, slots=True)
class StartTime:
    """Action of the leader: let a crawl's active time grow from now on, measured by the clock of `pool`.

    The pool's clock is a number of ms in SQL, which grows while at least one crawl of the pool is worked on. Example:
    a new crawl starts when the clock shows 500 s. When the clock shows 560 s, the crawl's active time is 60 s.
    """

    crawl_id: CrawlId
    pool: str


@dataclass(frozen=True, slots=True)
class PublishSpec:
    """Action of the leader: publish the crawl's spec to the workers.

    If `paused`, their visits start no further request.
    """

    row: CrawlRow
    paused: bool


@dataclass(frozen=True, slots=True)
class CloseSpec:
    """Action of the leader: publish to the workers that the crawl has ended, or was deleted if `gone` is True."""

    crawl_id: CrawlId
    gone: bool


@dataclass(frozen=True, slots=True)
class ForgetSpec:
    """Action of the leader: schedule the deletion of the published spec of a crawl that has ended."""

    crawl_id: CrawlId


LocalAction = LoadCrawl | UnloadCrawl | SetDispatch
SpecAction = PublishSpec | CloseSpec | ForgetSpec
Action = LocalAction | PublishSeeds | StartTime | SpecAction


class PublishedSpecs:
    """The crawl specs that are published to workers, and the actions that `CrawlSpecPublisher` must take.

    - `published`: by crawl, what its published spec says; None if the spec cannot be read.
    - `ending`: the crawls whose published spec will be deleted after a fixed pause. The value is the time at which the
      pause began (`Clock.elapsed`). These crawls have ended or were deleted.
    - `todo`: by crawl, the next action on its published spec.
    """

    def __init__(self, published: dict[CrawlId, SpecState | None]) -> None:
        self.published = published
        self.ending: dict[CrawlId, float] = {}
        self.todo: dict[CrawlId, SpecAction] = {}


def reconcile(
    rows: Mapping[CrawlId, CrawlRow | None], view: MasterView, clocks: Mapping[str, int]
) -> Mapping[CrawlId, list[Action]]:
    """Return the actions that each crawl needs now. Crawls that need none are left out.

    - `rows`: the crawls to decide on, with None for a deleted crawl.
    - `view`: what this master has done so far.
    - `clocks`: the present value of each pool's clock, in ms. A pool's clock runs while its crawls are worked on.

    If this version cannot read the spec of a crawl that has not ended, the crawl gets no action. The actions of a crawl
    do not depend on other crawls.
    """
    actions = {crawl_id: list(_actions(crawl_id, row, view, clocks)) for crawl_id, row in rows.items()}
    return {crawl_id: needed for crawl_id, needed in actions.items() if needed}


def time_is_up(row: CrawlRow, max_ms: int | None, clocks: Mapping[str, int]) -> bool:
    """Return True if the crawl has been worked on for `max_ms` or longer. Return False if `max_ms` is None.

    - `max_ms`: the crawl's `budget.max_seconds` in ms; None if the crawl has no such limit.
    - `clocks`: the present value of each pool's clock, in ms. The clock is no time of day: it runs only while crawls of
      the pool are worked on.

    Example: the crawl began when its pool's clock showed 6,000. The clock now shows 9,000. So the crawl has been worked
    on for 3,000 ms. The result is True if `max_ms` is at most 3,000.
    """
    return max_ms is not None and active_ms(row, clocks) >= max_ms


def active_ms(row: CrawlRow, clocks: Mapping[str, int]) -> int:
    """Return for how many ms the crawl has been worked on.

    - While the crawl is worked on, its time grows with the clock of its pool (`active_pool`). Return the clock's value
      minus the crawl's offset (`active_zero_ms`). Example: the clock shows 9,000 and the offset is 6,000. Return 3,000.
    - While the crawl's time stands still (`active_pool` is None), for example because the crawl is paused: return the
      time that is stored in the row. Do the same if `clocks` lacks the pool's clock.

    `clocks`: the present value of each pool's clock, in ms.
    """
    if row.active_pool is None or row.active_pool not in clocks:
        return row.active_ms
    return clocks[row.active_pool] - row.active_zero_ms


def _actions(crawl_id: CrawlId, row: CrawlRow | None, view: MasterView, clocks: Mapping[str, int]) -> Iterator[Action]:
    loaded = view.loaded.get(crawl_id)
    if row is None or row.state not in WORKED_ON:
        if loaded is not None:
            yield UnloadCrawl(crawl_id)
        if view.leader is not None:
            yield from _after_end(crawl_id, view.leader, deleted=row is None)
    elif (crawl_id, row.revision) in view.unreadable:
        return
    elif loaded is None or loaded.revision != row.revision:
        yield LoadCrawl(row)
    else:
        up = time_is_up(row, loaded.max_ms, clocks)
        dispatching = not (loaded.refused or up or row.state is CrawlState.PAUSED)
        if (loaded.state, loaded.dispatching, loaded.refresh_ms) != (row.state, dispatching, row.refresh_ms):
            yield SetDispatch(crawl_id, row.state, dispatching, row.refresh_ms)
        if view.leader is not None:
            yield from _of_leader(row, loaded.pool, view.leader, paused=up or row.state is CrawlState.PAUSED)


def _of_leader(row: CrawlRow, pool: str, leader: LeaderView, *, paused: bool) -> Iterator[Action]:
    if row.state is CrawlState.SEEDING and row.seeding_key not in leader.seeding:
        yield PublishSeeds(row)
    if row.state in USES_TIME and row.active_pool != pool:
        yield StartTime(row.crawl_id, pool)
    if leader.published is not None:
        wanted = SpecState(row.revision, gone=False, paused=paused)
        if leader.published.get(row.crawl_id) != wanted or row.crawl_id in leader.ending:
            yield PublishSpec(row, paused)


def _after_end(crawl_id: CrawlId, leader: LeaderView, *, deleted: bool) -> Iterator[Action]:
    """Yield at most one action on the published spec of a crawl that has ended or was deleted.

    - If the published spec can be read and does not show the end yet: yield `CloseSpec`, which publishes the end.
    - Otherwise, if the deletion of the published spec is not scheduled yet: yield `ForgetSpec`, which schedules it.
    - Otherwise: yield nothing.

    If no spec of the crawl is published, yield nothing.
    """
    if leader.published is None or crawl_id not in leader.published:
        return
    spec = leader.published[crawl_id]
    if spec is not None and not spec.gone and (deleted or not spec.paused):
        yield CloseSpec(crawl_id, gone=deleted)
    elif crawl_id not in leader.ending:
        yield ForgetSpec(crawl_id)
