"""Commands that take many transactions: taken over, overtaken, and in order with outcomes that come meanwhile."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from api.crawls.finished_check import finished
from api.frontier.ingest import Ingest
from shared.domain.frontier.commands import SEED_DELETED, CommandKind
from shared.domain.frontier.states import UrlState
from shared.domain.web.url import fingerprint
from shared.ports.broker import Delivered
from tests.support.simulation.cluster import Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start

QUEUED, LEASED, FAILED, EXCLUDED = UrlState.QUEUED, UrlState.LEASED, UrlState.FAILED, UrlState.EXCLUDED
N = 9


def url(i: int) -> str:
    return f"http://h0.test/{i}"


def by_fingerprint(n: int) -> list[str]:
    """The seeds in the order in which a command walks over them."""
    return sorted(map(url, range(n)), key=fingerprint)


def progress(cluster: Cluster) -> list[tuple[str, bool]]:
    """The commands in progress, and whether a chunk of each is applied."""
    rows = cluster.database.rows("SELECT kind, after FROM commands_in_progress ORDER BY number")
    return [(kind, after != "0") for kind, after in rows]


def applied(cluster: Cluster) -> list[str]:
    return [kind for (kind,) in cluster.database.rows("SELECT kind FROM commands ORDER BY kind")]


def step_until(cluster: Cluster, done: Callable[[], bool]) -> list[str]:
    """Let everything on by one step at a time, the oldest first; what was done until then."""
    steps: list[str] = []
    for _ in range(2000):
        cluster.world.loop.pump()
        if done():
            return steps
        if not cluster.world.gates:
            cluster.world.advance(0.01)
            continue
        steps.append(cluster.world.gates[0].what)
        cluster.world.open_gate(0)
    raise AssertionError("it does not come to that")


def in_the_middle(cluster: Cluster, kind: CommandKind) -> None:
    """Run until the command has applied a chunk, and is not applied."""
    step_until(cluster, lambda: progress(cluster) == [(kind, True)])
    assert kind not in applied(cluster)


def all_failed(start: Start) -> tuple[Cluster, ManualWorker]:
    """A crawl of N seeds, each of which has failed."""
    cluster, hand = start(N)
    _, shard = hand.pull()
    hand.report(shard, hand.go(shard, 1).grant, {url(i): 404 for i in range(N)}, final=True)
    assert {state for state, _ in hand.states().values()} == {FAILED}
    return cluster, hand


def test_command_goes_on_where_a_killed_owner_was(start: Start) -> None:
    cluster, hand = all_failed(start)
    cluster.command(CommandKind.RETRY_FAILED)
    in_the_middle(cluster, CommandKind.RETRY_FAILED)
    retried = [each for each, (state, _) in hand.states().items() if state != FAILED]
    assert 0 < len(retried) < N
    cluster.world.kill(cluster.owners[0].process)
    assert progress(cluster) == [("retry_failed", True)]
    cluster.start_owner()
    cluster.world.run_for(1.0)
    assert (progress(cluster), applied(cluster)) == ([], ["retry_failed"])
    assert {state for state, _ in hand.states().values()} <= {QUEUED, LEASED}
    cluster.assert_kept()


def test_deletion_ends_the_commands_of_its_crawl(start: Start) -> None:
    cluster, _ = all_failed(start)
    cluster.command(CommandKind.RETRY_FAILED)
    in_the_middle(cluster, CommandKind.RETRY_FAILED)
    cluster.delete_crawl()
    step_until(cluster, lambda: "retry_failed" in applied(cluster))
    assert progress(cluster) == [("delete", False)], "one transaction ends the one and begins the other"
    cluster.command(CommandKind.RETRY_FAILED)
    step_until(cluster, lambda: applied(cluster).count("retry_failed") == 2)
    assert "delete" not in applied(cluster), "what comes behind a deletion has nothing to do"
    cluster.world.run_for(2.0)
    assert progress(cluster) == []
    cluster.assert_kept()


def test_url_that_fails_behind_a_retry_stays_failed(start: Start) -> None:
    cluster, hand = start(N)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    *others, last = by_fingerprint(N)
    hand.report(shard, grant, dict.fromkeys(others, 404))
    cluster.command(CommandKind.RETRY_FAILED)
    in_the_middle(cluster, CommandKind.RETRY_FAILED)
    hand.report(shard, grant, {last: 404}, apply=False)
    step_until(cluster, lambda: hand.states()[last][0] == FAILED)
    assert progress(cluster) == [("retry_failed", True)], "the outcome overtook the rest of the command"
    cluster.world.run_for(1.0)
    assert applied(cluster) == ["retry_failed"]
    assert [each for each, (state, _) in hand.states().items() if state == FAILED] == [last]
    cluster.command(CommandKind.RETRY_FAILED)
    cluster.world.run_for(1.0)
    assert hand.states()[last][0] != FAILED, "a later command means it"
    cluster.assert_kept()


def test_seed_given_back_or_added_behind_a_deletion_stays(start: Start) -> None:
    cluster, hand = start(15)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    out = sorted((each.url for each in shard.urls), key=fingerprint)
    cluster.judge.taken_back[cluster.crawl_id] = set(map(url, range(15)))
    cluster.command(CommandKind.DELETE_SEEDS, all=True, places=[])
    in_the_middle(cluster, CommandKind.DELETE_SEEDS)
    hand.report(shard, grant, {}, left=(out[-1],), apply=False)
    added = max((f"http://h0.test/{i}" for i in range(100, 120)), key=fingerprint)
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, {added: 0}))
    step_until(cluster, lambda: hand.states()[out[-1]][0] == QUEUED and added in hand.states())
    assert progress(cluster) == [("delete_seeds", True)]
    cluster.world.run_for(1.0)
    assert applied(cluster) == ["delete_seeds"]
    states = hand.states()
    ended = {each for each, end in states.items() if end == (EXCLUDED, SEED_DELETED)}
    assert ended == set(map(url, range(15))) - set(out)
    assert added in states
    cluster.assert_kept()


def test_seed_added_behind_a_deletion_that_is_not_read_yet_stays(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds of one batch are before and behind the deletion, and the owner is behind with outcomes."""
    cluster, hand = start(N)
    cluster.judge.taken_back[cluster.crawl_id] = {*map(url, range(N)), url(50)}
    held, apply = asyncio.Event(), Ingest.outcomes

    async def later(self: Ingest, reports: Sequence[Delivered]) -> None:
        await held.wait()
        await apply(self, reports)

    monkeypatch.setattr(Ingest, "outcomes", later)
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, {url(50): 0}))
    cluster.command(CommandKind.DELETE_SEEDS, all=True, places=[])
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, {url(51): 0}))
    cluster.world.run_for(5.0)
    assert applied(cluster) == []
    held.set()
    cluster.world.run_for(5.0)
    assert applied(cluster) == ["delete_seeds"]
    states = hand.states()
    assert states[url(50)] == (EXCLUDED, SEED_DELETED)
    assert states[url(51)][0] in (QUEUED, LEASED)
    cluster.assert_kept()


