"""An exclusion that is applied holds even for workers that know nothing of it, whatever happens to owners."""

import random

import pytest

from shared.domain.crawl.exclusions import OWNER
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import UrlState
from shared.domain.ids import CrawlId
from shared.wire.messages import Extend, Go, Gone
from tests.support.simulation.cluster import Cluster, Site
from tests.support.simulation.manual_worker import ManualWorker, Start, leases, shard_of
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node

HOST = "h0.test"
OUT = (UrlState.EXCLUDED, OWNER)
WALKS = 30


def applied(cluster: Cluster, command: str) -> bool:
    return bool(cluster.database.rows("SELECT 1 FROM commands WHERE id = :id", id=command))


def states(hand: ManualWorker) -> list[tuple[int, str | None]]:
    return sorted(hand.states().values())


def test_exclusion_stops_the_visit_and_is_applied_behind_its_end(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    command = cluster.exclude(HOST)
    cluster.world.run_for(5.0)
    assert not applied(cluster, command), "a worker may still send"
    answer = hand.wait(hand.ask(shard.lease, Extend(shard.lease, grant, hand.process.name)))
    assert isinstance(answer, Go)
    assert answer.stop
    hand.report(shard, grant, {shard.urls[0].url: 200}, final=True, left=tuple(url.url for url in shard.urls[1:]))
    cluster.world.run_for(5.0)
    assert applied(cluster, command)
    assert states(hand) == [(UrlState.DONE, None), OUT, OUT]
    assert leases(cluster) == []
    cluster.assert_kept()


def test_exclusion_waits_for_the_end_of_a_silent_workers_grant(start: Start) -> None:
    cluster, hand = start(3)
    message, shard = hand.pull()
    hand.go(shard, 1)
    command = cluster.exclude(HOST)
    cluster.world.run_for(25.0)
    assert not applied(cluster, command)
    cluster.world.run_for(10.0)
    assert applied(cluster, command)
    assert isinstance(hand.begin(shard, 2), Gone)
    hand.wait(message.ack())
    hand.heard()
    cluster.world.run_for(5.0)
    assert states(hand) == [OUT, OUT, OUT]
    cluster.assert_kept()


def test_shard_that_no_worker_began_is_excluded_at_once(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    command = cluster.exclude(HOST)
    cluster.world.run_for(1.0)
    assert applied(cluster, command)
    assert (states(hand), leases(cluster)) == ([OUT, OUT, OUT], [])
    assert isinstance(hand.begin(shard, 1), Gone)
    cluster.assert_kept()


def test_prefix_excludes_its_urls_and_the_others_are_leased_again(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    cluster.exclude(f"http://{HOST}/1")
    cluster.world.run_for(1.0)
    assert states(hand) == [(UrlState.LEASED, None), (UrlState.LEASED, None), OUT]
    assert len(hand.go(shard, 1).remaining) == 2
    cluster.assert_kept()


def test_command_waits_until_its_owner_follows_the_exclusions(start: Start) -> None:
    """Otherwise links that are found behind it would be queued."""
    cluster, hand = start(3)
    args = {"target": HOST, "revision": 1, "withdraw": False}
    command = cluster.command(CommandKind.EXCLUDE, CrawlId(0), **args)
    cluster.world.run_for(5.0)
    assert not applied(cluster, command)
    cluster.in_force(HOST)
    cluster.world.run_for(2.0)
    assert applied(cluster, command)
    hand.discover(cluster.crawl_id, {f"http://{HOST}/new": 1})
    assert hand.states()[f"http://{HOST}/new"] == OUT
    cluster.assert_kept()


def test_found_link_is_queued_again_once_the_exclusion_is_over(start: Start) -> None:
    cluster, hand = start(2)
    cluster.exclude(HOST)
    cluster.world.run_for(1.0)
    assert states(hand) == [OUT, OUT]
    cluster.in_force()
    hand.discover(cluster.crawl_id, {f"http://{HOST}/1": 1})
    assert hand.states()[f"http://{HOST}/1"][0] == UrlState.QUEUED
    assert hand.states()[f"http://{HOST}/0"] == OUT
    cluster.assert_kept()


@pytest.mark.parametrize("seed", range(WALKS))
def test_no_request_follows_an_applied_exclusion(database: Database, seed: int) -> None:
    """Two workers that never learn of it; owners and workers are killed at any time."""
    draw = random.Random(seed)
    trap = [Node(0, Kind.PAGE, tuple(range(8, 30))) for _ in range(22)]
    pages = [Node(1, Kind.PAGE, (n + 1, 8 + n)) for n in range(8)]
    cluster = Cluster(database, Site((*pages, *trap), seeds=(0, 8), delay_s=draw.choice((0.0, 0.5, 1.0))))
    try:
        cluster.start_owner()
        cluster.world.run_for(0.2)
        cluster.create_crawl()
        for _ in range(2):
            cluster.start_worker(batch=draw.choice((1, 3)))
        cluster.world.run_for(draw.uniform(0.0, 12.0))
        command = cluster.exclude(draw.choice((HOST, "test", f"http://{HOST}/")))
        for _ in range(draw.randrange(3)):
            cluster.world.run_for(draw.uniform(0.0, 6.0))
            cluster.world.kill(draw.choice(cluster.processes()))
            cluster.start_owner(loads_after_s=draw.choice((0.0, 1.0)))
            cluster.start_worker()
        until = cluster.world.now + 200.0
        while not applied(cluster, command) and cluster.world.now < until:
            cluster.world.run_for(0.2)
        assert applied(cluster, command)
        at = cluster.world.now
        cluster.world.run_for(60.0)
        late = [request for request in cluster.web.seen.get(HOST, ()) if request.start > at]
        assert late == []
        assert not cluster.database.rows(
            "SELECT 1 FROM urls u JOIN hosts h USING (host_id) WHERE h.host = :host AND u.state IN (0, 1, 2)", host=HOST
        )
        cluster.judge.links_balanced(cluster.crawl_id)
        cluster.assert_kept()
    finally:
        cluster.close()
