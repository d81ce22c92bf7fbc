"""The model's own test: a protocol with a rule taken out of it must be caught, or the model proves nothing."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from api.crawls.finished_check import SubjectEnds
from api.frontier import grants as granting
from api.frontier import outcome_facts
from api.frontier.command_runner import CommandRunner
from api.frontier.grants import GrantTerms, terms_of
from api.frontier.host_queues import HostQueues
from api.frontier.leases import Leases, TrackedLease
from api.frontier.orphans import OrphanedShards
from api.frontier.outcome_batch import OutcomeBatch
from api.frontier.rediscovery import Rediscovery
from shared.adapters.sql.engine import fence
from shared.adapters.sql.frontier import apply, commands, leasing, rediscover
from shared.adapters.sql.frontier import discoveries as found
from shared.domain.errors import Transient
from shared.domain.frontier.command_progress import behind_host
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.page_visits import Finding, PageVerdict, judge_page
from shared.domain.frontier.states import UrlState
from shared.domain.ids import HostId
from shared.ports.broker import QueuedVisit
from tests.conformance.test_protocol import Protocol, RecrawlProtocol, profile
from tests.conformance.test_rescopes import WiderScopeProtocol
from tests.support.simulation.cluster import LONGEST_S, Cluster, Site
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node
from tests.support.simulation.worker import SimWorker

_FEW = 1_000
"""Walks until the breach; which ones are drawn depends on every constant of the code, so that any change of it draws
others."""


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    def pass_fence(connection: Any, held: Any, position: Any = None) -> None:
        if position is not None:
            fence.move_position(connection, held.partition, position)

    for module in (apply, commands, found, leasing):
        patch.setattr(module, "pass_fence", pass_fence)


def _no_patience_after_takeover(patch: pytest.MonkeyPatch) -> None:
    take_over = Leases.take_over
    patch.setattr(Leases, "take_over", lambda self, row, now, *, ended: take_over(self, row, now, ended=True))


def _no_rest(patch: pytest.MonkeyPatch) -> None:
    release = HostQueues.release
    patch.setattr(HostQueues, "release", lambda self, host, slot, *_: release(self, host, slot))


def _repeats_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(found, "_producer", lambda connection, partition, mark: (0, 0, 0))


def _finished_at_first_sight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubjectEnds, "applied", lambda self, position: True)


def _outcomes_before_discoveries(patch: pytest.MonkeyPatch) -> None:
    discover = SimWorker._discover

    async def discover_late(self: SimWorker, *args: Any) -> None:
        await asyncio.sleep(20.0)
        await discover(self, *args)

    async def later(self: SimWorker, *args: Any) -> None:
        self.world.spawn(self.process, discover_late(self, *args), "discover")

    patch.setattr(SimWorker, "_discover", later)


def _outcomes_before_items(patch: pytest.MonkeyPatch) -> None:
    give = SimWorker._give_items

    async def give_late(self: SimWorker, *args: Any) -> None:
        await asyncio.sleep(20.0)
        await give(self, *args)

    async def later(self: SimWorker, *args: Any) -> None:
        self.world.spawn(self.process, give_late(self, *args), "items")

    patch.setattr(SimWorker, "_give_items", later)


def _blocks_and_delays_of_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Grants by what was known when the lease was made."""

    def then(held: TrackedLease, crawl: Any, host: Any, now: float) -> GrantTerms:
        now_known = terms_of(held, crawl, host, now)
        return GrantTerms(held.row.delay_ms / 1000, now_known.rest_s, 0.0, False)

    patch.setattr(granting, "terms_of", then)


def _no_search_for_strays(patch: pytest.MonkeyPatch) -> None:
    async def once(self: OrphanedShards) -> int:
        return 0

    patch.setattr(OrphanedShards, "once", once)


def _unreadable_shards_freed_at_once(patch: pytest.MonkeyPatch) -> None:
    """A worker that has begun them goes on fetching."""

    def unreadable(self: OutcomeBatch, message: Any, partition: Any, at_ms: int) -> None:
        held = self.leases.at(QueuedVisit(message.pool, HostId(message.host_id), message.slot))
        if held is not None and held.row.lease_id not in self._freed:
            self._free(held, self._left_of(held), self.now)

    patch.setattr(OutcomeBatch, "unreadable", unreadable)


def _exclusions_applied_at_once(patch: pytest.MonkeyPatch) -> None:
    """Workers that have begun a visit go on fetching."""
    patch.setattr(CommandRunner, "_exclude_may_run", lambda self, run: True)


def _scopes_applied_at_once(patch: pytest.MonkeyPatch) -> None:
    async def in_force(self: CommandRunner, run: Any) -> bool:
        return True

    patch.setattr(CommandRunner, "_rescope_may_run", in_force)


def _verdicts(patch: pytest.MonkeyPatch, changed: Callable[[PageVerdict], PageVerdict]) -> None:
    patch.setattr(outcome_facts, "judge_page", lambda *args: changed(judge_page(*args)))


def _unchanged_pages_done(patch: pytest.MonkeyPatch) -> None:
    """A page that did not change has no due time any more."""

    def done(verdict: PageVerdict) -> PageVerdict:
        if verdict.finding is not Finding.UNCHANGED:
            return verdict
        return replace(verdict, state=UrlState.DONE, rank=0)

    _verdicts(patch, done)