def test_seed_that_a_page_links_to_behind_a_deletion_is_deleted(start: Start) -> None:
    """Applied in their order, the link meets an excluded seed and changes nothing of it."""
    cluster, hand = start(15)
    _, shard = hand.pull()
    hand.go(shard, 1)
    queued = sorted(set(map(url, range(15))) - {each.url for each in shard.urls}, key=fingerprint)
    cluster.judge.taken_back[cluster.crawl_id] = set(map(url, range(15)))
    cluster.command(CommandKind.DELETE_SEEDS, all=True, places=[])
    in_the_middle(cluster, CommandKind.DELETE_SEEDS)
    last = queued[-1]
    assert hand.states()[last][0] == QUEUED
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, {last: 1}, via=url(99), host_id=shard.host_id))
    discovered = cluster.broker.sequence
    step_until(cluster, lambda: cluster.judge.position()[1] == discovered)
    assert progress(cluster) == [("delete_seeds", True)], "the link is applied behind the command"
    cluster.world.run_for(1.0)
    assert hand.states()[last] == (EXCLUDED, SEED_DELETED)
    cluster.assert_kept()


def test_outcome_of_a_crawl_that_is_being_deleted_is_stale(start: Start) -> None:
    """Also where another owner goes on with the deletion, and finds the lease."""
    cluster, hand = start(N)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    cluster.delete_crawl()
    in_the_middle(cluster, CommandKind.DELETE)
    hand.report(shard, grant, {url(0): 200}, apply=False)
    step_until(cluster, lambda: cluster.judge.position()[0] == cluster.broker.sequence)
    assert progress(cluster) == [("delete", True)]
    cluster.world.kill(cluster.owners[0].process)
    cluster.start_owner()
    hand.report(shard, grant, {url(i): 200 for i in range(1, N)}, final=True)
    cluster.world.run_for(100.0)
    assert applied(cluster) == ["delete"]
    for table in ("urls", "queues", "fetches", "leases", "crawl_counters"):
        assert cluster.database.rows(f"SELECT 1 FROM {table}") == [], table
    cluster.assert_kept()


