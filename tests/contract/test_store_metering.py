"""The numbers that are read for metrics: of the partitions owned, under bounded names, old rather than absent."""

from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest

from api.observe.sampler import StatsSampler
from shared.domain.errors import Transient
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow
from shared.domain.frontier.states import CrawlState, UrlState
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
        self.clock, self.broker = Ticking(), Filled()
        self.counts = CrawlCounts(max_count)
        self.metering = StatsSampler(
            self.counts,
            lambda: owned,
            store=tables.store,
            broker=cast(Broker, self.broker),
            clock=cast(Clock, self.clock),
        )
        self.work_on(tables.crawl_id, "docs")

    def work_on(self, crawl_id: CrawlId, name: str, state: CrawlState = CrawlState.RUNNING) -> None:
        self.take({crawl_id: CrawlRow(crawl_id, name, Revision(1), state, "{}")})

    def take(self, rows: Mapping[CrawlId, CrawlRow | None], counted: Collection[CrawlId] = ()) -> None:
        """Take what a pass of the crawl controller read."""
        self.metering.take(CrawlChanges(ChangeMark(), rows, {}, (), counted, {}, {}))


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
        metered.work_on(t.crawl_id, "docs", CrawlState.FINISHED)
        metered.clock.now += 599
        await metered.metering.once()
        assert set(metered.metering.stored.counters) == {"docs"}
        metered.clock.now += 2
        await metered.metering.once()
        assert metered.metering.stored.counters == {}
        metered.work_on(t.crawl_id, "docs")
        await metered.metering.once()
        await metered.metering.once()
        assert set(metered.metering.stored.counters) == {"docs"}
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        metered.take({t.crawl_id: None})
        await metered.metering.once()
        assert metered.metering.stored.counters == {}

    on_store(story)


def test_counters_of_a_changed_crawl_are_read_and_the_others_kept(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        second, _ = await t.store.put_crawl("second", "{}", NOW_MS)
        owned = [PARTITION]
        metered = Metered(t, owned)
        metered.work_on(second.crawl_id, second.name)
        await t.found(*links("a.test", range(3)))
        await metered.metering.once()
        await t.found(link("http://b.test/", crawl_id=second.crawl_id), producer="w2", crawl_id=second.crawl_id)
        await metered.metering.once()
        assert set(metered.metering.stored.counters) == {"docs"}, "no pass has read that it changed"
        metered.take({}, [second.crawl_id])
        metered.broker.away = True
        with pytest.raises(Transient):
            await metered.metering.once()
        metered.broker.away = False
        await metered.metering.once()
        accepted = {name: each.accepted for name, each in metered.metering.stored.counters.items()}
        assert accepted == {"docs": 3, "second": 1}
        owned[:] = [OTHER]
        await metered.metering.once()
        assert metered.metering.stored.counters == {}, "the partition has another owner"

    on_store(story)


def test_a_failed_read_of_changed_counters_is_repeated(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(t: Tables) -> None:
        metered = Metered(t, [PARTITION])
        await metered.metering.once()
        await t.found(*links("a.test", range(3)))
        metered.take({}, [t.crawl_id])
        with monkeypatch.context() as away:
            away.setattr(t.store, "counters_in", _away)
            with pytest.raises(Transient):
                await metered.metering.once()
        await metered.metering.once()
        assert metered.metering.stored.counters["docs"].accepted == 3

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


async def _away(*_: object) -> None:
    raise Transient("away")
