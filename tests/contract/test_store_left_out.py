"""Links left out: a bounded number of examples, and counts that a repeated fetch replaces."""

from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from shared.adapters.sql.catalog import excluded_examples
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.explain.excluded_links import MAX_EXAMPLES, ExcludedLink, ExcludedLinkExample
from shared.domain.frontier.store_model import Changes, DiscoveredLink, FetchRow
from tests.support.database.store_tables import NOW_MS, Tables, link

OnStore = Callable[..., None]
PAGE = "http://a.test/page"


async def page_of(t: Tables) -> DiscoveredLink:
    page = link(PAGE)
    await t.found(page)
    return page


def example(t: Tables, page: DiscoveredLink, url: str, reason: str = "other_host") -> ExcludedLink:
    return ExcludedLink(t.crawl_id, reason, url, t.host_id(page.host), page.fingerprint)


def fetch(t: Tables, page: DiscoveredLink, status: int, counts: str | None, truncated: str | None = None) -> FetchRow:
    host_id = t.host_id(page.host)
    return FetchRow(
        t.crawl_id, host_id, page.fingerprint, NOW_MS, status, status == 200, truncated=truncated, left_out=counts
    )


def test_examples_are_bounded_by_reason_and_name_their_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        page = await page_of(t)
        for begin in range(0, 60, 15):
            urls = [f"http://b.test/{n:02}" for n in range(begin, begin + 15)]
            await t.apply(Changes(left_out=[example(t, page, url) for url in (*urls, urls[0])]))
        await t.apply(Changes(left_out=[example(t, page, "http://a.test/nul\0", "depth")]))
        kept = await cast(SqlStore, t.store).executor.read(lambda c: excluded_examples.examples(c, t.crawl_id))
        assert kept["other_host"] == [ExcludedLinkExample(f"http://b.test/{n:02}", PAGE) for n in range(MAX_EXAMPLES)]
        assert kept["depth"] == [ExcludedLinkExample("http://a.test/nul", PAGE)]

    on_store(story)


def test_a_link_that_the_crawl_knows_by_now_is_no_example(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        page = await page_of(t)
        await t.apply(Changes(left_out=[example(t, page, f"http://a.test/{n}", "depth") for n in (1, 2)]))
        await t.found(link("http://a.test/1"))
        kept = await cast(SqlStore, t.store).executor.read(lambda c: excluded_examples.examples(c, t.crawl_id))
        assert kept == {"depth": [ExcludedLinkExample("http://a.test/2", PAGE)]}

    on_store(story)


def test_repeated_fetch_replaces_counts_only_with_a_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        page = await page_of(t)
        first = fetch(t, page, 200, "depth 50;other_host 2", "length")
        counts = {("left_out", "depth"): 50, ("left_out", "other_host"): 2, ("truncated", "length"): 1}
        await t.apply(Changes(fetches=[first], tallies={(t.crawl_id, *key): n for key, n in counts.items()}))
        refused = fetch(t, page, 503, None)
        await t.apply(Changes(fetches=[refused], losses_to_replace=[refused]))
        assert (await t.store.tallies(t.crawl_id))["left_out"] == {"depth": 50, "other_host": 2}
        again = fetch(t, page, 200, "other_host 3")
        await t.apply(Changes(fetches=[again], losses_to_replace=[again]))
        assert await t.store.tallies(t.crawl_id) == {"left_out": {"other_host": 3}}

    on_store(story)


def test_page_that_becomes_noindex_replaces_the_counts_of_the_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        page = await page_of(t)
        first = fetch(t, page, 200, "depth 5", "length")
        counts = {("left_out", "depth"): 5, ("outlinks", "left_out"): 1, ("truncated", "length"): 1}
        await t.apply(Changes(fetches=[first], tallies={(t.crawl_id, *key): n for key, n in counts.items()}))
        for again, tallies in (
            (replace(fetch(t, page, 200, None), page=False, reason="noindex"), {"not_indexed": {"noindex": 1}}),
            (fetch(t, page, 503, None), {"not_indexed": {"noindex": 1}}),
            (fetch(t, page, 200, None), {}),
        ):
            await t.apply(Changes(fetches=[again], losses_to_replace=[again]))
            assert await t.store.tallies(t.crawl_id) == tallies

    on_store(story)
