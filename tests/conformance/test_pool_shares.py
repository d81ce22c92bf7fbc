"""Crawls share a pool by weight, through the real owner, on simulated time: a broad crawl starves no other."""

import asyncio
from collections import Counter

import msgspec
import pytest

from api.crawls.seed_messages import publish_seeds
from shared.domain.crawl.spec import CrawlSpec, Seed, encode_spec
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId
from tests.support.simulation.cluster import SETTINGS, Cluster, Site
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node
from tests.support.simulation.worker import CrawlView
from tests.support.simulation.world import EPOCH_MS

HOSTS, PAGES = 60, 30
BROAD_HOSTS = 300
WORKERS = 4
NARROW_S, BROAD_S = 1.0, 20.0


class Weighted(Cluster):
    """A cluster with crawls of several weights and delays."""

    weight, delay_s = 1, NARROW_S

    def spec(self) -> CrawlSpec:
        spec = super().spec()
        politeness = msgspec.structs.replace(spec.politeness, delay_s=self.delay_s)
        return msgspec.structs.replace(spec, weight=self.weight, politeness=politeness)

    def create(self, name: str, weight: int, delay_s: float, nodes: range) -> CrawlId:
        """Declare a crawl, publish its seeds, and start it."""
        self.weight, self.delay_s = weight, delay_s
        row, _ = self.world.do(self.operator, self.store.put_crawl(name, encode_spec(self.spec()).decode(), EPOCH_MS))
        self.views[row.crawl_id] = CrawlView(None, delay_s)
        for sim in self.owners:
            sim.crawls.put(self._active(sim, row))
        seeds = [Seed(url=self.web.url(i)) for i in nodes]
        client = self.broker.client(self.operator)
        self.world.do(self.operator, publish_seeds(client, row.crawl_id, row.revision, seeds, SETTINGS.partitions))
        self.world.do(self.operator, self.store.set_state(row.crawl_id, CrawlState.RUNNING, None, EPOCH_MS))
        return row.crawl_id

    async def tell(self) -> None:
        """Workers tell their load soon after it changed."""
        while True:
            for worker in self.workers:
                self._heard(worker)
            await asyncio.sleep(0.05)

    def begun(self) -> Counter[CrawlId]:
        """Visits under way, by crawl."""
        own = self.owners[0].owner.ownership
        assert own is not None
        return Counter(held.row.crawl_id for held in own.leases if held.live(self.world.now))


@pytest.mark.long
@pytest.mark.parametrize(("weight", "part"), [(1, 0.5), (3, 0.75)])
def test_crawl_beside_a_broad_one_gets_its_share_of_the_visits(database: Database, weight: int, part: float) -> None:
    nodes = [Node(host, Kind.PAGE) for host in range(HOSTS) for _ in range(PAGES)]
    nodes += [Node(HOSTS + host, Kind.PAGE) for host in range(BROAD_HOSTS) for _ in range(8)]
    cluster = Weighted(database, Site(tuple(nodes)))
    try:
        cluster.start_owner()
        for _ in range(WORKERS):
            cluster.start_worker()
        cluster.world.spawn(cluster.operator, cluster.tell(), "tell")
        broad = cluster.create("broad", 1, BROAD_S, range(HOSTS * PAGES, len(nodes)))
        cluster.world.run_for(20.0)
        narrow = cluster.create("narrow", weight, NARROW_S, range(HOSTS * PAGES))
        cluster.world.run_for(60.0)  # the hosts of the broad crawl were first visited, and so rest, at the same time
        used: Counter[CrawlId] = Counter()
        for _ in range(200):
            cluster.world.run_for(0.5)
            used += cluster.begun()
        cluster.assert_kept()
        assert used[narrow] + used[broad] > 0.7 * 200 * 2 * WORKERS, "the pool was busy"
        assert abs(used[narrow] / used.total() - part) <= 0.1 * part, used
    finally:
        cluster.close()
