"""The table of items' promises, on every engine: the latest fetch of a page holds, and one writer at a time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from shared.adapters.sql.catalog import items as item_rows
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.revisits import write as write_revisits
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.revisits import RevisitRow
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Changes
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Term
from shared.domain.reads.items import (
    CrawlItems,
    ItemChanges,
    ItemFence,
    ItemFilter,
    ItemLetter,
    ItemPosition,
    PageItems,
    StoredItem,
    TakenItem,
)
from tests.support.database.fetch_rows import ended, fetched, leased
from tests.support.database.store_tables import NOW_MS, Tables

NewTables = Callable[[], AbstractAsyncContextManager[Tables]]


def page(number: int, *names: str, lease: int = 1, grant: int = 1, host: int = 4099) -> PageItems:
    """A fetch of a page that gave items of these names."""
    mark = Fingerprint(number.to_bytes(16))
    items = tuple(TakenItem(f"{number:8}{name:>8}".encode(), "card", f'{{"name":"{name}","l":{lease}}}'.encode())
                  for name in names)  # fmt: skip
    return PageItems(HostId(host), mark, f"https://a.test/{number}", LeaseId(lease), grant, NOW_MS + lease, items)


def at(sequence: int) -> ItemPosition:
    """The position after the message of this number, of the one stream of these tests."""
    return ItemPosition(77).moved(sequence, 1_000 * sequence)


class Written:
    """A writer of the table under test, and what others see of it."""

    def __init__(self, tables: Tables) -> None:
        assert isinstance(tables.store, SqlStore)
        self.tables = tables
        self.run = tables.store.executor
        self.table = SqlItems(self.run)
        self.catalog = SqlCatalog(tables.store.executor)
        self.fence = ItemFence(Term(0), 0)
        self.sequence = 0
        self.dropped: Counter[str] = Counter()

    async def claim(self, term: int) -> ItemPosition:
        self.fence, position = await self.table.claim(Term(term))
        self.sequence = position.sequence
        return position

    async def put(
        self, *pages: PageItems, crawl_id: CrawlId | None = None, letters: int = 0, accepted: bool = True
    ) -> int:
        """Apply them as the next message; items stored. `accepted`: their outcomes are applied before."""
        for each in sorted(pages, key=lambda page: page.version) if accepted else ():
            await self.accept(each, crawl_id)
        self.sequence += 1
        kept = [ItemLetter(NOW_MS, "cannot be read", b"\xc1")] * letters
        message = CrawlItems(crawl_id or self.tables.crawl_id, pages)
        changes = await self.table.apply(self.fence, at(self.sequence), [message], kept)
        return self._changed(changes)

    async def accept(
        self, page: PageItems, crawl_id: CrawlId | None = None, *, brings_page: bool = True, reason: str | None = None
    ) -> None:
        """Apply the outcome of a fetch, as its owner does; its lease goes on. With a `reason` it brings no page."""
        brings_page = brings_page and reason is None
        await fetched(self.run, crawl_id or self.tables.crawl_id, page, brings_page=brings_page, reason=reason)

    async def accept_unchanged(self, page: PageItems, items_at_ms: int | None) -> None:
        """Apply the outcome of a fetch that brought no new version, and a body only if `items_at_ms` is set."""
        row = RevisitRow(self.tables.crawl_id, page.host_id, page.fingerprint, b"", items_at_ms=items_at_ms)
        await self.run.write(lambda c: write_revisits(c, Partition(0), Changes(revisited=[row])))

    async def settle(self) -> int | None:
        """Settle what waits; items stored, None where nothing was decided."""
        changes = await self.table.resolve_drafts(self.fence, at(self.sequence), 100)
        return None if changes is None else self._changed(changes)

    def _changed(self, changes: ItemChanges) -> int:
        self.fence = ItemFence(self.fence.term, self.fence.version + 1)
        self.dropped.update(changes.dropped)
        return sum(changes.stored.values())

    async def names(self, which: ItemFilter | None = None) -> list[str]:
        found, _ = await self.catalog.items(self.tables.crawl_id, after=b"", which=which or ItemFilter(), max_count=100)
        return [item.data for item in found]


@pytest.fixture
def on_items(new_tables: NewTables) -> Callable[[Callable[[Written], Awaitable[None]]], None]:
    """`on_items(story)` runs it on a new table of each engine, claimed under term 1."""

    def run(story: Callable[[Written], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with new_tables() as tables:
                written = Written(tables)
                assert await written.claim(1) == ItemPosition()
                await story(written)

        asyncio.run(whole())

    return run


OnItems = Callable[[Callable[[Written], Awaitable[None]]], None]


def test_what_comes_again_is_there_once(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        for _ in range(3):
            assert await w.put(page(1, "a", "b"), page(2, "a")) == 3
        assert await w.names() == ['{"name":"a","l":1}', '{"name":"b","l":1}', '{"name":"a","l":1}']
        assert w.tables.value("SELECT count(*) FROM item_pages") == 2

    on_items(story)


def test_later_fetch_replaces_page_items_and_late_earlier_one_does_not(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "a", "b", "c", lease=5), page(2, "x", lease=5))
        assert await w.put(page(1, "b", lease=5, grant=2)) == 1
        assert await w.put(page(1, "a", "d", lease=5)) == 0, "an earlier grant of the same lease"
        assert await w.put(page(1, "z", lease=4, grant=9)) == 0, "an earlier lease"
        assert await w.names() == ['{"name":"b","l":5}', '{"name":"x","l":5}']
        assert await w.put(page(1, lease=6)) == 0
        assert await w.names() == ['{"name":"x","l":5}'], "a fetch that gives none takes away what was there"
        assert await w.put(page(1, "a", lease=5, grant=3)) == 0
        assert await w.names() == ['{"name":"x","l":5}'], "and what came before it stays away"

    on_items(story)


def test_fetch_that_forbids_to_index_removes_the_items_of_its_page(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "a", lease=3), page(2, "b", lease=3))
        await w.accept(page(1, lease=4), reason="noindex")
        await w.put(page(1, lease=4), accepted=False)
        await w.accept(page(2, lease=4), reason="http_503")
        await w.put(page(2, lease=4), accepted=False)
        assert await w.names() == ['{"name":"b","l":3}'], "an error keeps what was stored"
        await leased(w.run, w.tables.crawl_id, 5)
        await w.put(page(2, lease=5), accepted=False)
        await w.accept(page(2, lease=5), reason="unavailable_after")
        await w.settle()
        assert await w.names() == []

    on_items(story)


def test_fetch_without_a_new_version_replaces_the_items_of_its_page(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "a", lease=3), page(2, "a", lease=3))
        await w.accept_unchanged(page(1, lease=4), NOW_MS + 4)
        await w.accept_unchanged(page(1, lease=4), None)
        await w.put(page(1, "b", lease=4), page(2, "never", lease=4), accepted=False)
        assert await w.names() == ['{"name":"b","l":4}', '{"name":"a","l":3}'], "an answer 304 after it changes nothing"
        await leased(w.run, w.tables.crawl_id, 5)
        await w.put(page(1, "c", lease=5), accepted=False)
        assert await w.settle() is None
        await w.accept_unchanged(page(1, lease=5), NOW_MS + 5)
        assert await w.settle() == 1
        await w.put(page(1, "b", lease=4), accepted=False)
        assert await w.names() == ['{"name":"c","l":5}', '{"name":"a","l":3}'], "an earlier fetch does not come back"
        await w.put(page(1, "d", lease=6))
        await w.put(page(1, "c", lease=5), accepted=False)
        assert await w.names() == ['{"name":"d","l":6}', '{"name":"a","l":3}'], "nor one before a new version"
        assert w.dropped == {"unaccepted": 2, "outdated": 1}

    on_items(story)


def test_of_several_fetches_in_one_transaction_the_latest_holds(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "old", lease=3), page(1, "new", lease=5), page(1, "older", lease=2))
        assert await w.names() == ['{"name":"new","l":5}']

    on_items(story)


def test_items_wait_for_the_outcome_of_their_page(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "old", lease=3))
        await leased(w.run, w.tables.crawl_id, 5)
        assert await w.put(page(1, "new", lease=5), page(2, "other", lease=5), accepted=False) == 0
        assert await w.settle() is None
        assert await w.table.waiting([w.tables.crawl_id])
        assert await w.names() == ['{"name":"old","l":3}'], "what counts stays until the later fetch does"
        await w.accept(page(1, lease=5))
        assert await w.settle() == 1
        assert await w.names() == ['{"name":"new","l":5}']
        await w.accept(page(2, lease=5))
        await ended(w.run, 5)
        assert await w.settle() == 1
        assert await w.settle() is None
        assert not await w.table.waiting([w.tables.crawl_id])
        assert await w.names() == ['{"name":"new","l":5}', '{"name":"other","l":5}']

    on_items(story)


def test_items_of_a_fetch_that_was_never_accepted_are_dropped(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "old", lease=3))
        assert await w.put(page(1, "gone", lease=4), accepted=False) == 0, "its lease is over already"
        assert not await w.table.waiting([w.tables.crawl_id])
        await leased(w.run, w.tables.crawl_id, 5)
        await w.put(page(1, "cancelled", lease=5), page(2, "cancelled", lease=5), accepted=False)
        await ended(w.run, 5)
        assert await w.settle() == 0
        assert not await w.table.waiting([w.tables.crawl_id])
        assert await w.names() == ['{"name":"old","l":3}']
        assert w.tables.value("SELECT count(*) FROM dead_letters") == 0
        assert w.dropped == {"unaccepted": 3}

    on_items(story)


def test_dropped_items_are_counted_by_reason_whenever_that_is_known(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "new", lease=5, grant=2))
        assert await w.put(page(1, "a", "b", lease=5)) == 0
        assert w.dropped == {"outdated": 2}, "an earlier grant of the same lease"
        await w.put(page(1, "a"), page(2), crawl_id=CrawlId(999))
        assert w.dropped == {"outdated": 2, "deleted": 1}, "a page without items drops none"
        await leased(w.run, w.tables.crawl_id, 6)
        await w.put(page(3, "c", lease=6), accepted=False)
        await w.tables.store.set_state(w.tables.crawl_id, CrawlState.DELETED, None, NOW_MS)
        await ended(w.run, 6)
        assert await w.settle() == 0
        assert w.dropped == {"outdated": 2, "deleted": 2}

    on_items(story)


def test_items_of_a_page_count_when_a_later_fetch_brought_none(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.accept(page(1, lease=3))
        await w.accept(page(1, lease=4), brings_page=False)
        assert await w.put(page(1, "a", lease=3), accepted=False) == 1
        assert await w.put(page(1, "error", lease=4), accepted=False) == 0
        assert await w.names() == ['{"name":"a","l":3}']

    on_items(story)


def test_waiting_items_that_cannot_be_stored_become_a_letter(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await leased(w.run, w.tables.crawl_id, 5)
        await w.put(page(1, "a", lease=5), page(2, "b", lease=5), accepted=False)
        await ended(w.run, 5)
        for left in (1, 0):
            position = at(w.sequence)
            changes = await w.table.resolve_drafts(w.fence, position, 1, "cannot be stored")
            assert changes == ItemChanges({}, {})
            w.fence = ItemFence(w.fence.term, w.fence.version + 1)
            assert w.tables.value("SELECT count(*) FROM item_drafts") == left
        assert w.tables.rows("SELECT evidence FROM dead_letters") == [("cannot be stored",)] * 2

    on_items(story)


def test_items_of_crawls_that_are_deleted_or_never_were_are_not_stored(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        assert await w.put(page(1, "a"), crawl_id=CrawlId(999)) == 0
        await w.put(page(1, "a"))
        await w.tables.store.set_state(w.tables.crawl_id, CrawlState.DELETED, None, NOW_MS)
        assert await w.put(page(2, "b")) == 0
        assert w.tables.value("SELECT count(*) FROM items") == 1
        assert (await w.table.position()).sequence == 3, "they are passed all the same"

    on_items(story)


def test_the_items_of_a_deleted_crawl_are_removed_a_part_at_a_time(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        other, _ = await w.tables.store.put_crawl("other", "{}", NOW_MS)
        await w.put(*(page(n, "a", "b") for n in range(10)))
        await w.put(page(1, "kept"), crawl_id=other.crawl_id)
        parts = 0
        while not await w.table.remove(w.tables.crawl_id, 8):
            parts += 1
        assert parts == 3, "16 items, 4 with 8 pages, 2 pages"
        assert w.tables.rows("SELECT crawl_id FROM items") == [(other.crawl_id,)]
        assert w.tables.rows("SELECT crawl_id FROM item_pages") == [(other.crawl_id,)]

    on_items(story)


def test_who_was_followed_by_another_writes_nothing(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "a"))
        earlier = w.fence
        assert await w.claim(2) == at(1)
        with pytest.raises(OwnershipLost):
            await w.table.apply(earlier, at(9), [CrawlItems(w.tables.crawl_id, (page(2, "b"),))], [])
        with pytest.raises(OwnershipLost):
            await w.table.claim(Term(1))
        again = w.fence
        await w.claim(2)
        with pytest.raises(OwnershipLost):
            await w.table.apply(again, at(9), [], [])
        assert await w.table.position() == at(1)
        assert await w.put(page(2, "b")) == 1

    on_items(story)


def test_what_cannot_be_read_is_kept_as_a_letter_with_the_position(on_items: OnItems) -> None:
    async def story(w: Written) -> None:
        await w.put(page(1, "a"), letters=2)
        assert w.tables.rows("SELECT kind, evidence FROM dead_letters") == [("items", "cannot be read")] * 2
        assert await w.table.position() == at(1)

    on_items(story)


def test_items_are_listed_by_keys_and_narrowed(on_items: OnItems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_rows, "SCANNED", 3)

    async def story(w: Written) -> None:
        rare = page(5, "r")
        await w.put(*(page(n, "a", "b") for n in range(5)), rare._replace(items=(rare.items[0]._replace(rule="rare"),)))
        seen: list[bytes] = []
        after: bytes | None = b""
        while after is not None:
            found, after = await w.catalog.items(w.tables.crawl_id, after=after, which=ItemFilter(), max_count=2)
            assert len(found) <= 2
            seen += [item.id for item in found]
        assert (seen, len(seen)) == (sorted(set(seen)), 11)
        found, after = await w.catalog.items(w.tables.crawl_id, after=b"", which=ItemFilter(rule="rare"), max_count=9)
        assert (found, after is None) == ([], False), "a page of the list looks at a bounded number of rows"
        rest: list[StoredItem] = []
        while after is not None:
            found, after = await w.catalog.items(
                w.tables.crawl_id, after=after, which=ItemFilter(rule="rare"), max_count=9
            )
            rest += found
        assert [(item.rule, item.url) for item in rest] == [("rare", "https://a.test/5")]
        of_page = ItemFilter(page=Fingerprint((3).to_bytes(16)))
        assert len(await w.names(of_page)) == 2
        one = await w.catalog.item(w.tables.crawl_id, seen[0])
        assert one is not None
        assert (one.id, one.url, one.at_ms) == (seen[0], "https://a.test/0", NOW_MS + 1)
        assert await w.catalog.item(w.tables.crawl_id, b"none") is None
        assert await w.catalog.item(CrawlId(999), seen[0]) is None

    on_items(story)
