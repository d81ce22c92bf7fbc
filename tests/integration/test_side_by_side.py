"""While a cluster is upgraded, a leader of the release before passes on what it does not know, as it stands."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import insert

from api.leader.config_publisher import ConfigPublisher
from shared.adapters.local.clock import SystemClock
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import config_revisions
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec import encode_spec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.crawl.state import CANCELLED
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId
from shared.wire.keys import SETTINGS, ConfigRecord, CrawlRecord, Keys, decode_record
from tests.support.crawl_controller import spec_publisher
from tests.support.engines.local_coordinator import LocalCoordinator

CLOCK = SystemClock()
KEYS = Keys("test")
SPEC = parse_spec({"name": "docs", "seeds": ["http://a.test/"]})


def tomorrow(document: bytes, *path: str) -> str:
    """The document as a later version writes it: with a field that is unknown here."""
    whole: dict[str, Any] = msgspec.json.decode(document)
    part = whole
    for name in path:
        part = part.setdefault(name, {})
    part["appetite"] = "good"
    return msgspec.json.encode(whole).decode()


async def record(coordinator: LocalCoordinator, crawl_id: CrawlId) -> CrawlRecord:
    entry = await coordinator.get(KEYS.crawl(crawl_id))
    assert entry is not None
    return decode_record(CrawlRecord, entry.value)


def test_leader_publishes_stored_spec_also_on_pause_and_delete(tmp_path: Path) -> None:
    """Made anew from what it knows, the workers of the later version would crawl by another spec under the same
    revision, and no leader would ever publish it again."""

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(8, "com\n", 0)
        stored = tomorrow(encode_spec(SPEC), "fetch")
        row, _ = await store.put_crawl("docs", stored, 0)
        await store.set_state(row.crawl_id, CrawlState.RUNNING, None, 0)
        coordinator = LocalCoordinator(CLOCK)
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            publishing = spec_publisher(coordinator, leadership, KEYS, store)
            await publishing.once()
            assert bytes((await record(coordinator, row.crawl_id)).spec) == stored.encode()
            await store.set_state(row.crawl_id, CrawlState.PAUSED, None, 0)
            await publishing.once()
            paused = await record(coordinator, row.crawl_id)
            assert (paused.paused, bytes(paused.spec)) == (True, stored.encode())
            await store.set_state(row.crawl_id, CrawlState.DELETED, None, 0)
            await publishing.once()
            gone = await record(coordinator, row.crawl_id)
            assert (gone.gone, bytes(gone.spec)) == (True, stored.encode())
        await store.close()

    asyncio.run(story())


def test_crawl_that_is_over_is_published_as_paused_until_it_runs_again(tmp_path: Path) -> None:
    """Visits under way learn by it that they start no further request."""

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(8, "com\n", 0)
        row, _ = await store.put_crawl("docs", encode_spec(SPEC).decode(), 0)
        coordinator = LocalCoordinator(CLOCK)
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            publishing = spec_publisher(coordinator, leadership, KEYS, store)
            for state, reason, paused in (
                (CrawlState.RUNNING, None, False),
                (CrawlState.FINISHED, CANCELLED, True),
                (CrawlState.SEEDING, None, False),
            ):
                await store.set_state(row.crawl_id, state, reason, 0)
                await publishing.once()
                published = await record(coordinator, row.crawl_id)
                assert (published.paused, published.gone) == (paused, False), state
        await store.close()

    asyncio.run(story())


def test_a_leader_publishes_the_configuration_as_it_is_stored(tmp_path: Path) -> None:
    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        written = tomorrow(b'{"worker":{"max_visits":8}}', "worker")
        row = {"revision": 7, "document": written, "changed_at_ms": 1, "changed_by": "a later version"}
        await store.executor.write(lambda c: c.execute(insert(config_revisions).values(**row)).close())
        desired = SqlDesired(store.executor)
        coordinator = LocalCoordinator(CLOCK)
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            await ConfigPublisher(coordinator, leadership, KEYS, desired, CLOCK).once()
        entry = await coordinator.get(KEYS.setting(SETTINGS))
        assert entry is not None
        published = decode_record(ConfigRecord, entry.value)
        assert (published.revision, bytes(published.value)) == (7, written.encode())
        await store.close()

    asyncio.run(story())
