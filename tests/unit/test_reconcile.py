"""What must be done for crawls: every crawl gets what its row needs, nothing is done twice, and nothing unsafe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from api.crawls.known_crawls import COMPARED, KnownCrawls
from api.crawls.reconcile import (
    Action,
    CloseSpec,
    ForgetSpec,
    LeaderView,
    LoadCrawl,
    LoadedCrawl,
    MasterView,
    PublishSeeds,
    PublishSpec,
    SetDispatch,
    SpecState,
    StartTime,
    UnloadCrawl,
    active_ms,
    reconcile,
    time_is_up,
)
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow, SeededRun
from shared.domain.frontier.states import USES_TIME, WORKED_ON, CrawlState
from shared.domain.ids import CrawlId, Revision

Rows = Mapping[CrawlId, CrawlRow | None]
POOLS = ("default", "eu")
IDS = st.integers(1, 6).map(CrawlId)
REVISIONS = st.integers(1, 3).map(Revision)
CLOCKS = st.fixed_dictionaries({pool: st.integers(0, 5_000) for pool in POOLS})
STATES = st.sampled_from(sorted(CrawlState))


@dataclass
class Spec:
    """What the spec of every revision says."""

    pool: str
    max_ms: int | None
    refused: bool
    unreadable: bool = False


@dataclass
class Done:
    """What was done so far, as the executors of a leader keep it."""

    loaded: dict[CrawlId, LoadedCrawl] = field(default_factory=dict)
    published: dict[CrawlId, SpecState | None] = field(default_factory=dict)
    ending: set[CrawlId] = field(default_factory=set)
    seeding: set[SeededRun] = field(default_factory=set)
    unreadable: set[tuple[CrawlId, Revision]] = field(default_factory=set)

    def view(self, *, leading: bool = True) -> MasterView:
        leader = LeaderView(self.published, self.ending, self.seeding) if leading else None
        return MasterView(self.loaded, self.unreadable, leader)

    def carry_out(self, action: Action, rows: dict[CrawlId, CrawlRow | None], specs: Any, now: Any) -> None:
        match action:
            case LoadCrawl(row):
                spec = specs[row.crawl_id, row.revision]
                if spec.unreadable:
                    self.unreadable.add((row.crawl_id, row.revision))
                    return
                old = self.loaded.get(row.crawl_id)
                self.loaded[row.crawl_id] = LoadedCrawl(
                    row.revision,
                    old.state if old else row.state,
                    old.dispatching if old else False,
                    spec.pool,
                    spec.max_ms,
                    spec.refused,
                )
            case UnloadCrawl(crawl_id):
                del self.loaded[crawl_id]
            case SetDispatch(crawl_id, state, dispatching):
                self.loaded[crawl_id] = replace(self.loaded[crawl_id], state=state, dispatching=dispatching)
            case PublishSeeds(row):
                self.seeding.add(row.seeding_key)
            case StartTime(crawl_id, pool):
                started = rows[crawl_id]
                assert started is not None
                zero_ms = now[pool] - active_ms(started, now)
                rows[crawl_id] = structs.replace(started, active_pool=pool, active_zero_ms=zero_ms)
            case PublishSpec(row, paused):
                self.published[row.crawl_id] = SpecState(row.revision, gone=False, paused=paused)
                self.ending.discard(row.crawl_id)
            case CloseSpec(crawl_id, gone):
                before = self.published[crawl_id]
                assert before is not None
                self.published[crawl_id] = replace(before, gone=gone, paused=True)
            case ForgetSpec(crawl_id):
                self.ending.add(crawl_id)


ROWS = st.dictionaries(
    IDS,
    st.none() | st.tuples(REVISIONS, STATES, st.none() | st.sampled_from(POOLS), st.integers(-5_000, 5_000)),
)
SPECS = st.fixed_dictionaries(
    {
        (CrawlId(crawl), Revision(revision)): st.builds(
            Spec,
            st.sampled_from(POOLS),
            st.none() | st.integers(1, 5_000),
            st.booleans(),
            st.integers(0, 9).map(lambda n: n == 0),
        )
        for crawl in range(1, 7)
        for revision in range(1, 4)
    }
)
SPEC_STATES = st.none() | st.builds(SpecState, REVISIONS, st.booleans(), st.booleans())
DONE = st.builds(
    Done,
    st.dictionaries(
        IDS,
        st.builds(
            LoadedCrawl,
            REVISIONS,
            STATES,
            st.booleans(),
            st.sampled_from(POOLS),
            st.none() | st.integers(1, 5_000),
            st.booleans(),
        ),
    ),
    st.dictionaries(IDS, SPEC_STATES),
    st.sets(IDS),
    st.sets(st.tuples(IDS, REVISIONS)),
)


def rows_of(drawn: Mapping[CrawlId, Any]) -> dict[CrawlId, CrawlRow | None]:
    return {
        crawl_id: None
        if values is None
        else CrawlRow(
            crawl_id,
            f"c{crawl_id}",
            values[0],
            values[1],
            "{}",
            active_ms=max(0, values[3]),
            active_pool=values[2] if values[1] in USES_TIME else None,
            active_zero_ms=values[3],
        )
        for crawl_id, values in drawn.items()
    }


def with_specs(done: Done, specs: Mapping[Any, Spec]) -> Done:
    """Let what is loaded be what the specs of the loaded revisions say."""
    for crawl_id, crawl in done.loaded.items():
        spec = specs[crawl_id, crawl.revision]
        done.loaded[crawl_id] = replace(crawl, pool=spec.pool, max_ms=spec.max_ms, refused=spec.refused)
    return done


def flat(actions: Mapping[CrawlId, Iterable[Action]]) -> list[Action]:
    return [action for needed in actions.values() for action in needed]


@given(ROWS, DONE, SPECS, CLOCKS)
def test_carrying_out_the_actions_leaves_nothing_to_do(drawn: Any, done: Done, specs: Any, now: Any) -> None:
    """In three rounds: load, then decide by the spec, then forget what was closed."""
    rows, done = rows_of(drawn), with_specs(done, specs)
    for _ in range(3):
        for action in flat(reconcile(rows, done.view(), now)):
            done.carry_out(action, rows, specs, now)
    assert reconcile(rows, done.view(), now) == {}
    for crawl_id, row in rows.items():
        crawl = done.loaded.get(crawl_id)
        if row is None or row.state not in WORKED_ON:
            assert crawl is None
            assert all(
                state.gone or (row and state.paused) for each in [done.published.get(crawl_id)] if (state := each)
            )
        elif (crawl_id, row.revision) not in done.unreadable:
            assert crawl is not None
            up = time_is_up(row, crawl.max_ms, now)
            stopped = up or row.state is CrawlState.PAUSED
            assert (crawl.revision, crawl.state) == (row.revision, row.state)
            assert crawl.dispatching == (not stopped and not crawl.refused)
            assert done.published[crawl_id] == SpecState(row.revision, gone=False, paused=stopped)
            assert row.active_pool == (crawl.pool if row.state in USES_TIME else None)


@given(ROWS, DONE, SPECS, CLOCKS)
def test_no_action_is_unsafe(drawn: Any, done: Done, specs: Any, now: Any) -> None:
    rows, done = rows_of(drawn), with_specs(done, specs)
    for action in flat(reconcile(rows, done.view(), now)):
        match action:
            case PublishSpec(row, paused):
                loaded = done.loaded[row.crawl_id]
                assert rows[row.crawl_id] == row
                assert row.state in WORKED_ON
                assert loaded.revision == row.revision
                assert paused or not (row.state is CrawlState.PAUSED or time_is_up(row, loaded.max_ms, now))
            case SetDispatch(crawl_id, state, dispatching):
                loaded = done.loaded[crawl_id]
                assert not (dispatching and (state is CrawlState.PAUSED or loaded.refused))
            case StartTime(crawl_id, _):
                started = rows[crawl_id]
                assert started is not None
                assert started.state in USES_TIME
            case PublishSeeds(row):
                assert row.state is CrawlState.SEEDING
                assert row.seeding_key not in done.seeding
            case CloseSpec(crawl_id, gone):
                ended = rows[crawl_id]
                assert gone == (ended is None)
                assert ended is None or ended.state not in WORKED_ON
            case UnloadCrawl(crawl_id) | ForgetSpec(crawl_id):
                over = rows[crawl_id]
                assert over is None or over.state not in WORKED_ON


@given(ROWS, DONE, SPECS, CLOCKS)
def test_each_crawl_is_decided_alone_and_a_follower_only_loads(drawn: Any, done: Done, specs: Any, now: Any) -> None:
    """So it is enough to decide on the crawls that changed."""
    rows, done = rows_of(drawn), with_specs(done, specs)
    whole = reconcile(rows, done.view(), now)
    alone = [reconcile({crawl_id: row}, done.view(), now) for crawl_id, row in reversed(rows.items())]
    assert {crawl_id: actions for each in alone for crawl_id, actions in each.items()} == whole
    assert all(len(set(map(type, actions))) == len(actions) for actions in whole.values())
    of_follower = flat(reconcile(rows, done.view(leading=False), now))
    assert all(isinstance(action, LoadCrawl | UnloadCrawl | SetDispatch) for action in of_follower)
    local = [action for action in flat(whole) if isinstance(action, LoadCrawl | UnloadCrawl | SetDispatch)]
    assert local == of_follower


def changes(rows: Rows, **others: Any) -> CrawlChanges:
    values: dict[str, Any] = {
        "recent": {},
        "compared": (),
        "counted": (),
        "clocks": {},
        "positions": {},
    }
    return CrawlChanges(ChangeMark(1), rows, **(values | others))


def running(number: int, **others: Any) -> CrawlRow:
    return CrawlRow(CrawlId(number), f"c{number}", Revision(1), CrawlState.RUNNING, "{}", **others)


def settled(*rows: CrawlRow, max_ms: int | None = None) -> KnownCrawls:
    """Crawls of which nothing is left to do."""
    known = KnownCrawls()
    known.take(changes({row.crawl_id: row for row in rows}, clocks={"default": 0}))
    loaded = {row.crawl_id: LoadedCrawl(row.revision, row.state, True, "default", max_ms) for row in rows}
    known.keep_pending((), loaded)
    assert len(known.take_unchecked()) == len(rows)
    return known


@pytest.mark.parametrize(("loaded_ms", "row_ms"), [(0, 7), (7, 0), (5, 7)])
def test_master_that_has_the_crawl_loaded_learns_of_another_refresh(loaded_ms: int, row_ms: int) -> None:
    row = running(1, refresh_ms=row_ms)
    loaded = LoadedCrawl(row.revision, row.state, True, "default", refresh_ms=loaded_ms)
    set_it = SetDispatch(row.crawl_id, row.state, True, row_ms)
    assert reconcile({row.crawl_id: row}, MasterView({row.crawl_id: loaded}), {}) == {row.crawl_id: [set_it]}
    known = MasterView({row.crawl_id: replace(loaded, refresh_ms=row_ms)})
    assert reconcile({row.crawl_id: row}, known, {}) == {}


@given(st.integers(1, 60))
def test_crawls_in_which_nothing_changes_take_turns_to_be_compared(crawls: int) -> None:
    known = settled(*map(running, range(1, crawls + 1)))
    seen: set[CrawlId] = set()
    for _ in range(-(-crawls // COMPARED)):
        turn = known.next_compared()
        assert len(turn) <= COMPARED
        assert known.pending() == {}
        seen |= set(turn)
        known.take(changes({}, compared=turn))
        assert known.pending().keys() == set(turn)
        assert {row.crawl_id for row in known.take_unchecked()} == set(turn)
        known.keep_pending((), {})
    assert seen == set(range(1, crawls + 1))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.lists(st.integers(0, 60), max_size=10))
def test_crawl_is_looked_at_as_soon_as_its_time_is_up(zeros: list[int], steps: list[int]) -> None:
    rows = [running(n, active_pool="default", active_zero_ms=zero) for n, zero in enumerate(zeros, 1)]
    known = settled(*rows, max_ms=100)
    now = 0
    seen: set[CrawlId] = set()
    for step in steps:
        now += step
        known.take(changes({}, clocks={"default": now}))
        seen |= known.pending().keys()
        assert seen == {row.crawl_id for row in rows if time_is_up(row, 100, {"default": now})}
        known.keep_pending((), {})


def test_crawl_whose_counters_changed_is_checked_and_an_ended_one_is_late() -> None:
    known = settled(running(1), running(2))
    known.take(changes({}, counted={CrawlId(2), CrawlId(9)}))
    assert [row.crawl_id for row in known.take_unchecked()] == [2]
    assert known.late == {9}
    assert known.pending() == {}
    known.take(changes({CrawlId(2): None}))
    assert known.pending() == {CrawlId(2): None}
    assert known.take_unchecked() == []


def test_pool_without_a_crawl_that_uses_its_time_has_no_clock_to_move() -> None:
    known = settled(running(1, active_pool="default"))
    assert known.pools() == {"default": 0}
    known.take(changes({CrawlId(1): running(1)}, clocks={"default": 7}))
    assert known.pools() == {}
    known.take(changes({CrawlId(1): running(1, active_pool="default")}, clocks={"default": 5}))
    assert known.pools() == {"default": 7}, "a read that began before does not set a clock back"


def test_action_that_was_not_carried_out_is_decided_again() -> None:
    known = settled(running(1), running(2))
    known.look_at_all({CrawlId(7): None})
    assert known.pending().keys() == {1, 2, 7}
    known.keep_pending({CrawlId(2), CrawlId(7)}, {})
    known.take(changes({}))
    assert known.pending() == {CrawlId(2): running(2), CrawlId(7): None}
