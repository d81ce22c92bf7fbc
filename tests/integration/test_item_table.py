"""The writer of the table of items, on a real stream and a real database: nothing twice, nothing missing, no stall."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from api.crawls.item_writer import ItemWriter
from api.frontier.stats import OwnerStats
from shared.adapters.local.clock import SystemClock
from shared.adapters.nats import NatsBroker
from shared.adapters.nats.jetstream import demand
from shared.adapters.sql.catalog import items as item_rows
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.errors import Permanent, ResourceFull, Transient
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Term
from shared.domain.reads.items import CrawlItems, ItemChanges, ItemFence, ItemLetter, ItemPosition, PageItems, TakenItem
from shared.ports.broker import ItemsState
from shared.runtime.supervise import Tasks
from shared.wire.items import ITEMS, encode_items
from tests.support.database.fetch_rows import ended, fetched, leased
from tests.support.database.store_tables import Tables, sqlite_tables
from tests.support.engines.nats_server import BrokerServer, keep_store, persist, put_back
from tests.support.engines.nats_server import server as server

REPLACED = "the stream of items is another one than before, or came back shorter; reading it from its start"


def page(number: int, *names: str, lease: int = 1) -> PageItems:
    items = tuple(TakenItem(f"{number:8}{name:>8}".encode(), "card", b'{"n":1}') for name in names)
    mark = Fingerprint(number.to_bytes(16))
    return PageItems(HostId(4099), mark, f"https://a.test/{number}", LeaseId(lease), 1, 1_000, items)


class Poisoned(SqlItems):
    """A table that never takes the page /13, nor /later behind its outcome; whose answers are lost `lost` times; and
    that has no room `full` times."""

    lost = 0
    full = 0
    claims = 0

    async def resolve_drafts(
        self, fence: ItemFence, position: ItemPosition, max_count: int, evidence: str | None = None
    ) -> ItemChanges | None:
        decided = await self._run.read(lambda c: c.execute(item_rows._DECIDED, {"max_count": max_count}).all())
        if evidence is None and any(row.url.endswith("/later") for row in decided):
            raise Permanent("this can never be written")
        return await super().resolve_drafts(fence, position, max_count, evidence)

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        self.claims += 1
        return await super().claim(term)

    async def apply(
        self, fence: ItemFence, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> ItemChanges:
        if any(page.url.endswith("/13") for message in messages for page in message.pages):
            raise Permanent("this can never be written")
        if messages and self.full:
            self.full -= 1
            raise ResourceFull("the disk is full", retry_in=0.01)
        changes = await super().apply(fence, position, messages, letters)
        if self.lost:
            self.lost -= 1
            raise Transient("the answer was lost", retry_in=0.01)
        return changes


class Stage:
    """A stream, a table and the writers between them."""

    def __init__(self, tables: Tables, broker: NatsBroker) -> None:
        assert isinstance(tables.store, SqlStore)
        self.tables = tables
        self.broker = broker
        self.run = tables.store.executor
        self.table = Poisoned(self.run)
        self.tally = OwnerStats()
        self.alarms: list[str] = []
        self.sent = 0

    async def send(self, *pages: PageItems, raw: bytes | None = None, accepted: bool = True) -> None:
        for each in sorted(pages, key=lambda page: page.version) if accepted else ():
            await fetched(self.run, self.tables.crawl_id, each)
        messages = [raw] if raw is not None else list(encode_items(self.tables.crawl_id, "docs", pages))
        for data in messages:
            self.sent += 1
            await self.broker.publish_items(self.tables.crawl_id, data, f"m{self.sent}")

    def writer(self) -> ItemWriter:
        def alarm(partition: Partition, text: str) -> None:
            self.alarms.append(text)

        return ItemWriter(self.table, self.broker, SystemClock(), self.tally, alarm)

    @asynccontextmanager
    async def writing(self, term: int) -> AsyncIterator[ItemWriter]:
        """A writer under the term, for as long as the block lasts."""
        writer = self.writer()
        async with Tasks() as tasks:
            tasks.start("items", writer.run(lambda: Term(term)))
            yield writer
            tasks.cancel()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not true():  # noqa: ASYNC110  the database has no event for it
                await asyncio.sleep(0.02)

    def items(self) -> int:
        return int(self.tables.value("SELECT count(*) FROM items"))

    def sequence(self) -> int:
        return int(self.tables.value("SELECT coalesce(max(sequence), 0) FROM item_writer"))


@asynccontextmanager
async def stage(tmp_path: Path, server: BrokerServer) -> AsyncIterator[Stage]:
    async with sqlite_tables(tmp_path) as tables, server.broker() as broker:
        yield Stage(tables, broker)


def test_items_that_a_full_disk_refused_are_tried_again_where_they_stand(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            s.table.full = 5
            await s.send(page(1, "a", "b"))
            async with s.writing(1):
                await s.until(lambda: s.items() == 2)
            assert (s.table.full, s.table.claims) == (0, 1)

    asyncio.run(story())


def test_every_item_is_stored_once_whichever_owner_writes(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            for term in range(1, 6):
                for n in range(30):
                    await s.send(page(100 * term + n, "a", "b"))
                async with s.writing(term) as writer:
                    await s.until(lambda wanted=30 * term - 15: s.sequence() >= wanted)  # type: ignore[misc]
                    assert not await writer.is_complete(CrawlId(1)) or s.sequence() == s.sent
            await s.send(page(999, "a", "b"))
            async with s.writing(9), s.writing(3):  # of two that believe to lead, the later term's writes
                await s.until(lambda: s.sequence() == s.sent)
            assert s.items() == 302
            assert s.tables.value("SELECT term FROM item_writer") == 9
            assert s.alarms == []

    asyncio.run(story())


def test_two_who_ask_at_once_whether_all_is_there_are_both_told(tmp_path: Path, server: BrokerServer) -> None:
    """As a crawl's master does that is told to stop while it finds the crawl finished."""

    async def story() -> None:
        async with stage(tmp_path, server) as s:
            await s.send(page(1, "a"))
            async with s.writing(1) as writer:
                await s.until(lambda: s.sequence() == 1)
                assert all(await asyncio.gather(writer.is_complete(CrawlId(1)), writer.is_complete(CrawlId(1))))

    asyncio.run(story())


