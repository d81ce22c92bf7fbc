"""What changes around an owner while it loads its partition: its keeper tells only the owners that have loaded."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace

from msgspec import structs

from api.crawls.active_crawls import ActiveCrawlSync
from api.crawls.reconcile import LoadCrawl
from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.grants import GrantService
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition
from shared.wire.messages import Begin, Wait, decode_answer, encode
from tests.support.simulation.cluster import SETTINGS, Cluster, SimOwner
from tests.support.simulation.manual_worker import Start, shard_of
from tests.support.simulation.store import store_of


def test_crawl_taken_up_while_an_owner_loads_is_dispatched(start: Start) -> None:
    cluster, hand = start(1)
    sim, crawl = _loading(cluster)
    assert sim.owner.ownership is None
    sim.crawls.put(crawl)
    ActiveCrawlSync(sim.crawls, [sim.owner], cluster.store)._mark_queues_incomplete(crawl.crawl_id)  # type: ignore[arg-type]
    cluster.world.run_for(2.0)
    assert shard_of(hand).crawl == crawl.crawl_id


def test_limits_tuned_while_an_owner_loads_hold(start: Start) -> None:
    cluster, _ = start(1)
    sim, _ = _loading(cluster)
    sim.owner.tune(structs.replace(SETTINGS, grant_s=7.0))
    cluster.world.run_for(2.0)
    own = sim.owner.ownership
    assert own is not None
    assert (own.settings.grant_s, own.leases.grant_s) == (7.0, 7.0)


def _loading(cluster: Cluster) -> tuple[SimOwner, DispatchCrawl]:
    """An owner that knows another crawl only, and reads what that one has spent; the crawl that it does not know."""
    cluster.world.kill(cluster.owners[0].process)
    sim = cluster.start_owner()
    crawl = sim.crawls.get(cluster.crawl_id)
    assert crawl is not None
    sim.crawls.remove(crawl.crawl_id)
    sim.crawls.put(replace(crawl, crawl_id=CrawlId(99), allowance=BudgetReservation(None, None, {})))
    read = sim.store.counters_in
    reading: list[CrawlId] = []

    async def noted(crawl_ids: Collection[CrawlId], partitions: Collection[Partition]) -> Mapping[CrawlId, Counters]:
        reading.extend(crawl_ids)
        return await read(crawl_ids, partitions)

    sim.store.counters_in = noted  # type: ignore[method-assign]  # to stop it there
    for _ in range(100):
        cluster.world.loop.pump()
        if reading:
            return sim, crawl
        gate = next(gate for gate in cluster.world.gates if gate.process is sim.process)
        cluster.world.gates.remove(gate)
        gate.opened.set_result(None)
    raise AssertionError("it never reads what was spent")


def test_outcome_while_a_crawl_is_loaded_again_counts_once(start: Start) -> None:
    """A master takes a crawl up again while outcomes of its leases arrive, in 100 drawn orders of all steps."""
    for seed in range(100):
        draw = random.Random(seed)
        cluster, hand = start(3)
        [sim] = cluster.owners
        shard = shard_of(hand)
        grant = hand.go(shard, 1, "first").grant
        [row] = cluster.world.do(cluster.operator, cluster.store.crawl_rows([cluster.crawl_id]))
        sim.crawls.remove(cluster.crawl_id)
        for url, status in zip(shard.urls, (200, 404, 404), strict=True):
            hand.report(shard, grant, {url.url: status}, apply=False)
        control = cluster.world.process("control")
        store = store_of(cluster.world, control, cluster.database)
        sync = ActiveCrawlSync(sim.crawls, [sim.owner], store)  # type: ignore[arg-type]
        loading = cluster.world.spawn(control, sync.apply([LoadCrawl(row)]), "load")
        while not loading.done():
            cluster.world.loop.pump()
            if gates := cluster.world.gates:
                others = [gate for gate in gates if gate.process is not control]
                gate = draw.choice(others if others and draw.random() < 0.8 else gates)
                gates.remove(gate)
                gate.opened.set_result(None)
        cluster.world.run_for(2.0)
        crawl = sim.crawls.get(cluster.crawl_id)
        assert crawl is not None
        crawl.allowance.max_pages = 1_000
        [spent] = cluster.database.spent(cluster.crawl_id).values()
        assert (spent.pages, spent.leased) == (1, 0)
        assert crawl.allowance.remaining(1_000) == 999, f"seed {seed}"
        assert cluster.world.violations == []


def test_question_that_waited_for_outcomes_of_an_earlier_grant_waits_again(start: Start) -> None:
    """The outcomes of the grant that has run out since are not applied yet, so what is left is not known."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    hand.go(shard, 1, "first")
    cluster.world.run_for(31.0)
    writer = cluster.owners[0].owner.writer
    assert writer is not None
    held = writer.own.leases.get(shard.lease)  # type: ignore[arg-type]
    assert held is not None
    granting = GrantService(writer, cluster.broker.client(cluster.owners[0].process))
    opened = cluster.world.loop.create_future()

    async def busy() -> None:
        async with writer.writing():
            await opened

    cluster.world.spawn(cluster.owners[0].process, busy(), "busy")
    question = encode(Begin(shard.lease, 2, "second"))
    asked = cluster.world.spawn(cluster.owners[0].process, granting.answer(question), "asked")
    cluster.world.run_for(1.0)
    writer.own.leases.granted(held, 3, "third", cluster.world.now)
    cluster.world.run_for(31.0)
    opened.set_result(None)
    cluster.world.run_for(1.0)
    data = asked.result()
    assert data is not None
    assert isinstance(decode_answer(data), Wait)
    assert {state for state, _ in hand.states().values()} == {UrlState.LEASED}
