"""Reads of the log of changes and of versions, on every engine: each once, in order, whatever a read may examine."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from shared.adapters.sql.catalog import changes as sql
from shared.domain.frontier.page_history import ChangeKind, PageHistory, change_of
from shared.domain.frontier.revisits import Superseded
from shared.domain.frontier.store_model import Changes, FetchRow
from shared.domain.reads.changes import ChangePlace, PageChangeView
from shared.domain.web.url import fingerprint
from shared.ports.catalog import UrlPlace
from tests.contract.test_catalog import catalog
from tests.support.database.store_tables import NOW_MS, Tables, links

NewTables = Callable[[], AbstractAsyncContextManager[Tables]]
HOSTS = ("a.test", "b.test")


@pytest.mark.parametrize("max_count", [1, 3, 100])
def test_changes_are_read_once_and_in_order(
    new_tables: NewTables, max_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "ROWS", 3)

    async def story() -> None:
        async with new_tables() as tables:
            await tables.found(*(each for host in HOSTS for each in links(host, range(6))))
            wanted = []
            for n in range(6):
                entries = []
                for host in HOSTS:
                    url = f"http://{host}/{n}"
                    kind = ChangeKind(n % 3 + 1)
                    entries.append(change_of(kind, tables.host_id(host), fingerprint(url), n + 1))
                    wanted.append((NOW_MS + n // 2, kind, url, n + 1))
                await tables.apply(Changes(page_changes={tables.crawl_id: entries}, at_ms=NOW_MS + n // 2))
            read = catalog(tables)
            found: list[PageChangeView] = []
            place: ChangePlace | None = ChangePlace(-1)
            while place is not None:
                some, place = await read.changes(
                    tables.crawl_id, after=place, kinds=list(ChangeKind), max_count=max_count
                )
                assert len(some) <= max_count
                found += some
            assert [(each.place.at_ms, each.kind, each.url, each.version) for each in found] == wanted
            gone, _ = await read.changes(
                tables.crawl_id, after=ChangePlace(NOW_MS + 1), kinds=[ChangeKind.GONE], max_count=100
            )
            assert [each.url for each in gone if each.kind is not ChangeKind.GONE] == []

    asyncio.run(story())


def test_versions_of_a_page_are_listed_newest_first(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            await tables.found(*links("a.test", range(1)))
            host_id, key = tables.host_id("a.test"), fingerprint("http://a.test/0")
            place, at = (tables.crawl_id, host_id, key), UrlPlace(host_id, key)
            read = catalog(tables)
            assert await read.versions(tables.crawl_id, at) == []
            for n in range(1, 4):
                row = FetchRow(*place, NOW_MS + n, 200, True, segment=f"s{n}", offset=n, length=9,
                               recrawl=PageHistory(version=n).encoded())  # fmt: skip
                await tables.apply(Changes(superseded=[Superseded(*place, n - 1, 0)], fetches=[row]))
            listed = await read.versions(tables.crawl_id, at)
            assert [(each.version, each.location.segment, each.newest) for each in listed] == [
                (3, "s3", True), (2, "s2", False), (1, "s1", False),
            ]  # fmt: skip

    asyncio.run(story())
