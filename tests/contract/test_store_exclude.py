"""The store's promises about exclusions: what is queued and covered leaves the queue, in every crawl, and only that."""

from collections.abc import Callable

import pytest
from sqlalchemy import insert

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.engine import chunks, page_schema
from shared.adapters.sql.frontier import exclude
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.exclusions import OWNER, Exclusions
from shared.domain.frontier.states import COUNTED_AS_PAGE, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveredLink, FetchRow, HostChange, UrlChange
from shared.domain.ids import CrawlId, HostId
from shared.domain.reads.declared import PageFilter
from shared.domain.reads.items import ItemFilter
from shared.ports.catalog import UrlPlace
from tests.support.database.store_tables import NOW_MS, Tables, link, links

OnStore = Callable[..., None]

HOST, SUBDOMAIN, OTHER = "a.example.com", "www.a.example.com", "b.example.com"
VIA = (4096, b"v" * 16)


async def excluded(t: Tables, target: str, *, id: str = "x", withdraw: bool = False) -> int:
    """Exclude a target, which is in force from now on, and run its command to the end; the number of its chunks."""
    t.exclusions = Exclusions(t.exclusions.revision + 1, [target])
    args: dict[str, object] = {"target": target, "revision": t.exclusions.revision, "withdraw": withdraw}
    return await t.run(await t.accept(CommandRun(id, CrawlId(0), "exclude", args, t.fence.partition)))


def states(t: Tables, *urls: DiscoveredLink) -> list[tuple[int, str | None]]:
    return [(t.url(url)["state"], t.url(url)["reason"]) for url in urls]


IN, OUT = (UrlState.QUEUED, None), (UrlState.EXCLUDED, OWNER)


