"""Backups of a cluster whose three NATS servers keep every stream, over mutual TLS, while reports are being stored."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.frontier.ownership import FrontierSettings
from api.master.standalone import Standalone
from cli.admin import backup as taking
from cli.admin.backup import take
from cli.admin.backup_folder import Backup
from cli.admin.restore import restore
from cli.admin.stream_copy import Stretch, unread
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.nats import NatsBroker, StreamSettings
from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import Transient
from shared.domain.frontier.states import Position
from shared.domain.ids import Partition
from shared.domain.web.url import public_suffix_snapshot
from shared.ports.broker import Broker
from shared.runtime.supervise import Tasks
from shared.settings import ClusterMasterSettings
from shared.wire.events import EVENTS, Event, encode_event, event_subject
from shared.wire.items import ITEMS
from shared.wire.messages import Discoveries, Link, Origin, decode_discoveries, encode
from shared.wire.subjects import REPORTS
from tests.support.database.url_rows import URLS
from tests.support.engines.certificates import OPENSSL, authority
from tests.support.engines.nats_cluster import NatsCluster, nats_cluster
from tests.support.engines.nats_server import stored

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates"),
]

PARTITION = Partition(0)
PER_PARTITION = 50_000
SPEC = parse_spec({"seeds": ["http://a.test/"]})
THREE = StreamSettings(replicas=3)


@asynccontextmanager
async def connected(nats: NatsCluster) -> AsyncIterator[NatsBroker]:
    broker = await NatsBroker.connect(nats.urls, name="test", settings=THREE, tls=nats.tls)
    try:
        yield broker
    finally:
        await broker.close()


def told(nats: NatsCluster, database: Path) -> ClusterMasterSettings:
    return ClusterMasterSettings(
        id="operator",
        etcd="",
        nats_url=",".join(nats.urls),
        nats_ca=nats.tls.ca,
        nats_cert=nats.tls.cert,
        nats_key=nats.tls.key,
        nats_replicas=3,
        reports_per_partition=PER_PARTITION,
        database=str(database),
    )


@asynccontextmanager
async def owned(folder: Path, broker: NatsBroker) -> AsyncIterator[SqliteStore]:
    """A master that owns the only partition, and applies and purges what is reported."""
    store = await SqliteStore.open(folder / "cluster.db")
    assert isinstance(store, SqliteStore)
    await store.open_cluster(1, public_suffix_snapshot(), 0)
    await broker.declare([])
    await broker.events.declare()
    async with Tasks() as tasks:
        master = Standalone(
            SPEC,
            store=store,
            items=SqlItems(store.executor),
            broker=broker,
            specs=LocalSpecs(folder / "specs"),
            clock=SystemClock(),
            settings=FrontierSettings(partitions=1, sweep_interval_s=0.05),
            alone=True,
        )
        stop = asyncio.Event()
        running = tasks.start("master", master.run(stop, grace_s=0))
        try:
            while not await store.worked_on():  # noqa: ASYNC110  owners have no event for it
                await asyncio.sleep(0.01)
            yield store
        finally:
            stop.set()
            await running
            await store.close()


class Finders:
    """Who finds links without a pause; `acknowledged` are those that were stored."""

    def __init__(self, broker: NatsBroker) -> None:
        self._broker = broker
        self.acknowledged: list[int] = []

    async def run(self) -> None:
        n = 0
        while True:
            n += 1
            message = encode(Discoveries(1, 1, "somebody", n, n, [Origin(0, b"", [Link(f"http://a.test/{n}", 1)])]))
            while True:
                try:
                    await self._broker.publish_report(PARTITION, "discovery", message, f"m{n}")
                    break
                except Transient as error:
                    await asyncio.sleep(error.retry_in)
            self.acknowledged.append(n)

    async def reach(self, n: int) -> None:
        while len(self.acknowledged) < n:  # noqa: ASYNC110  what is acknowledged tells nobody
            await asyncio.sleep(0.01)


async def looked_at(nats: NatsCluster, stream: str) -> dict[str, Any]:
    """The stream, as its leader tells of it."""
    connection = await NatsConnection.open(nats.urls, name="look", settings=THREE, tls=nats.tls)
    try:
        return await demand(connection, f"STREAM.INFO.{stream}", None, 10.0)
    finally:
        await connection.close()


def test_backup_of_three_servers_holds_all_acknowledged_when_one_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that leads the stream of reports, just when they are to be copied."""
    ca = authority(tmp_path)

    async def taken(nats: NatsCluster) -> tuple[int, int]:
        """Make the backup under load; how much was acknowledged before, and how much when it was copied."""
        between: list[int] = []
        async with connected(nats) as broker, owned(tmp_path, broker), Tasks() as tasks:
            finders = Finders(broker)
            finding = tasks.start("find", finders.run())
            await broker.events.publish(event_subject("crawl", "1"), encode_event(Event("crawl", "1", "made", 7)), "e1")
            await finders.reach(50)

            async def later(broker: Broker, positions: Mapping[Partition, Position]) -> list[Stretch]:
                await finders.reach(len(finders.acknowledged) + 20)
                between.append(len(finders.acknowledged))
                leader: str = (await looked_at(nats, REPORTS))["cluster"]["leader"]
                nats.servers[int(leader.removeprefix("nats-"))].kill()
                return await unread(broker, positions)

            monkeypatch.setattr(taking, "unread", later)
            before = len(finders.acknowledged)
            await take(told(nats, tmp_path / "cluster.db"), tmp_path / "backup")
            finding.cancel()
        return before, between[0]

    async def restored(nats: NatsCluster) -> set[str]:
        """Restore into a fresh cluster; every link that is known or will be read there."""
        settings = told(nats, tmp_path / "b.db")
        await restore(Backup(tmp_path / "backup"), settings)
        for stream in (REPORTS, EVENTS, ITEMS):
            assert (await looked_at(nats, stream))["config"]["num_replicas"] == 3, stream
        bound = (await looked_at(nats, REPORTS))["config"]["max_msgs_per_subject"]
        assert bound == PER_PARTITION, "a restore has room for what the cluster had room for"
        store = await SqliteStore.open(tmp_path / "b.db")
        try:
            rows = await store.executor.read(lambda c: c.exec_driver_sql(f"SELECT url FROM {URLS} u").all())
        finally:
            await store.close()
        links = {url for (url,) in rows}
        async with connected(nats) as broker:
            assert await broker.events.last(event_subject("crawl", "1")) is not None
            for message in map(decode_discoveries, await stored(broker, PARTITION, "discovery")):
                links |= {link.url for origin in message.origins for link in origin.links}
        return links

    with nats_cluster(tmp_path / "a", ca) as nats:
        before, copied = asyncio.run(asyncio.wait_for(taken(nats), 60))
    with nats_cluster(tmp_path / "b", ca) as nats:
        links = asyncio.run(asyncio.wait_for(restored(nats), 60))
    assert before < copied
    assert {f"http://a.test/{n}" for n in range(1, copied + 1)} <= links
    assert msgspec.json.decode((tmp_path / "backup" / "manifest.json").read_bytes())["reports"]["values"] > 0
