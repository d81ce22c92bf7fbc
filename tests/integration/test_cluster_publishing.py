"""The specs that workers see follow what SQL has of the crawls."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LOOK_S, LocalSpecs
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.crawl.state import CANCELLED, Verb
from shared.domain.errors import Permanent
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId
from shared.domain.reads.declared import Actor
from shared.domain.web.url import fingerprint
from shared.ports.specs import PublishedSpec
from shared.wire.keys import CrawlRecord, Keys, decode_record
from tests.integration.test_worker_crawls import at_work, spec
from tests.support.api.scripted_owner import CRAWL
from tests.support.crawl_controller import spec_publisher
from tests.support.engines.local_coordinator import LocalCoordinator
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run

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

        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            publisher = EtcdSpecPublisher(coordinator, leadership, KEYS)
            publishing = spec_publisher(coordinator, leadership, KEYS, store, publisher=publisher, partitions=8)

            async def paused() -> bool:
                await publishing.once()
                entry = await coordinator.get(KEYS.crawl(CrawlId(1)))
                assert entry is not None
                record = decode_record(CrawlRecord, entry.value)
                return record.paused

            await declared(5)
            await store.start_active_time({CrawlId(1): "default"})
            await store.add_pool_time({"default": 0}, 3_000)
            assert not await paused()
            await store.add_pool_time({"default": 3_000}, 2_000)
            assert await paused()
            await declared(60)
            assert not await paused(), "a greater budget goes on"
        await store.close()

    asyncio.run(story())


class Published:
    """A publisher of etcd records, whose specs a worker of this test has seen, too, when they are published."""

    def __init__(self, records: EtcdSpecPublisher, folder: Path) -> None:
        self._records = records
        self._specs = LocalSpecs(folder / "specs")

    async def publish(self, spec: PublishedSpec) -> None:
        await self._records.publish(spec)
        await self._specs.publish(spec)
        await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.PAUSE, Verb.DELETE])
def test_visit_starts_no_request_after_the_leader_published_the_verb(
    server: BrokerServer, tmp_path: Path, verb: Verb
) -> None:
    """By the leader's record alone: the owner here grants whatever it is asked.

    A cluster's owner refuses the next extension, too, which hides in tests of whole clusters what is not published.
    """
    clock = SystemClock()

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(1, "com\n", 0)
        row, _ = await store.put_crawl("docs", encode_spec(spec()).decode(), 0)
        assert row.crawl_id == CRAWL
        await store.set_state(row.crawl_id, CrawlState.RUNNING, None, 0)
        coordinator = LocalCoordinator(clock)
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            publisher = Published(EtcdSpecPublisher(coordinator, leadership, KEYS), tmp_path)
            publishing = spec_publisher(coordinator, leadership, KEYS, store, publisher=publisher, partitions=1)
            await publishing.once()
            async with at_work(server, tmp_path, spec()) as (held, site, owner):
                resting = await owner.send(site.url("/quick"), site.url("/later"), delay_ms=25_000, slot=1)
                await owner.until(lambda: bool(owner.results(resting)))
                lease = await owner.send(site.url("/held"), site.url("/never"))
                await held.asked.wait()
                catalog = SqlCatalog(store.executor)
                await catalog.turn("docs", verb, expected=None, actor=Actor("0" * 16, "a", "r"), now_ms=1)
                await publishing.once()
                assert (await owner.ended(resting)).not_attempted == [fingerprint(site.url("/later"))]
                held.release.set()
                assert fingerprint(site.url("/never")) in (await owner.ended(lease)).not_attempted
                assert len(site.requests) == 2
        await store.close()

    run(story())


class OneRefused:
    """A publisher of etcd records whose store refuses the spec of one crawl."""

    def __init__(self, records: EtcdSpecPublisher, refused: CrawlId) -> None:
        self._records = records
        self._refused = refused
        self.calls = 0

    async def publish(self, spec: PublishedSpec) -> None:
        if spec.crawl_id == self._refused:
            self.calls += 1
            raise Permanent("etcd KV.Txn: etcdserver: request is too large")
        await self._records.publish(spec)


def test_spec_that_etcd_refuses_delays_no_other_crawl(tmp_path: Path) -> None:
    """The pass failed at it, again and again, and the leader resigned."""
    clock = SystemClock()

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(8, "com\n", 0)
        for name in ("first", "second"):
            row, _ = await store.put_crawl(name, encode_spec(parse_spec({"seeds": ["http://a.test/"]})).decode(), 0)
            await store.set_state(row.crawl_id, CrawlState.RUNNING, None, 0)
        coordinator = LocalCoordinator(clock)
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            publisher = OneRefused(EtcdSpecPublisher(coordinator, leadership, KEYS), CrawlId(1))
            publishing = spec_publisher(coordinator, leadership, KEYS, store, publisher=publisher)
            with capture_logs() as logs:
                for _ in range(3):
                    await publishing.once()
            assert await coordinator.get(KEYS.crawl(CrawlId(1))) is None
            assert await coordinator.get(KEYS.crawl(CrawlId(2))) is not None
            refused = [each for each in logs if each["event"] == "spec.refused"]
            assert [(each["crawl"], each["name"], each["revision"]) for each in refused] == [(1, "first", 1)]
            assert publisher.calls == 1, "a refused spec is not sent again in each pass"
            await store.set_state(CrawlId(1), CrawlState.FINISHED, CANCELLED, 0)
            await publishing.once()
        await store.close()

    asyncio.run(story())


def test_leader_publishes_large_spec_without_seeds_that_no_worker_needs(tmp_path: Path) -> None:
    clock = SystemClock()
    seeds = [f"http://a.test/{number:06}/{'x' * 40}" for number in range(30_000)]
    text = encode_spec(parse_spec({"seeds": seeds, "scope": {"max_depth": 3}}))
    later = text[:-1] + b',"later":[1, 2]}'

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(8, "com\n", 0)
        row, _ = await store.put_crawl("a", later.decode(), 0)
        await store.set_state(row.crawl_id, CrawlState.RUNNING, None, 0)
        coordinator = LocalCoordinator(clock)
        async with coordinator.session(30.0) as session:
            leadership = await session.campaign(KEYS.leader, b"m1")
            await spec_publisher(coordinator, leadership, KEYS, store).once()
            entry = await coordinator.get(KEYS.crawl(row.crawl_id))
            assert entry is not None
            document = bytes(decode_record(CrawlRecord, entry.value).spec)
            before, after = decode_spec(later), decode_spec(document)
            assert len(document) < 10_000
            assert after == msgspec.structs.replace(before, seeds=before.seeds[:1])
            assert b'"later":[1, 2]' in document, "what a later version wrote is kept"
        await store.close()

    asyncio.run(story())