def test_exclusion_empties_the_queues_of_all_crawls_and_no_other(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        mine, below = links(HOST, ("a", "b")), links(SUBDOMAIN, ("a",))
        free = links(OTHER, ("a",))
        await t.found(*mine, *below, *free)
        second, _ = await t.store.put_crawl("second", "{}", NOW_MS)
        theirs = link(f"http://{HOST}/c", crawl_id=second.crawl_id)
        await t.found(theirs, producer="v", crawl_id=second.crawl_id)
        waiting = await t.lease(HOST, 1)
        assert waiting is not None
        await t.settle(waiting, UrlState.WAITING, due_ms=NOW_MS + 60_000, reason="http_500")
        await excluded(t, HOST)
        assert states(t, *mine, *below, theirs) == [OUT] * 4
        assert states(t, *free) == [IN]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (0, 0, 0)
        for crawl_id, n in ((t.crawl_id, 3), (second.crawl_id, 1)):
            counters = await t.store.counters(crawl_id)
            assert (counters.excluded, counters.url_drift(), counters.link_drift()) == (n, 0, 0)
            assert (await t.store.tallies(crawl_id))["excluded"] == {OWNER: n}

    on_store(story)


def test_prefix_excludes_only_its_urls_and_leaves_leased_and_ended_ones(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        done, leased, private = links(HOST, ("private/done", "private/leased", "private/x"))
        public = link(f"http://{HOST}/public")
        await t.found(done)
        row = await t.lease(HOST, 1)
        assert row is not None
        await t.settle(row, UrlState.DONE)
        await t.found(leased)
        assert await t.lease(HOST, 1) is not None
        await t.found(private, public)
        await excluded(t, f"https://{HOST}/private/")
        assert states(t, done, leased, private, public) == [(UrlState.DONE, None), (UrlState.LEASED, None), OUT, IN]

    on_store(story)


def test_range_excludes_hosts_of_that_address(on_store: OnStore) -> None:
    """A name had the address when it was visited last; a literal is one."""

    async def story(t: Tables) -> None:
        named, free = link(f"http://{HOST}/a"), link(f"http://{OTHER}/a")
        literal, outside = link("http://192.0.2.7:8080/a"), link("http://198.51.100.1/a")
        await t.found(named, free, literal, outside)
        facts = (0, 1, 0, 0, NOW_MS, None, 0, NOW_MS)
        await t.apply(Changes(hosts={t.host_id(HOST): HostChange(t.host_id(HOST), *facts, ip="192.0.2.200")}))
        await excluded(t, "192.0.2.0/24")
        assert states(t, named, literal) == [OUT, OUT]
        assert states(t, free, outside) == [IN, IN]

    on_store(story)


def test_exclusion_goes_on_where_the_last_chunk_ended(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclude, "HOSTS_A_CHUNK", 2)
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 4)
    monkeypatch.setattr(chunks, "STEP", 3)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        second, _ = await t.store.put_crawl("second", "{}", NOW_MS)
        hosts = [f"h{n}.example.com" for n in range(5)]
        mine = [url for host in hosts for url in links(host, range(5))]
        theirs = [link(each.url, crawl_id=second.crawl_id) for each in mine]
        await t.found(*mine)
        await t.found(*theirs, producer="v", crawl_id=second.crawl_id)
        assert await excluded(t, "example.com") > 10
        for crawl_id in (t.crawl_id, second.crawl_id):
            counters = await t.store.counters(crawl_id)
            assert (counters.queued, counters.excluded, counters.url_drift()) == (0, 25, 0)

    on_store(story)


def test_exclusion_that_ended_before_its_command_excludes_nothing(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        (url,) = links(HOST, ("a",))
        await t.found(url)
        args: dict[str, object] = {"target": HOST, "revision": 1, "withdraw": True}
        run = await t.accept(CommandRun("x", CrawlId(0), "exclude", args, t.fence.partition))
        t.exclusions = Exclusions(2)
        await t.run(run)
        assert states(t, url) == [IN]

    on_store(story)


def test_link_that_is_covered_is_excluded_at_once_and_queued_when_found_free(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        covered, free = links(HOST, ("a", "b"), depth=3)
        found = await t.found(covered, free, excluded=[covered])
        assert states(t, covered, free) == [OUT, IN]
        assert list(found.queues.values()) == [1]
        again = await t.found(covered, excluded=[covered])
        assert (again.known, again.queues, states(t, covered)) == (1, {}, [OUT])
        nearer = link(covered.url, 1, via=VIA)
        back = await t.found(nearer)
        assert (list(back.queues.values()), states(t, covered)) == ([1], [IN])
        assert t.url(covered)["depth"] == 1
        counters = await t.store.counters(t.crawl_id)
        assert (counters.queued, counters.excluded) == (2, 0)
        assert (counters.url_drift(), counters.link_drift()) == (0, 0)
        assert (await t.store.tallies(t.crawl_id)).get("excluded", {}).get(OWNER, 0) == 0

    on_store(story)


def test_host_that_only_has_covered_links_has_a_queue(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        (covered,) = links(HOST, ("a",))
        found = await t.found(covered, excluded=[covered])
        queue = await t.queue(HOST)
        assert (found.queues, queue.queued, queue.waiting) == ({}, 0, 0)

    on_store(story)


def test_withdrawn_page_is_in_no_listing_and_others_stay(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        private, public = link(f"http://{HOST}/private/a"), link(f"http://{HOST}/public")
        await t.found(private, public)
        row = await t.lease(HOST)
        assert row is not None
        changes = Changes(freed=[row.lease_id])
        queue, counters = changes.queue(t.crawl_id, row.host_id), changes.counters[t.crawl_id]
        queue.leased, queue.pages = -2, 2
        counters.update(leased=-2, done=2, pages=2)
        for url in (private, public):
            changes.urls.append(
                UrlChange(t.crawl_id, row.host_id, url.fingerprint, UrlState.DONE, 0, 1, COUNTED_AS_PAGE)
            )
            changes.fetches.append(
                FetchRow(
                    t.crawl_id, row.host_id, url.fingerprint, NOW_MS, 200, True, segment="s.warc", offset=1, length=2,
                    title="t", digest=b"d" * 20,
                )
            )  # fmt: skip
        await t.apply(changes)
        for url in (private, public):
            await _item(t.store, t.crawl_id, row.host_id, url)

        async def shown() -> tuple[list[str], int]:
            at, which = UrlPlace(HostId(0), private.fingerprint), PageFilter(None, None, None)
            pages, _ = await catalog.pages(t.crawl_id, after=at, which=which, max_count=10)
            items, _ = await catalog.items(t.crawl_id, after=b"", which=ItemFilter(), max_count=10)
            return sorted(page.url for page in pages), len(items)

        assert await shown() == ([private.url, public.url], 2)
        await excluded(t, f"http://{HOST}/private/", id="x1")
        assert await shown() == ([private.url, public.url], 2), "an exclusion withdraws only if it says so"
        await excluded(t, f"http://{HOST}/private/", id="x2", withdraw=True)
        assert await shown() == ([public.url], 1)
        assert states(t, private) == [(UrlState.DONE, None)]
        place = UrlPlace(row.host_id, private.fingerprint)
        assert await catalog.page(t.crawl_id, place) is None

    on_store(story)


async def _item(store: SqlStore, crawl_id: CrawlId, host_id: HostId, url: DiscoveredLink) -> None:
    keys = {"crawl_id": crawl_id, "host_id": host_id, "fingerprint": url.fingerprint}
    item = {**keys, "item_id": url.fingerprint, "rule": "card", "data": "{}"}
    page = {**keys, "url": url.url, "lease_id": 1, "grants": 1, "at_ms": NOW_MS}
    await store.executor.write(lambda c: c.execute(insert(page_schema.items).values(**item)))
    await store.executor.write(lambda c: c.execute(insert(page_schema.item_pages).values(**page)))
