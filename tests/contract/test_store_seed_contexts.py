"""The promises of the store about contexts of seeds: the first stays, every reader finds it, others cost nothing."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from shared.adapters.sql.catalog import items as item_table
from shared.domain.archive.model import Exchange
from shared.domain.frontier.seed_contexts import SeedContext, context_of
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveredLink, FetchRow, LeaseRow, with_context
from shared.domain.ids import Fingerprint, HostId, LeaseId, Term
from shared.domain.reads.declared import PageFilter
from shared.domain.reads.items import CrawlItems, ItemFilter, ItemPosition, PageItems, TakenItem
from shared.domain.web.url import locate
from shared.ports.catalog import UrlPlace
from tests.contract.test_catalog import catalog
from tests.support.archive.archived_pages import elsewhere, reported
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.statement_log import executor_of, statements
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, link

OnStore = Callable[..., None]
NewTables = Callable[[], AbstractAsyncContextManager[Tables]]

HOST = "a.example.com"
A, B, C = f"http://{HOST}/", f"http://{HOST}/b", "http://c.example.com/"
VIA = (77, b"v" * 16)
RED = SeedContext((("team", "red"),), "list-1")
BLUE = SeedContext((("list", "2"), ("team", "blue")), "")


def given(url: str, context: SeedContext, depth: int = 0, *, seed: bool = True) -> DiscoveredLink:
    return with_context(link(url, depth, via=(0, b"") if seed else VIA), context)


def contexts(t: Tables) -> dict[str, str]:
    """The context of each URL that has one, as an independent reader finds it."""
    rows = t.rows(
        "SELECT u.url, s.context FROM url_contexts x JOIN urls u ON u.crawl_id = x.crawl_id AND u.host_id = x.host_id"
        " AND u.fingerprint = x.fingerprint JOIN seed_contexts s ON s.crawl_id = x.crawl_id"
        " AND s.context_id = x.context_id AND s.partition = ? ORDER BY 1",
        t.fence.partition,
    )
    return dict(rows)


async def context_in_shard(t: Tables, row: LeaseRow, url: str) -> SeedContext | None:
    (found,) = await t.store.contexts_of([(row.crawl_id, row.host_id, row.order)])
    return found.get(link(url).fingerprint)


def test_seed_and_link_have_the_context_they_came_with(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        found = await t.found(given(A, RED), given(B, BLUE, 1, seed=False), link(C))
        assert found.with_contexts == {t.crawl_id}
        row = await t.lease(HOST)
        assert row is not None
        assert await context_in_shard(t, row, A) == RED
        assert await context_in_shard(t, row, B) == BLUE
        assert await t.store.crawls_with_contexts(PARTITION, {t.crawl_id}) == {t.crawl_id}
        assert await t.store.crawls_with_contexts(OTHER, {t.crawl_id}) == set()
        other = await t.lease("c.example.com")
        assert other is not None
        assert await t.store.contexts_of([(other.crawl_id, other.host_id, other.order)]) == [{}]

    on_store(story)


def test_url_keeps_the_context_of_the_first_that_led_to_it(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(given(B, RED, 3, seed=False), given(B, BLUE, 1, seed=False))
        await t.found(given(B, BLUE, 2, seed=False))
        assert list(contexts(t).values()) == ['[[["team","red"]],"list-1"]'], "though another one was nearer"
        await t.found(link(A, 1, via=VIA))
        await t.found(given(A, BLUE, 1, seed=False))
        assert len(contexts(t)) == 1, "a URL that was found without a context gets none by a later link"

    on_store(story)


def test_seed_given_again_has_its_new_context_and_its_links_keep_theirs(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A), given(B, RED, 1, seed=False))
        row = await t.lease(HOST)
        assert row is not None
        await t.found(given(A, BLUE))
        assert await context_in_shard(t, row, A) == BLUE
        assert await context_in_shard(t, row, B) == RED
        await t.found(given(A, RED))
        await t.found(link(A))
        assert await context_in_shard(t, row, A) == RED, "given without any, it keeps what it had"
        assert t.value("SELECT count(*) FROM seed_contexts") == 2

    on_store(story)


def test_next_owner_has_the_contexts_of_shards_that_are_out(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(given(A, RED), link(B, 1, via=VIA))
        await t.lease(HOST)
        (row,) = (await t.claim(2)).leases
        assert row.contexts == {link(A).fingerprint: RED}

    on_store(story)


def test_repeated_message_changes_no_context(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(given(A, RED), n=1)
        again = await t.found(given(A, BLUE), n=1)
        assert (again.repeats, again.with_contexts) == (1, set())
        assert list(contexts(t).values()) == ['[[["team","red"]],"list-1"]']

    on_store(story)


def test_crawl_without_contexts_runs_no_statement_for_them(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        with statements() as run:
            await t.found(link(A), link(B, 1, via=VIA))
            row = await t.lease(HOST)
            assert row is not None
            await t.settle(row, UrlState.DONE)
        assert run
        assert [one for one in run if "contexts" in one] == []

    on_store(story)


def test_deleted_crawl_leaves_no_context(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*[given(f"{A}{n}", SeedContext((), f"list-{n}")) for n in range(50)])
        assert t.value("SELECT count(*) FROM seed_contexts") == 50
        await t.command("delete")
        assert t.value("SELECT count(*) FROM seed_contexts") == 0
        assert t.value("SELECT count(*) FROM url_contexts") == 0

    on_store(story)


def test_pages_read_again_for_a_wider_scope_have_their_context(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(given(A, RED))
        row = await t.lease(HOST)
        assert row is not None
        await t.settle(row, UrlState.DONE)
        fetch = FetchRow(*(t.crawl_id, row.host_id, link(A).fingerprint), NOW_MS, 200, True, left_out="other_host 1")
        await t.apply(Changes(fetches=[replace(fetch, segment="s", offset=0, length=1)]))
        command = await t.accepted(CommandRun("r", t.crawl_id, "rediscover", {"revision": 2}, t.fence.partition))
        assert [page.context for page in (await t.store.readable_pages(command)).pages] == [RED]

    on_store(story)


def test_pages_seeds_items_and_url_show_their_context(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            place = locate(A)
            assert place is not None
            await t.found(given(A, RED), link(B))
            pages = [Exchange(answer(b"x", b"Content-Type: text/html", url=url), AT_MS, 0) for url in (A, B)]
            await reported(t, pages, [elsewhere("1-a.warc.gz", n * 100) for n in range(2)])
            read, start = catalog(t), UrlPlace(HostId(-1), Fingerprint(b""))
            listed, _ = await read.pages(t.crawl_id, after=start, which=PageFilter(), max_count=9)
            assert {page.url: page.context for page in listed} == {A: RED, B: None}
            view = await read.page(t.crawl_id, place)
            assert view is not None
            assert view.page.context == RED
            seeds = await read.seeds(t.crawl_id, after=start, max_count=9)
            assert {seed.url: seed.context for seed in seeds} == {A: RED, B: None}
            url = await read.url(t.crawl_id, place)
            assert url is not None
            assert url.context == RED

            table = item_table.SqlItems(executor_of(t))
            fence, _ = await table.claim(Term(1))
            items = [
                PageItems(
                    t.host_id(HOST), link(each).fingerprint, each, LeaseId(1), 1, AT_MS, (TakenItem(key, "r", b"{}"),)
                )
                for each, key in ((A, b"a" * 16), (B, b"b" * 16))
            ]
            await table.apply(fence, ItemPosition(1, 1), [CrawlItems(t.crawl_id, tuple(items))], [])
            found, _ = await read.items(t.crawl_id, after=b"", which=ItemFilter(), max_count=9)
            assert {item.url: item.context for item in found} == {A: RED, B: None}
            one = await read.item(t.crawl_id, b"a" * 16)
            assert one is not None
            assert one.context == RED

    asyncio.run(story())


def test_label_with_any_text_is_read_back(on_store: OnStore) -> None:
    context = context_of({"note": "a 'quote', {curly}, ü and 漢"}, "https://example.org/?a=1%20;--")
    assert context is not None

    async def story(t: Tables) -> None:
        await t.found(given(A, context))
        row = await t.lease(HOST)
        assert row is not None
        assert await context_in_shard(t, row, A) == context

    on_store(story)
