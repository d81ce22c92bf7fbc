"""What a backup must have, whatever happens while it is taken; what a restore refuses, and that it can be repeated."""

import asyncio
import errno
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.frontier.ingest import Ingest
from api.frontier.ownership import FrontierSettings
from api.master.standalone import Standalone
from cli.admin import backup as taking
from cli.admin import restore as restoring
from cli.admin.backup import take
from cli.admin.backup_folder import MANIFEST, REPORTS, Backup
from cli.admin.database import examined
from cli.admin.restore import into_folder, restore
from cli.admin.stream_copy import Stretch, publish_events, unread
from cli.local.cluster_folder import ClusterFolder
from cli.terminal.exits import Environment, Usage
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.nats import NatsBroker
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.engine.migrate import HEAD
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import Transient, Unusable
from shared.domain.frontier.commands import SEED_DELETED, CommandKind
from shared.domain.frontier.states import Position
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Term
from shared.domain.reads.items import PageItems, TakenItem
from shared.domain.web.url import public_suffix_snapshot
from shared.ports.broker import Broker, Delivered
from shared.runtime.supervise import Tasks
from shared.settings import ClusterMasterSettings
from shared.wire.events import Event, encode_event, event_subject
from shared.wire.items import encode_items
from shared.wire.messages import Command, Discoveries, Link, Origin, decode_discoveries, encode
from tests.support.database.fetch_rows import fetched
from tests.support.database.url_rows import URLS
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

PARTITION = Partition(0)
SPEC = parse_spec({"seeds": ["http://a.test/"]})


class Watched(SqliteStore):
    """Counts how often owners look whether they may purge."""

    looks = 0

    async def report_holds(self) -> Mapping[str, int]:
        self.looks += 1
        return await super().report_holds()


@dataclass
class AtWork:
    """A master that owns the only partition of a database, without workers, over a broker."""

    store: Watched
    broker: NatsBroker
    settings: ClusterMasterSettings

    async def found(self, n: int) -> None:
        """Let a link be found."""
        link = Link(f"http://a.test/{n}", 1)
        message = Discoveries(1, 1, "somebody", n, n, [Origin(0, b"", [link])])
        await self.broker.publish_report(PARTITION, "discovery", encode(message), f"m{n}")

    async def applied(self) -> None:
        """Wait until all that is stored is applied, and the master has looked what it may purge."""
        last = await self.broker.last_report(PARTITION, "discovery")
        while (await self.store.positions())[PARTITION].discovery_seq < last:  # noqa: ASYNC110  owners have no event for it
            await asyncio.sleep(0.01)
        looks = self.store.looks
        while self.store.looks < looks + 3 and await self.broker.pending_reports():  # noqa: ASYNC110  owners have no event for it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def at_work(folder: Path, server: BrokerServer) -> AsyncIterator[AtWork]:
    store = await Watched.open(folder / "cluster.db")
    assert isinstance(store, Watched)
    await store.open_cluster(1, public_suffix_snapshot(), 0)
    async with server.broker() as broker, Tasks() as tasks:
        await broker.events.declare()
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
        settings = ClusterMasterSettings(
            id="t", etcd="", nats_url=server.endpoint.url, nats_user="master",
            nats_password=server.login("master").password, database=str(folder / "cluster.db"),
        )  # fmt: skip
        try:
            us = AtWork(store, broker, settings)
            while not await us.store.worked_on() or not (await us.store.positions())[PARTITION].discovery_seq:  # noqa: ASYNC110  owners have no event for it
                await asyncio.sleep(0.01)
            await us.applied()
            yield us
        finally:
            stop.set()
            await running
            await store.close()