@pytest.mark.parametrize("kind", [CommandKind.RETRY_FAILED, CommandKind.DELETE])
def test_outcome_of_another_crawl_waits_for_two_chunks_at_most(start: Start, kind: CommandKind) -> None:
    cluster, hand = all_failed(start)
    first, other = cluster.crawl_id, cluster.create_crawl("other")
    _, shard = hand.pull()
    assert shard.crawl == other
    grant = hand.go(shard, 1).grant
    cluster.crawl_id = first
    cluster.command(kind)
    in_the_middle(cluster, kind)
    hand.report(shard, grant, {shard.urls[0].url: 200}, apply=False)
    sequence = cluster.broker.sequence
    steps = step_until(cluster, lambda: cluster.judge.position()[0] == sequence)
    assert progress(cluster) == [(kind, True)], "the command is not applied yet"
    assert steps.count("sql.write") <= 3, "its own transaction, and two chunks"


def test_finished_check_counts_a_command_in_progress(start: Start) -> None:
    cluster, _ = all_failed(start)
    sim = cluster.owners[0]
    crawl = sim.crawls.get(cluster.crawl_id)
    assert crawl is not None

    def check() -> str | None:
        return cluster.world.do(cluster.operator, finished(cluster.finished_check(), crawl, [sim.owner]))

    cluster.world.run_for(1.0)
    assert check() == "complete"
    cluster.command(CommandKind.RETRY_FAILED)
    own = sim.owner.ownership
    assert own is not None
    step_until(cluster, lambda: own.position.outcome_seq == cluster.broker.sequence)
    assert progress(cluster) == [("retry_failed", False)]
    assert cluster.judge.position()[0] == cluster.broker.sequence, "its message is applied"
    assert check() is None


def test_command_that_waits_for_discoveries_blocks_no_outcome(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, hand = start(N)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    held = asyncio.Event()

    async def later(self: Ingest, reports: object) -> None:
        await held.wait()

    monkeypatch.setattr(Ingest, "discoveries", later)
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, {f"http://h0.test/{N}": 0}))
    cluster.judge.taken_back[cluster.crawl_id] = set(map(url, range(N + 1)))
    cluster.command(CommandKind.DELETE_SEEDS, all=True, places=[])
    hand.report(shard, grant, {url(0): 404})
    cluster.world.run_for(5.0)
    assert hand.states()[url(0)][0] == FAILED, "the outcome is behind the command, and applied"
    assert progress(cluster) == [("delete_seeds", False)], "it waits for the seed that was accepted before it"


def test_paused_crawl_sends_nothing_out_while_its_retry_goes_on(start: Start) -> None:
    """What an operator asks of the crawl itself waits for none of its commands."""
    cluster, hand = all_failed(start)
    cluster.command(CommandKind.RETRY_FAILED)
    in_the_middle(cluster, CommandKind.RETRY_FAILED)
    crawl = cluster.owners[0].crawls.get(cluster.crawl_id)
    assert crawl is not None
    crawl.dispatching = False
    hand.heard()
    cluster.world.run_for(2.0)
    assert applied(cluster) == ["retry_failed"]
    assert {state for state, _ in hand.states().values()} == {QUEUED}
    cluster.assert_kept()
