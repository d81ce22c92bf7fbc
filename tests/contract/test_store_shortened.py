"""URLs kept without their host's name: every reader has them whole."""

from collections.abc import Callable
from pathlib import Path

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Changes, DiscoveredLink, FetchRow
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.declared import PageFilter
from shared.domain.web.url import Location, locate
from shared.ports.catalog import UrlPlace
from tests.support.database.store_tables import NOW_MS, Tables, link

A, B = "a.example.com", "b.example.com:8080"
KEPT = {
    f"https://{A}/": "/",
    f"http://{A}/": ":/",
    f"https://{A}/x?y=/z": "/x?y=/z",
    f"http://{B}//doubled": "://doubled",
    f"https://{A}./dotted": f"https://{A}./dotted",
}
FIRST = UrlPlace(HostId(-1), Fingerprint(b""))


def all_links(via: DiscoveredLink | None = None, host_id: int = 0) -> list[DiscoveredLink]:
    return [link(url, 1, via=(host_id, via.fingerprint) if via else (0, b"")) for url in KEPT]


def store_of(t: Tables) -> SqlStore:
    assert isinstance(t.store, SqlStore)
    return t.store


async def fetched(t: Tables, host: str) -> None:
    """All of the host's URLs become pages."""
    row = await t.lease(host)
    assert row is not None
    stored = (
        FetchRow(t.crawl_id, row.host_id, key, NOW_MS, 200, page=True, segment="s.warc.gz", offset=1, length=1)
        for key in row.urls
    )
    await t.apply(Changes(fetches=list(stored)))
    await t.settle(row, UrlState.DONE)


def located(url: str) -> Location:
    at = locate(url)
    assert at is not None
    return at


def test_rows_do_not_repeat_the_name_of_their_host(on_store: Callable[..., None]) -> None:
    async def story(t: Tables) -> None:
        await t.found(*all_links())
        assert {t.url(found)["url"] for found in all_links()} == set(KEPT.values())
        assert {found.url: t.url(found)["url"] for found in all_links()} == KEPT

    on_store(story)


def test_workers_are_sent_whole_urls_now_and_after_a_takeover(on_store: Callable[..., None]) -> None:
    async def story(t: Tables) -> None:
        await t.found(*all_links())
        rows = await t.lease_all([(A, 10), (B, 10)])
        assert {url.url for row in rows for url in row.urls.values()} == set(KEPT)
        taken = await t.claim(2)
        assert {url.url for row in taken.leases for url in row.urls.values()} == set(KEPT)

    on_store(story)


def test_every_reader_has_them_whole(on_store: Callable[..., None]) -> None:
    """The way that led there, too, of another host and of one that was kept the other way."""

    async def story(t: Tables) -> None:
        old = link("https://b.example.com.:8080/old")
        await t.found(old)
        first = link(f"http://{A}/first", 1, via=(t.host_id(B), old.fingerprint))
        await t.found(first)
        await t.found(*all_links(first, t.host_id(A)))
        seed = link(f"https://{A}/seed")
        await t.found(seed)
        for host in (A, B):
            await fetched(t, host)
        catalog = SqlCatalog(store_of(t).executor)
        listed, _ = await catalog.urls(t.crawl_id, after=FIRST, state=None, host=None, max_count=100)
        came = {known.url: known.discovered_from for known in listed}
        assert came == dict.fromkeys(KEPT, first.url) | {first.url: old.url, old.url: None, seed.url: None}
        stored, _ = await catalog.pages(t.crawl_id, after=FIRST, which=PageFilter(), max_count=100)
        assert {page.url for page in stored} == came.keys()
        for url in came:
            at = located(url)
            view, page = await catalog.url(t.crawl_id, at), await catalog.page(t.crawl_id, at)
            assert view is not None
            assert page is not None
            assert (view.url, page.page.url) == (url, url)
            if url in KEPT:
                assert view.chain == (first.url, old.url)
        assert {one.url for one in await catalog.seeds(t.crawl_id, after=FIRST, max_count=9)} == {old.url, seed.url}
        known_seeds = await catalog.known_seeds(t.crawl_id, [located(seed.url), located(old.url)])
        assert {one.url for one in known_seeds.values()} == {old.url, seed.url}
        if isinstance(t.at, Path):
            reader = CrawlReader(t.at)
            assert {known.url: known.discovered_from for known in reader.urls(t.crawl_id)} == came
            assert {page.url for page in reader.pages(t.crawl_id)} == came.keys()
            reader.close()

    on_store(story)


def test_a_link_is_known_again_whichever_way_it_is_kept(on_store: Callable[..., None]) -> None:
    async def story(t: Tables) -> None:
        await t.found(*all_links())
        found = await t.found(*all_links(), now_ms=NOW_MS + 1)
        assert (found.new, found.known) == (0, len(KEPT))

    on_store(story)