def elsewhere(settings: ClusterMasterSettings, folder: Path, server: BrokerServer) -> ClusterMasterSettings:
    """A fresh cluster's."""
    return msgspec.structs.replace(
        settings,
        nats_url=server.endpoint.url,
        nats_password=server.login("master").password,
        database=str(folder / "b.db"),
    )


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """A second, fresh broker."""
    running = BrokerServer(tmp_path / "other")
    yield running
    asyncio.run(running.embedded.stop())


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def test_reports_applied_between_snapshot_and_copy_are_in_backup(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race of every backup of two engines: the master applies it too late for the snapshot, and would purge it too
    early for the copy, if nobody held it."""

    async def story() -> None:
        async with at_work(tmp_path, server) as us:

            async def late(broker: Broker, positions: Mapping[Partition, Position]) -> list[Stretch]:
                for n in range(1, 4):
                    await us.found(n)
                await us.applied()
                assert (await us.store.positions())[PARTITION] != positions[PARTITION]
                return await unread(broker, positions)

            monkeypatch.setattr(taking, "unread", late)
            await take(us.settings, tmp_path / "backup")
            backup = Backup(tmp_path / "backup")
            copied = [data for _, _, batch in backup.frames(backup.manifest.reports) for data in batch]
            links = [decode_discoveries(data).origins[0].links[0].url for data in copied]
            assert links == [f"http://a.test/{n}" for n in range(1, 4)]
            await us.applied()
            while await us.broker.pending_reports():  # noqa: ASYNC110  owners have no event for it
                await asyncio.sleep(0.01)  # the hold is gone with the backup

    run(story)


def test_a_hold_that_was_lost_while_reports_were_copied_leaves_no_backup(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with at_work(tmp_path, server) as us:

            async def long(broker: Broker, positions: Mapping[Partition, Position]) -> list[Stretch]:
                monkeypatch.setattr(SystemClock, "elapsed", lambda _: 1e12)
                return await unread(broker, positions)

            elapsed = SystemClock.elapsed
            monkeypatch.setattr(taking, "unread", long)
            with pytest.raises(Transient, match="was lost"):
                await take(us.settings, tmp_path / "backup")
            monkeypatch.setattr(SystemClock, "elapsed", elapsed)
            assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []

    run(story)


def test_interrupted_restore_leaves_no_database_and_can_be_repeated(
    tmp_path: Path, server: BrokerServer, other: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = publish_events

    async def story() -> None:
        async with at_work(tmp_path, server) as us:
            event = Event("crawl", "1", "created", 7)
            await us.broker.events.publish(event_subject("crawl", "1"), encode_event(event), "e1")
            await us.applied()
            counters = await us.store.counters((await us.store.worked_on())[0].crawl_id)
            await take(us.settings, tmp_path / "backup")
            fresh = elsewhere(us.settings, tmp_path, other)
        backup = Backup(tmp_path / "backup")

        async def broken(*_: object) -> None:
            raise Transient("the broker is away")

        monkeypatch.setattr(restoring, "publish_events", broken)
        with pytest.raises(Transient):
            await restore(backup, fresh)
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("b.db")] == []
        monkeypatch.setattr(restoring, "publish_events", events)
        await restore(backup, fresh, again=True)
        found = await examined(str(tmp_path / "b.db"))
        assert (found.shown, found.looked_at["urls"]) == ([], 1)
        store = await SqliteStore.open(tmp_path / "b.db")
        try:
            [row] = await store.worked_on()
            assert await store.counters(row.crawl_id) == counters
            assert await store.epoch() == backup.manifest.epoch + 1
        finally:
            await store.close()
        async with other.broker() as broker:
            newest = await broker.events.last(event_subject("crawl", "1"))
            assert newest is not None
            assert newest.data == encode_event(event)

    run(story)


def test_what_is_not_fresh_is_not_restored_into(tmp_path: Path, server: BrokerServer, other: BrokerServer) -> None:
    async def story() -> None:
        async with at_work(tmp_path, server) as us:
            await take(us.settings, tmp_path / "backup")
            with pytest.raises(Usage, match="already"):
                await take(us.settings, tmp_path / "backup")
            fresh = elsewhere(us.settings, tmp_path, other)
        backup = Backup(tmp_path / "backup")
        with pytest.raises(Unusable, match="exists already"):
            await restore(backup, msgspec.structs.replace(fresh, database=str(tmp_path / "cluster.db")))
        async with other.broker() as broker:
            await broker.publish_report(PARTITION, "outcome", b"somebody's", "x")
        with pytest.raises(Environment, match="holds 1 reports"):
            await restore(backup, fresh)
        assert not (tmp_path / "b.db").exists()

    run(story)


@pytest.mark.parametrize("file", [REPORTS, "tables/urls.gz"])
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_backup_is_named_and_nothing_is_made_of_it(
    tmp_path: Path, server: BrokerServer, file: str, damage: str
) -> None:
    async def story() -> None:
        async with at_work(tmp_path, server) as us:
            await take(us.settings, tmp_path / "backup")
        part = tmp_path / "backup" / file
        data = bytearray(part.read_bytes())
        match damage:
            case "gone":
                part.unlink()
            case "cut":
                part.write_bytes(data[:-1])
            case _:
                data[len(data) // 2] ^= 1
                part.write_bytes(data)
        with pytest.raises(Environment, match=f"damaged: {file}"):
            await restore(Backup(tmp_path / "backup"), elsewhere(us.settings, tmp_path, server))
        assert not (tmp_path / "b.db").exists()

    run(story)


def test_a_folder_that_is_no_backup_or_of_a_later_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="is not a backup"):
        Backup(tmp_path)
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(Usage, match="cannot read"):
        Backup(tmp_path)
    part = {"file": "x", "values": 0, "bytes": 0, "sha256": ""}
    manifest = {
        "format": 2, "id": "x", "cluster": "x", "taken_at_ms": 0, "schema": HEAD, "store": "sqlite", "epoch": 1,
        "partitions": 1, "tables": {}, "numbers": {}, "reports": part, "items": part, "events": part, "later": True,
    }  # fmt: skip
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Usage, match="newer release"):
        Backup(tmp_path)


def raise_disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_folder_of_a_failed_restore_is_removed_and_taken_again(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = publish_events

    async def taken() -> None:
        async with at_work(tmp_path, server) as us:
            await take(us.settings, tmp_path / "backup")

    async def broken(*_: object) -> None:
        raise Transient("the broker is away")

    run(taken)
    backup, folder = Backup(tmp_path / "backup"), ClusterFolder(tmp_path / "up")
    monkeypatch.setattr(restoring, "publish_events", broken)
    with pytest.raises(Transient):
        into_folder(backup, folder, None)
    assert not folder.path.exists()
    monkeypatch.setattr(restoring, "publish_events", events)
    with monkeypatch.context() as full:
        full.setattr(ClusterFolder, "remember", raise_disk_full)
        with pytest.raises(OSError, match="No space left"):
            into_folder(backup, folder, None)
    assert not folder.path.exists(), "the restored database would refuse the next restore"
    into_folder(backup, folder, None)
    assert folder.remembered() is not None
    assert folder.database.is_file()
    with pytest.raises(Usage, match="belongs to another cluster"):
        into_folder(backup, folder, None)


def test_items_not_yet_in_table_are_in_backup_and_restored(
    tmp_path: Path, server: BrokerServer, other: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(n: int) -> PageItems:
        item = TakenItem(n.to_bytes(16), "r", b'{"n":1}')
        return PageItems(HostId(4099), Fingerprint(n.to_bytes(16)), f"http://a.test/{n}", LeaseId(1), 1, 1, (item,))

    def message(n: int) -> bytes:
        return next(encode_items(CrawlId(1), "c", [page(n)]))

    async def story() -> None:
        async with at_work(tmp_path, server) as us:
            table = SqlItems(us.store.executor)

            async def sent(n: int) -> None:
                await fetched(us.store.executor, CrawlId(1), page(n))
                sequence = await us.broker.publish_items(CrawlId(1), message(n), f"i{n}")
                while (await table.position()).sequence < sequence:  # noqa: ASYNC110  the table has no event for it
                    await asyncio.sleep(0.01)

            async def late(broker: Broker, positions: Mapping[Partition, Position]) -> list[Stretch]:
                await sent(2)
                return await unread(broker, positions)

            await sent(1)
            monkeypatch.setattr(taking, "unread", late)
            await take(us.settings, tmp_path / "backup")
            fresh = elsewhere(us.settings, tmp_path, other)
        backup = Backup(tmp_path / "backup")
        assert backup.manifest.items is not None
        copied = [data for batch in backup.frames(backup.manifest.items) for data in batch]
        assert copied == [message(2)]
        await restore(backup, fresh)
        with closing(sqlite3.connect(fresh.database)) as connection:
            assert connection.execute("SELECT item_id FROM items").fetchall() == [((1).to_bytes(16),)]
            assert connection.execute("SELECT stream_created_ns, sequence FROM item_writer").fetchall() == [(0, 0)]
        async with other.broker() as broker:
            reader = await broker.read_items(0)
            assert [each.data for each in await reader.read(10, 5.0)] == [message(2)]
            await reader.close()

    run(story)


@pytest.mark.parametrize("accepted", [False, True])
def test_deletion_of_backup_ends_seeds_before_it_and_no_later_ones(
    tmp_path: Path, server: BrokerServer, other: BrokerServer, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """No discovery is applied at the backup. `accepted`: the deletion is in progress, since it waits for them."""
    apply = Ingest.discoveries

    async def behind(ingest: Ingest, reports: Sequence[Delivered]) -> None:
        while not len(ingest._own.commands):  # noqa: ASYNC110  owners have no event for it
            await asyncio.sleep(0.01)
        await apply(ingest, reports)

    run_of = CommandRun("c1", CrawlId(1), CommandKind.DELETE_SEEDS, {"all": True, "places": []}, PARTITION)

    async def accept(store: Watched, broker: NatsBroker) -> None:
        reader = await broker.read_reports(PARTITION, "outcome", 0)
        [report] = await reader.read(10, 5.0)
        await reader.close()
        fence = (await store.claim(PARTITION, Term(1_000_000))).fence
        position = (await store.positions())[PARTITION].moved("outcome", report.sequence, report.at_ns)
        found = msgspec.structs.replace(run_of, sequence=report.sequence)
        assert await store.accept_command(fence, position, found, 7) is not None

    async def stored() -> ClusterMasterSettings:
        async with at_work(tmp_path, server) as us:
            settings = us.settings
        store = await Watched.open(tmp_path / "cluster.db")
        assert isinstance(store, Watched)
        try:
            async with server.broker() as broker:
                us = AtWork(store, broker, settings)
                await us.found(1)
                message = encode(Command(run_of.id, run_of.crawl_id, run_of.kind, run_of.args))
                await broker.publish_command(PARTITION, message, "c1")
                await us.found(2)
                if accepted:
                    await accept(store, broker)
                await take(settings, tmp_path / "backup")
        finally:
            await store.close()
        return settings

    async def story() -> None:
        settings, folder = await stored(), tmp_path / "restored"
        folder.mkdir()
        fresh = msgspec.structs.replace(elsewhere(settings, folder, other), database=str(folder / "cluster.db"))
        async with other.broker() as broker:  # a stream whose sequences are not those of the source
            await broker.publish_report(PARTITION, "outcome", b"x", "x")
            await broker.purge_reports(PARTITION, "outcome", 1)
        backup = Backup(tmp_path / "backup")
        assert [kind for _, kind, _ in backup.frames(backup.manifest.reports)] == ["discovery", "command", "discovery"]
        await restore(backup, fresh)
        monkeypatch.setattr(Ingest, "discoveries", behind)
        async with at_work(folder, other) as us:
            query = f"SELECT url, reason FROM {URLS} u WHERE EXISTS (SELECT 1 FROM commands WHERE id = 'c1')"
            while not (rows := await us.store.executor.read(lambda c: c.exec_driver_sql(query).all())):  # noqa: ASYNC110  as above
                await asyncio.sleep(0.01)
        ends = {"http://a.test/": SEED_DELETED, "http://a.test/1": SEED_DELETED, "http://a.test/2": None}
        assert dict(map(tuple, rows)) == ends

    run(story)