def test_an_answer_that_was_lost_makes_nothing_double(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            s.table.lost = 2
            async with s.writing(1):
                await s.send(page(100, "a"))
                await s.until(lambda: s.table.lost == 1)
                for n in range(1, 20):
                    await s.send(page(100 + n, "a"))
                await s.until(lambda: (s.sequence(), s.table.lost) == (20, 0))
            assert s.items() == 20

    asyncio.run(story())


def test_what_cannot_be_read_or_written_becomes_a_letter_and_stalls_nothing(
    tmp_path: Path, server: BrokerServer
) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            await s.send(page(1, "a"))
            await s.send(raw=b"\xc1 no message")
            await s.send(page(12, "a"), page(13, "a"))
            await s.send(page(14, "a"))
            async with s.writing(1):
                await s.until(lambda: (s.sequence(), s.tally.dead_letters["items"]) == (4, 2))
            letters = s.tables.rows(
                "SELECT kind, crawl_id, evidence, payload IS NOT NULL FROM dead_letters ORDER BY id"
            )
            assert [(kind, crawl, kept) for kind, crawl, _, kept in letters] == [("items", None, 1), ("items", 1, 1)]
            assert "cannot be read" in letters[0][2]
            assert letters[1][2] == "this can never be written"
            assert s.items() == 2

    asyncio.run(story())


def test_a_stream_that_is_another_than_before_is_read_from_its_start(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            await s.send(page(1, "a"))
            async with s.writing(1) as writer:
                await s.until(lambda: s.sequence() == 1)
                await demand(s.broker._connection, f"STREAM.DELETE.{ITEMS}", None, 10.0)
                s.sent = 0
                await s.until(lambda: bool(s.alarms))
                s.sent = 100
                for n in range(2, 5):
                    await s.send(page(n, "a"))
                await s.until(lambda: s.items() == 4)
                assert await writer.is_complete(CrawlId(1))
            assert s.alarms == [REPLACED]

    asyncio.run(story())


@pytest.mark.parametrize("running", [True, False])
def test_items_are_read_anew_from_a_stream_restored_and_regrown(
    tmp_path: Path, server: BrokerServer, running: bool
) -> None:
    """The position is 2. The stream comes back with 1 message and grows to 6, before the writer looks."""

    async def story() -> None:
        async with stage(tmp_path, server) as s, server.broker(reconnect_s=0.5) as slow:
            late = ItemWriter(s.table, slow, SystemClock(), s.tally, lambda _, text: s.alarms.append(text))
            await s.send(page(1, "a"), page(2, "a"))
            copy = keep_store(server)
            await s.send(page(3, "a"))
            assert not await late.is_complete(s.tables.crawl_id)
            async with Tasks() as tasks:
                tasks.start("items", late.run(lambda: Term(1)))
                await s.until(lambda: s.items() == 3)
                if not running:
                    tasks.cancel()
                await put_back(server, copy)
                for n in range(4, 9):
                    await persist(partial(s.send, page(n, "a")))
                if not running:
                    assert not await persist(lambda: late.is_complete(s.tables.crawl_id))
                    tasks.start("again", late.run(lambda: Term(2)))
                await s.until(lambda: s.items() == 8)
                await s.until(lambda: s.sequence() == 6)
                assert await late.is_complete(s.tables.crawl_id)
                tasks.cancel()
            assert s.alarms == [REPLACED]
            assert s.tally.items_missed == 0

    asyncio.run(story())


@pytest.mark.parametrize("left", [0, 3])
def test_items_dropped_from_stream_are_reported_and_block_nothing(
    tmp_path: Path, server: BrokerServer, left: int
) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            await s.send(page(1, "a"))
            async with s.writing(1):
                await s.until(lambda: s.sequence() == 1)
            for n in range(2, 10):
                await s.send(page(n, "a"))
            await demand(s.broker._connection, f"STREAM.PURGE.{ITEMS}", {"keep": left}, 10.0)
            asking = s.writer()
            assert not await asking.is_complete(CrawlId(1))
            async with s.writing(2):
                await s.until(lambda: s.sequence() == 9)
                assert await asking.is_complete(CrawlId(1))
            assert (s.items(), s.tally.items_missed) == (1 + left, 8 - left)
            assert s.alarms[0].startswith(f"{8 - left} messages of items left their stream")

    asyncio.run(story())


@pytest.mark.parametrize("finishing", [False, True])
def test_idle_writer_asks_for_dropped_items_often_only_for_a_finishing_crawl(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch, finishing: bool
) -> None:
    monkeypatch.setattr("api.crawls.item_writer._READ_S", 0.0)
    monkeypatch.setattr("api.crawls.item_writer._SKIP_S", 3_600.0)

    async def story() -> None:
        async with stage(tmp_path, server) as s:
            looks = reads = 0
            state, resolve = s.broker.items_state, s.table.resolve_drafts

            async def looked() -> ItemsState:
                nonlocal looks
                looks += 1
                return await state()

            async def resolved(*arguments: Any) -> ItemChanges | None:
                nonlocal reads
                reads += 1
                return await resolve(*arguments)

            monkeypatch.setattr(s.broker, "items_state", looked)
            monkeypatch.setattr(s.table, "resolve_drafts", resolved)
            async with s.writing(1) as writer:
                if finishing:
                    writer._awaited[CrawlId(1)] = ItemPosition(0, 9)
                await s.until(lambda: reads >= 5)
            looks -= 1  # The check of the stream before the first read.
            assert looks >= 4 if finishing else looks == 1

    asyncio.run(story())


def test_a_broker_and_writer_that_die_lose_nothing(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s, s.writing(1) as writer:
            for n in range(5):
                await s.send(page(n, "a"))
            await s.until(lambda: s.sequence() >= 1)
            server.kill()
            await server.restart()
            async with asyncio.timeout(60):
                while True:
                    try:
                        await s.send(page(9, "a"))
                        break
                    except Transient:
                        s.sent -= 1
                        await asyncio.sleep(0.05)
            await s.until(lambda: s.items() == 6)
            async with asyncio.timeout(30):
                while not await writer.is_complete(CrawlId(1)):  # noqa: ASYNC110  the writer has no event for it
                    await asyncio.sleep(0.05)

    asyncio.run(story())


def test_items_whose_outcome_comes_late_are_in_the_table_before_the_end(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with stage(tmp_path, server) as s:
            await leased(s.run, s.tables.crawl_id, 5)
            pages = [page(1, "a", lease=5), page(14, "b", lease=5), page(2, "c", lease=5)]
            pages[1] = pages[1]._replace(url="https://a.test/later")
            await s.send(*pages, accepted=False)
            async with s.writing(1) as writer:
                await s.until(lambda: s.tables.value("SELECT count(*) FROM item_drafts") == 3)
                assert not await writer.is_complete(s.tables.crawl_id)
                assert s.items() == 0
                await fetched(s.run, s.tables.crawl_id, page(1, lease=5))
                await fetched(s.run, s.tables.crawl_id, page(14, lease=5))
                await ended(s.run, 5)
                while not await writer.is_complete(s.tables.crawl_id):  # noqa: ASYNC110  the database has no event for it
                    await asyncio.sleep(0.02)
                await s.until(lambda: s.tally.items_stored == 1)
                assert s.tally.items_dropped == {"unaccepted": 1}, "the outcome of /2 never came"
            assert s.items() == 1
            assert s.tables.value("SELECT count(*) FROM dead_letters") == 1, "what cannot be stored stalls nothing"
            assert s.tally.dead_letters["items"] == 1

    asyncio.run(story())
