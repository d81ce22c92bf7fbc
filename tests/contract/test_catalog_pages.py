"""Reads of stored pages and seeds, on every engine: each row once, whatever the size of a page of the list."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from sqlalchemy import Connection, text

from shared.adapters.sql.catalog import pages as sql
from shared.adapters.sql.catalog import seeds
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.domain.archive.model import Exchange
from shared.domain.frontier.states import UrlState
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.ops.access import ApiKey, Role
from shared.domain.reads.declared import Actor, PageFilter
from shared.domain.reads.views import Page, SeedView
from shared.domain.web.url import Location, fingerprint, locate
from shared.ports.catalog import Missing, Stale, UrlPlace
from tests.contract.test_catalog import catalog
from tests.support.archive.archived_pages import elsewhere, reported
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.store_tables import NOW_MS, Tables, link

NewTables = Callable[[], AbstractAsyncContextManager[Tables]]
START = UrlPlace(HostId(-1), Fingerprint(b""))
SOMEONE = Actor("0" * 16, "test", "r")


def page(url: str, mime: bytes = b"text/html", status: int = 200) -> Exchange:
    return Exchange(answer(b"x", b"Content-Type: " + mime, url=url, status=status), AT_MS, 0)


async def stored(tables: Tables, exchanges: Iterable[Exchange]) -> None:
    held = list(exchanges)
    await reported(tables, held, [elsewhere("1-a.warc.gz", n * 100) for n in range(len(held))])


async def all_pages(read: SqlCatalog, crawl_id: CrawlId, which: PageFilter, max_count: int) -> list[Page]:
    found: list[Page] = []
    after: UrlPlace | None = START
    while after is not None:
        some, after = await read.pages(crawl_id, after=after, which=which, max_count=max_count)
        assert len(some) <= max_count
        found += some
    return found


def at(url: str) -> Location:
    location = locate(url)
    assert location is not None
    return location


@pytest.mark.parametrize("max_count", [1, 3, 100])
def test_every_page_is_listed_once_and_filters_keep_what_they_say(
    new_tables: NewTables, monkeypatch: pytest.MonkeyPatch, max_count: int
) -> None:
    monkeypatch.setattr(sql, "SCANNED", 4)

    async def story() -> None:
        async with new_tables() as tables:
            urls = [f"http://{host}.test/{n}" for host in "ab" for n in range(9)]
            await stored(tables, (page(url, b"text/plain" if url[-1] in "036" else b"text/html") for url in urls[:9]))
            await stored(tables, (page(url, status=404) for url in urls[9:]))
            read, crawl = catalog(tables), tables.crawl_id

            async def found(which: PageFilter) -> list[str]:
                return sorted(each.url for each in await all_pages(read, crawl, which, max_count))

            assert await found(PageFilter()) == urls
            assert await found(PageFilter(host="b.test")) == urls[9:]
            assert await found(PageFilter(status=404)) == urls[9:]
            assert await found(PageFilter(mime="text/plain")) == [urls[0], urls[3], urls[6]]
            assert await found(PageFilter("a.test", 200, "text/html")) == [urls[n] for n in (1, 2, 4, 5, 7, 8)]
            assert await found(PageFilter(host="none.test")) == []
            assert await all_pages(read, CrawlId(crawl + 1), PageFilter(), max_count) == []

    asyncio.run(story())


def test_one_page_is_found_by_its_place_and_by_its_url(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            await stored(tables, [page("http://a.test/1"), page("http://b.test/1")])
            await tables.found(link("http://a.test/known"))
            read, crawl = catalog(tables), tables.crawl_id
            found = await read.page(crawl, at("http://a.test/1"))
            assert found is not None
            assert (found.page.url, found.page.location.segment) == ("http://a.test/1", "1-a.warc.gz")
            assert (found.fetch.location, found.fetch.at_ms) == (found.page.location, AT_MS)
            place = UrlPlace(found.page.host_id, found.page.fingerprint)
            assert await read.page(crawl, place) == found
            elsewhere_ = UrlPlace(HostId(found.page.host_id + 1), found.page.fingerprint)
            for nothing in (at("http://a.test/known"), at("http://a.test/2"), at("http://c.test/1"), elsewhere_):
                assert await read.page(crawl, nothing) is None
            assert await read.page(CrawlId(crawl + 1), place) is None

    asyncio.run(story())


def test_seeds_are_what_no_page_led_to(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            declared = [f"http://{host}.test/{n}" for host in "ab" for n in range(7)]
            await tables.found(*(link(url, priority=n) for n, url in enumerate(declared)))
            via = (tables.host_id("a.test"), fingerprint(declared[0]))
            found = [link(f"http://a.test/found/{n}", 1, via=via) for n in range(20)]
            await tables.found(*found)
            # Found first, and declared afterwards.
            await tables.found(link("http://a.test/found/3"))
            read, crawl = catalog(tables), tables.crawl_id
            listed: list[SeedView] = []
            after = START
            while some := await read.seeds(crawl, after=after, max_count=4):
                assert len(some) <= 4
                listed += some
                after = UrlPlace(some[-1].host_id, some[-1].fingerprint)
            assert sorted(seed.url for seed in listed) == sorted([*declared, "http://a.test/found/3"])
            assert {seed.url: seed.priority for seed in listed}[declared[5]] == 5
            assert {seed.state for seed in listed} == {UrlState.QUEUED}
            assert {(seed.status, seed.fetched_at_ms) for seed in listed} == {(None, None)}

    asyncio.run(story())


def test_what_is_known_of_given_seeds(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            await stored(tables, [page("http://a.test/1")])
            await tables.found(link("http://a.test/2"), link("http://b.test/2"))
            read, crawl = catalog(tables), tables.crawl_id
            asked = [at(f"http://{host}.test/{n}") for host in "abc" for n in (1, 2, 3)]
            known = await read.known_seeds(crawl, asked)
            assert {seed.url: (seed.state, seed.status) for seed in known.values()} == {
                "http://a.test/1": (UrlState.DONE, 200),
                "http://a.test/2": (UrlState.QUEUED, None),
                "http://b.test/2": (UrlState.QUEUED, None),
            }
            assert all(mark == seed.fingerprint for mark, seed in known.items())
            assert await read.known_seeds(crawl, []) == {}
            assert await read.known_seeds(crawl, [at("http://c.test/")]) == {}
            assert await read.known_seeds(CrawlId(crawl + 1), asked) == {}

    asyncio.run(story())


def test_seeds_are_read_from_their_own_index(new_tables: NewTables) -> None:
    """However many URLs pages have led to, a page of the list of seeds looks at seeds."""

    def planned(connection: Connection) -> str:
        place: dict[str, Any] = {"crawl_id": 1, "after_host": -1, "after": b"", "max_count": 50}
        if connection.dialect.name == "sqlite":
            explain = "EXPLAIN QUERY PLAN "
        else:
            explain = "EXPLAIN "
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        return "\n".join(str(row) for row in connection.execute(text(explain + seeds._SEEDS.text), place))

    async def story() -> None:
        async with new_tables() as tables:
            await tables.found(link("http://a.test/"))
            via = (tables.host_id("a.test"), fingerprint("http://a.test/"))
            await tables.found(*(link(f"http://a.test/{n}", 1, via=via) for n in range(300)))
            assert "urls_seeds" in await catalog(tables)._run.read(planned)

    asyncio.run(story())


def test_a_key_is_revoked_as_it_was_seen_or_not_at_all(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            keys = catalog(tables)
            key = ApiKey("a" * 16, "ours", Role.VIEWER, b"d" * 32, NOW_MS, "test")
            await keys.add_key(key, actor=SOMEONE)
            with pytest.raises(Stale) as refused:
                await keys.revoke_key("ours", actor=SOMEONE, now_ms=NOW_MS, expected=frozenset({"other"}))
            assert refused.value.current == key.tag
            answers = await asyncio.gather(
                *(
                    keys.revoke_key("ours", actor=SOMEONE, now_ms=NOW_MS + n, expected=frozenset({key.tag}))
                    for n in range(6)
                ),
                return_exceptions=True,
            )
            assert sum(isinstance(each, ApiKey) for each in answers) == 1, answers
            assert sum(isinstance(each, Missing) for each in answers) == 5, answers
            kept = await keys.key(key.key_id)
            assert kept is not None
            assert kept.revoked_at_ms is not None
            with pytest.raises(Missing):
                await keys.revoke_key("ours", actor=SOMEONE, now_ms=NOW_MS + 99)
            assert await keys.key(key.key_id) == kept

    asyncio.run(story())
