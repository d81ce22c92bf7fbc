"""An owner that starts before its master has loaded the crawls decides as if they were loaded (architecture §3.11)."""

import asyncio

import pytest

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from shared.domain.crawl.spec import CrawlSpec, Seed, encode_spec
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.ids import CrawlId
from shared.wire.messages import Begin, Extend, Go, Gone, UrlShard, WorkerStatus, decode_shard
from tests.support.simulation.cluster import Cluster, SimOwner
from tests.support.simulation.manual_worker import ManualWorker, Start, shard_of
from tests.support.simulation.world import EPOCH_MS

LATE_S = 60.0
"""Longer than any test here: the master never loads the crawls in time."""

MANY = 1000


def url(i: int) -> str:
    return f"http://h0.test/{i}"


def successor(cluster: Cluster) -> SimOwner:
    """The owner is killed, and another one starts whose master has loaded no crawl."""
    cluster.world.kill(cluster.owners[-1].process)
    sim = cluster.start_owner(loads_after_s=LATE_S)
    cluster.world.run_for(1.0)
    assert list(sim.crawls) == []
    return sim


def tally(sim: SimOwner) -> dict[str, int]:
    assert sim.owner.writer is not None
    return +sim.owner.writer.stats.discarded


def test_outcomes_of_a_crawl_not_loaded_yet_settle_their_urls(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    sim = successor(cluster)
    hand.report(shard, grant, {url(0): 200, url(1): 404, url(2): 503}, final=True)
    assert {key: state for key, (state, _) in hand.states().items()} == {
        url(0): UrlState.DONE, url(1): UrlState.FAILED, url(2): UrlState.WAITING,
    }  # fmt: skip
    assert tally(sim) == {}
    cluster.assert_kept()


def test_a_visit_goes_on_under_an_owner_without_its_crawl(start: Start) -> None:
    """A worker that gets `gone` cuts what is in flight: its host is then asked twice."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    successor(cluster)
    extend = Extend(shard.lease, grant, hand.process.name)
    assert isinstance(hand.wait(hand.ask(shard.lease, extend)), Go)


def test_a_visit_ends_when_its_crawl_has_ended_or_is_gone(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    sim = successor(cluster)
    extend = Extend(shard.lease, grant, hand.process.name)
    for state in (CrawlState.FINISHED, CrawlState.DELETED):
        cluster.world.do(cluster.operator, cluster.store.set_state(cluster.crawl_id, state, "over", EPOCH_MS))
        sim.crawls.forget_looked_up()
        assert isinstance(hand.wait(hand.ask(shard.lease, extend)), Gone), state


def test_outcomes_of_a_deleted_crawl_count_as_discarded(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    sim = successor(cluster)
    state = CrawlState.DELETED
    cluster.world.do(cluster.operator, cluster.store.set_state(cluster.crawl_id, state, None, EPOCH_MS))
    sim.crawls.forget_looked_up()
    hand.report(shard, grant, {url(0): 200})
    assert tally(sim) == {"deleted": 1}
    hand.report(shard, grant, {url(0): 200})
    assert tally(sim) == {"deleted": 2}
    cluster.assert_kept()


def test_a_repeated_outcome_counts_as_a_late_discarded_fetch(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    sim = successor(cluster)
    hand.report(shard, grant, {url(0): 200})
    hand.report(shard, grant, {url(0): 200})
    assert tally(sim) == {"late": 1}
    assert cluster.database.rows("SELECT stale FROM crawl_counters") == [(1,)]


def test_nearer_links_of_a_crawl_not_loaded_yet_queue_the_page_again(start: Start) -> None:
    cluster, hand = start(1, max_depth=3)
    shard = shard_of(hand)
    hand.discover(shard.crawl, {url(5): 3})
    hand.report(shard, hand.go(shard, 1).grant, {url(0): 200}, final=True)
    cluster.world.run_for(2.0)
    shard = shard_of(hand)
    hand.report(shard, hand.go(shard, 1).grant, {url(5): 200}, final=True)
    successor(cluster)
    hand.discover(shard.crawl, {url(5): 1})
    assert hand.states()[url(5)] == (UrlState.QUEUED, "depth")
    cluster.assert_kept()


def test_a_shard_waits_for_its_worker_while_its_crawl_is_not_loaded(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    successor(cluster)
    cluster.world.run_for(30.0)
    assert [row[0] for row in cluster.database.rows("SELECT lease_id FROM leases")] == [shard.lease]
    assert isinstance(hand.begin(shard, 2), Go)


def test_what_is_known_of_a_host_survives_reports_of_a_crawl_not_loaded(start: Start) -> None:
    """The host came into memory without its facts, and its next outcome wrote the lack of them back."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    cluster.database.write(lambda c: c.exec_driver_sql("UPDATE hosts SET crawl_delay_ms = 7000, latency_ms = 80"))
    sim = successor(cluster)
    hand.report(shard, grant, {url(0): 200}, final=True)
    assert cluster.database.rows("SELECT crawl_delay_ms, latency_ms FROM hosts") == [(7000, 80)]
    assert sim.owner.ownership is not None
    host = sim.owner.ownership.hosts.host_named("h0.test")
    assert host is not None
    assert (host.last_delay_s, host.facts.health) == (7.0, HostHealth(recent=0b10))


@pytest.mark.long
def test_reports_of_a_thousand_crawls_not_loaded_yet_discard_no_fetch(start: Start) -> None:
    cluster, hand = start(1)
    crawls = [_another(cluster, hand, number) for number in range(MANY)]
    sim = cluster.owners[0]
    for _ in range(10):
        sim.room.worker_reported(WorkerStatus(hand.process.name, "default", 4 * MANY, 0), cluster.world.now)
        cluster.world.run_for(1.0)
    shards = [decode_shard(visit.data) for visit in cluster.broker.visits.values()]
    assert {shard.crawl for shard in shards} >= set(crawls)
    grants = hand.wait(_begun(hand, shards))
    sim = successor(cluster)
    before = cluster.database.version
    for shard, grant in zip(shards, grants, strict=True):
        hand.report(shard, grant, {shard.urls[0].url: 200}, final=True, apply=False)
    cluster.world.run_for(2.0)
    assert cluster.database.rows("SELECT state, count(*) FROM urls GROUP BY 1") == [(UrlState.DONE, MANY + 1)]
    assert tally(sim) == {}
    assert cluster.database.version - before < MANY / 10, "a look-up is for a whole batch"
    cluster.assert_kept()


def _another(cluster: Cluster, hand: ManualWorker, number: int) -> CrawlId:
    """A crawl of one page on a host of its own, loaded by the first owner's master alone."""
    spec = CrawlSpec(seeds=(Seed(url=f"http://w{number}.test/"),))
    stored = cluster.store.put_crawl(f"crawl{number}", encode_spec(spec).decode(), EPOCH_MS)
    row, _ = cluster.world.do(cluster.operator, stored)
    allowance = BudgetReservation(None, None, {})
    cluster.owners[0].crawls.put(
        DispatchCrawl(row.crawl_id, row.name, row.revision, spec, CrawlState.RUNNING, allowance)
    )
    hand.discover(row.crawl_id, {f"http://w{number}.test/": 0})
    return row.crawl_id


async def _begun(hand: ManualWorker, shards: list[UrlShard]) -> list[int]:
    """Begin all, and return their grants' numbers."""
    answers = await asyncio.gather(
        *(hand.ask(shard.lease, Begin(shard.lease, 1, hand.process.name)) for shard in shards)
    )
    assert all(isinstance(answer, Go) for answer in answers)
    return [answer.grant for answer in answers if isinstance(answer, Go)]
