"""The numbers that are read for metrics: of the partitions owned, under bounded names, old rather than absent."""

from collections.abc import Callable
from typing import cast

import pytest

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.observe.sampler import StatsSampler, summed
from shared.domain.crawl.spec import CrawlSpec, Seed
from shared.domain.errors import Transient
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Revision
from shared.domain.ops.counts import OTHER as OTHERS
from shared.domain.ops.counts import CrawlCounts
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, link, links

OnStore = Callable[..., None]


class Ticking:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def elapsed(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return NOW_MS


class Filled:
    """A broker of which only the fullness is asked; it may be away."""

    def __init__(self) -> None:
        self.away = False

    async def fullness(self, kind: str) -> float:
        if self.away:
            raise Transient("the broker is away")
        return {"outcome": 0.25, "discovery": 0.5}[kind]

    async def pending_reports(self) -> int:
        return 7


class Metered:
    """A metering over the store, with the crawl 1 worked on as `docs`."""

    def __init__(self, tables: Tables, owned: list[Partition], max_count: int = 50) -> None:
        self.crawls, self.clock, self.broker = DispatchCrawls(), Ticking(), Filled()
        self.counts = CrawlCounts(max_count)
        self.work_on(tables.crawl_id, "docs")
        self.metering = StatsSampler(
            self.crawls,
            self.counts,
            lambda: owned,
            store=tables.store,
            broker=cast(Broker, self.broker),
            clock=cast(Clock, self.clock),
        )

    def work_on(self, crawl_id: CrawlId, name: str) -> None:
        spec = CrawlSpec(seeds=(Seed(url="https://example.org/"),))
        state, allowance = CrawlState.RUNNING, BudgetReservation(None, None, {})
        self.crawls.put(DispatchCrawl(crawl_id, name, Revision(1), spec, state, allowance))


def test_the_counters_of_the_partitions_owned_are_read_and_no_others(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.test", range(10)))
        row = await t.lease("a.test", 4)
        assert row is not None
        await t.settle(row, UrlState.DONE)
        metered = Metered(t, [PARTITION])
        await metered.metering.once()
        stored = metered.metering.stored
        assert stored.counters == {"docs": await t.store.counters(t.crawl_id)}
        assert (stored.counters["docs"].queued, stored.counters["docs"].done) == (6, 4)
        assert (stored.reports, stored.fullness) == (7, {"outcome": 0.25, "discovery": 0.5})
        for owned in ([OTHER], []):
            metered = Metered(t, owned)
            await metered.metering.once()
            assert metered.metering.stored.counters == {}

    on_store(story)


def test_crawls_beyond_the_limit_are_added_up(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        second, _ = await t.store.put_crawl("second", "{}", NOW_MS)
        third, _ = await t.store.put_crawl("third", "{}", NOW_MS)
        await t.found(*links("a.test", range(3)))
        for n, row in enumerate((second, third), 1):
            found = [link(f"http://b.test/{path}", crawl_id=row.crawl_id) for path in range(n)]
            await t.found(*found, producer=f"w{n}", crawl_id=row.crawl_id)
        metered = Metered(t, [PARTITION], max_count=1)
        for row in (second, third):
            metered.work_on(row.crawl_id, row.name)
        await metered.metering.once()
        counters = metered.metering.stored.counters
        assert {name: each.accepted for name, each in counters.items()} == {"docs": 3, OTHERS: 1 + 2}

    on_store(story)


def test_a_crawl_that_ended_is_read_for_ten_minutes_and_a_deleted_one_is_not(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.test", range(3)))
        metered = Metered(t, [PARTITION])
        await metered.metering.once()
        metered.crawls.remove(t.crawl_id)
        metered.clock.now += 599
        await metered.metering.once()
        assert set(metered.metering.stored.counters) == {"docs"}
        metered.clock.now += 2
        await metered.metering.once()
        assert metered.metering.stored.counters == {}
        metered.work_on(t.crawl_id, "docs")
        await metered.metering.once()
        metered.crawls.remove(t.crawl_id)
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        await metered.metering.once()
        assert metered.metering.stored.counters == {}

    on_store(story)


def test_what_cannot_be_read_stays_as_it_was_and_grows_old(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.test", range(3)))
        metered = Metered(t, [PARTITION])
        await metered.metering.once()
        before = metered.metering.stored
        metered.broker.away = True
        metered.clock.now += 60
        with pytest.raises(Transient):
            await metered.metering.once()
        assert metered.metering.stored == before

    on_store(story)


def test_counters_are_added_field_by_field() -> None:
    assert summed([]) == Counters()
    assert summed([Counters(queued=1, version=2), Counters(queued=3, done=4)]) == Counters(queued=4, done=4, version=2)
