"""Requisites in SQL: their place in the queue, their own budget, and URLs that are both a requisite and a page."""

from collections.abc import Callable

from msgspec.structs import replace

from shared.domain.crawl.spec import Budget
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import ALSO_PAGE, HTML_REQUISITE, IS_REQUISITE, UrlKind, UrlState
from shared.domain.frontier.store_model import Changes, DiscoveredLink, LeaseRow, UrlChange
from shared.domain.ids import Term
from tests.contract.conftest import Story
from tests.support.database.store_tables import NOW_MS, OTHER, Tables, link, links

OnStore = Callable[[Story], None]
ONE_PAGE = Budget(max_pages=1)
HOST = "a.example.com"


def requisites(host: str, paths: list[str]) -> list[DiscoveredLink]:
    return [replace(each, kind=UrlKind.REQUISITE, hops=1, via_host=1, via=bytes(16)) for each in links(host, paths)]


def page(path: str, depth: int = 1) -> DiscoveredLink:
    return link(f"http://{HOST}/{path}", depth, via=(1, bytes(16)))


def urls(row: LeaseRow | None) -> list[str]:
    return [] if row is None else [row.urls[each].url.rpartition("/")[2] for each in row.order]


def state(t: Tables, path: str) -> tuple[object, ...]:
    [row] = t.rows("SELECT state, flags, depth, rank FROM urls WHERE fingerprint = ?", page(path).fingerprint)
    return row


async def fetched(t: Tables, row: LeaseRow, flags: int = 0) -> None:
    """End every URL of a lease as done, as a requisite whose row gets the further `flags`."""
    changes = Changes(freed=[row.lease_id])
    queue, counters = changes.queue(row.crawl_id, row.host_id), changes.counters[row.crawl_id]
    for fingerprint, url in row.urls.items():
        place = row.crawl_id, row.host_id, fingerprint
        changes.urls.append(UrlChange(*place, UrlState.DONE, 0, 1, url.flags | flags))
        queue.leased -= 1
        counters["leased"] -= 1
        counters["revisiting"] -= 1
        counters["done"] += 1
    await t.apply(changes)


def test_requisites_come_first_and_use_no_page_of_the_budget(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, ["p1", "p2"]), now_ms=NOW_MS - 10_000_000)
        await t.found(*requisites(HOST, ["r1", "r2"]))
        budgets = {t.crawl_id: ONE_PAGE}
        first = await t.lease(HOST, 1, budgets=budgets, requisites=True)
        assert set(urls(first)[:2]) == {"r1", "r2"}
        assert len(urls(first)) == 3, "and the one page of the budget"
        await t.found(*requisites(HOST, ["r3"]))
        assert urls(await t.lease(HOST, 0, budgets=budgets, requisites=True)) == ["r3"], "the page budget is spent"
        assert await t.lease(HOST, 0, budgets=budgets, requisites=True) is None

    on_store(story)


def test_requisite_that_waited_for_a_retry_is_one_again(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*requisites(HOST, ["r1"]), *links(HOST, ["p1"]))
        row = await t.lease(HOST, 0, requisites=True)
        assert row is not None
        changes = Changes(freed=[row.lease_id])
        queue, counters = changes.queue(row.crawl_id, row.host_id), changes.counters[row.crawl_id]
        [(fingerprint, url)] = row.urls.items()
        place = row.crawl_id, row.host_id, fingerprint
        changes.urls.append(UrlChange(*place, UrlState.WAITING, NOW_MS + 5, 1, url.flags | 16, "timeout"))
        queue.leased, queue.waiting, queue.next_due_ms = -1, 1, NOW_MS + 5
        counters.update({"leased": -1, "revisiting": -1, "queued": 1, "requisites": 1})
        await t.apply(changes)
        assert await t.promote(HOST, NOW_MS + 10) == 1
        assert urls(await t.lease(HOST, 0, requisites=True)) == ["r1"]

    on_store(story)


