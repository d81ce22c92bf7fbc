"""The specs that workers see follow what SQL has of the crawls."""

import asyncio
from pathlib import Path

from api.control.publishing import Publishing
from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.coordinator import LocalCoordinator
from shared.adapters.sql.store import SqliteStore
from shared.domain.crawl import encode_spec
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId
from shared.domain.spec_parse import parse_spec
from shared.wire.keys import CrawlRecord, Keys, decode_record

KEYS = Keys("test")


def test_crawl_whose_time_is_up_is_published_as_paused(tmp_path: Path) -> None:
    """Visits went on to their own end, up to 30 s after `budget.max_seconds`."""
    clock = SystemClock()

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(8, "com\n", 0)
        coordinator = LocalCoordinator(clock)

        async def declared(seconds: int) -> None:
            spec = parse_spec({"seeds": ["http://a.test/"], "budget": {"max_seconds": seconds}})
            row, _ = await store.put_crawl("a", encode_spec(spec).decode(), 0)
            await store.set_state(row.crawl_id, CrawlState.RUNNING, None, 0)
            await store.add_active_time(row.crawl_id, 3_000)

        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            publisher = EtcdSpecPublisher(coordinator, leadership, KEYS)
            publishing = Publishing(coordinator, leadership, publisher, KEYS, store, clock, 8)

            async def paused() -> bool:
                await publishing.once()
                entry = await coordinator.get(KEYS.crawl(CrawlId(1)))
                assert entry is not None
                record = decode_record(CrawlRecord, entry.value)
                return record.paused

            await declared(5)
            assert not await paused()
            await store.add_active_time(CrawlId(1), 2_000)
            assert await paused()
            await declared(60)
            assert not await paused(), "a greater budget goes on"
        await store.close()

    asyncio.run(story())