def _changes_taken_for_new(patch: pytest.MonkeyPatch) -> None:
    def new(verdict: PageVerdict) -> PageVerdict:
        return replace(verdict, finding=Finding.NEW) if verdict.finding is Finding.CHANGED else verdict

    _verdicts(patch, new)


def _pages_skipped(patch: pytest.MonkeyPatch) -> None:
    """A chunk goes on behind a page that it did not read."""
    pages_of = rediscover._pages

    def skipping(connection: Any, command: Any, rows: Any) -> Any:
        return pages_of(connection, command, rows[:-1] if len(rows) > 1 else rows)

    patch.setattr(rediscover, "_pages", skipping)


def _position_lost_by_a_new_owner(patch: pytest.MonkeyPatch) -> None:
    """It takes a command that has begun for one at its end."""
    in_progress = commands.in_progress

    def at_the_end(connection: Any, partition: Any) -> Any:
        end = behind_host(HostId(1 << 30))
        return tuple(
            replace(run, after=end) if run.kind == CommandKind.REDISCOVER else run
            for run in in_progress(connection, partition)
        )

    patch.setattr(leasing, "in_progress", at_the_end)


def _position_ahead_of_the_links(patch: pytest.MonkeyPatch) -> None:
    """A chunk is committed although the broker has not acknowledged its links."""
    publish = Rediscovery._publish

    async def unanswered(self: Rediscovery, judge: Any, links: Any) -> None:
        with suppress(Transient):
            await publish(self, judge, links)

    patch.setattr(Rediscovery, "_publish", unanswered)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "break_rule",
    [_pages_skipped, _position_lost_by_a_new_owner, _position_ahead_of_the_links],
)
def test_wider_scope_without_one_of_its_rules_is_caught(
    monkeypatch: pytest.MonkeyPatch, break_rule: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_rule(monkeypatch)
    with pytest.raises(AssertionError, match=r"t=\d"):
        run_state_machine_as_test(
            WiderScopeProtocol, settings=profile(_FEW, derandomize=True, phases=(Phase.generate,))
        )


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "break_rule",
    [
        # One or two minutes of walks: test_exclusions and test_rescopes bring about both moments in any run.
        pytest.param(_exclusions_applied_at_once, marks=pytest.mark.slow),
        pytest.param(_scopes_applied_at_once, marks=pytest.mark.slow),
        _unchanged_pages_done,
        _changes_taken_for_new,
    ],
)
def test_recrawl_without_one_of_its_rules_is_caught(
    monkeypatch: pytest.MonkeyPatch, break_rule: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_rule(monkeypatch)
    with pytest.raises(AssertionError, match=r"t=\d"):
        run_state_machine_as_test(RecrawlProtocol, settings=profile(_FEW, derandomize=True, phases=(Phase.generate,)))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "break_rule",
    [
        _no_fence,
        _no_patience_after_takeover,
        _no_rest,
        _repeats_counted,
        # A minute of walks until one meets the moment, which test_races brings about in any run.
        pytest.param(_finished_at_first_sight, marks=pytest.mark.slow),
        _outcomes_before_discoveries,
        _outcomes_before_items,
        # A minute of walks, too: test_present_state brings about each case in any run.
        pytest.param(_blocks_and_delays_of_the_lease, marks=pytest.mark.slow),
        _no_search_for_strays,
        # A minute of walks, too: test_unreadable_shards brings it about in any run.
        pytest.param(_unreadable_shards_freed_at_once, marks=pytest.mark.slow),
    ],
)
def test_a_protocol_without_one_of_its_rules_is_caught(
    monkeypatch: pytest.MonkeyPatch, break_rule: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_rule(monkeypatch)
    with pytest.raises(AssertionError, match=r"t=\d"):
        run_state_machine_as_test(Protocol, settings=profile(_FEW, derandomize=True, phases=(Phase.generate,)))


@pytest.mark.parametrize("heedless", [False, True])
def test_a_worker_that_ignores_the_end_of_its_grant_is_caught(database: Database, heedless: bool) -> None:
    cluster = Cluster(database, Site(tuple(Node(0, Kind.PAGE) for _ in range(8)), seeds=tuple(range(8))))
    try:
        cluster.start_owner()
        sleeper = cluster.start_worker(heedless=heedless)
        cluster.create_crawl()
        cluster.world.run_for(3.0)
        cluster.start_worker()
        sleeper.process.stopped = True
        cluster.world.run_for(33.0)
        sleeper.process.stopped = False
        cluster.world.run_for(10.0)
        assert any("impolite" in text for text in cluster.world.violations) == heedless
    finally:
        cluster.close()


def test_a_host_that_is_left_alone_for_long_is_no_stall(database: Database) -> None:
    """Page after page is busy at first: the host is left alone for longer each time, beyond the model's patience."""
    busy = tuple(range(1, 30))
    site = Site((Node(0, Kind.PAGE, links=busy), *(Node(0, Kind.BUSY) for _ in busy)), seeds=(0,), delay_s=1.0)
    cluster = Cluster(database, site)
    try:
        cluster.start_owner()
        cluster.start_worker()
        cluster.create_crawl()
        begun = cluster.world.now
        cluster.settle()
        cluster.assert_kept()
        assert cluster.world.now - begun > LONGEST_S
    finally:
        cluster.close()