def test_failed_requisites_are_retried_as_requisites(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*requisites(HOST, ["r1"]))
        row = await t.lease(HOST, 0, requisites=True)
        assert row is not None
        changes = Changes(freed=[row.lease_id])
        queue, counters = changes.queue(row.crawl_id, row.host_id), changes.counters[row.crawl_id]
        [(fingerprint, url)] = row.urls.items()
        place = row.crawl_id, row.host_id, fingerprint
        changes.urls.append(UrlChange(*place, UrlState.FAILED, 0, 3, url.flags, "timeout"))
        changes.tallies[row.crawl_id, "failed", "timeout"] += 1
        queue.leased = -1
        counters.update({"leased": -1, "revisiting": -1, "failed": 1})
        await t.apply(changes)
        await t.command(CommandKind.RETRY_FAILED)
        assert urls(await t.lease(HOST, 0, requisites=True)) == ["r1"]

    on_store(story)


def test_budget_of_requisites_is_shared_and_the_rest_is_excluded(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        claimed = await t.store.claim(OTHER, Term(1))
        other = Tables(t.store, t.at, t.crawl_id, claimed.fence)
        await t.found(*requisites(HOST, ["1", "2", "3"]), max_requisites=5)
        await other.found(*requisites("b.example.org", ["1", "2", "3", "4"]), producer="w2", max_requisites=5)
        assert t.rows("SELECT sum(requisites), sum(queued), sum(excluded) FROM crawl_counters") == [(5, 5, 2)]
        assert t.rows("SELECT count(*) FROM urls WHERE reason = 'max_requisites'") == [(2,)]
        await other.found(*requisites("b.example.org", ["3", "4"]), producer="w2", max_requisites=6)
        assert t.rows("SELECT sum(requisites) FROM crawl_counters") == [(6,)], "found again under a greater budget"

    on_store(story)


def test_excluded_requisite_that_is_linked_is_queued_as_a_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*requisites(HOST, ["1", "2"]), max_requisites=1)
        [(path,)] = t.rows("SELECT url FROM urls WHERE reason = 'max_requisites'")
        name = str(path).rpartition("/")[2]
        await t.found(page(name, 2), max_requisites=1)
        assert state(t, name)[:3] == (UrlState.QUEUED, 0, 2)

    on_store(story)


def test_url_that_is_both_is_fetched_first_as_a_requisite(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(page("x"), *requisites(HOST, ["x"]))
        await t.found(page("y"))
        await t.found(*requisites(HOST, ["y"]))
        await t.found(*requisites(HOST, ["z"]))
        await t.found(page("z", 3), max_depth=5)
        for path, depth in (("x", 1), ("y", 1), ("z", 3)):
            assert state(t, path)[:3] == (UrlState.QUEUED, IS_REQUISITE | ALSO_PAGE, depth), path
            assert int(str(state(t, path)[3])) < 0
        assert len(urls(await t.lease(HOST, 0, requisites=True))) == 3

    on_store(story)


def test_seed_stays_a_page_and_a_known_page_keeps_its_depth(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, ["seed"]))
        await t.found(*requisites(HOST, ["seed"]))
        assert state(t, "seed")[1] == 0
        await t.found(page("x", 4))
        row = await t.lease(HOST)
        assert row is not None
        await t.found(*requisites(HOST, ["x"]))
        assert state(t, "x")[:3] == (UrlState.LEASED, 0, 4), "it is fetched as a page already"

    on_store(story)


def test_fetched_html_requisite_that_is_linked_is_queued_as_a_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*requisites(HOST, ["html"]))
        row = await t.lease(HOST, 0, requisites=True)
        assert row is not None
        await fetched(t, row, HTML_REQUISITE)
        await t.found(*requisites(HOST, ["image"]))
        row = await t.lease(HOST, 0, requisites=True)
        assert row is not None
        await fetched(t, row)
        await t.found(page("html", 2), page("image", 2), max_depth=3)
        assert state(t, "html")[:3] == (UrlState.QUEUED, 0, 2)
        assert state(t, "image")[0] == UrlState.DONE, "a picture is not fetched again"

    on_store(story)


def test_leased_requisite_that_is_linked_is_named_to_its_owner(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*requisites(HOST, ["x"]))
        row = await t.lease(HOST, 0, requisites=True)
        assert row is not None
        result = await t.found(page("x", 2))
        assert result.also_pages == [(row.lease_id, page("x").fingerprint)]
        assert state(t, "x")[:2] == (UrlState.LEASED, IS_REQUISITE | ALSO_PAGE)

    on_store(story)
