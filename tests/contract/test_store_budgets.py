"""A crawl's budget is taken where URLs are leased, in SQL: never exceeded, whoever owns the partitions, and used up."""

import asyncio
from collections.abc import Callable

from sqlalchemy import Connection

from shared.adapters.sql.frontier import leasing
from shared.domain.crawl.spec import Budget
from shared.domain.frontier.states import Fence, UrlState
from shared.domain.frontier.store_model import Changes, LeaseRequest
from shared.domain.ids import CrawlId, HostId, LeaseId, Revision, Term, numbered
from tests.contract.conftest import Story
from tests.support.database.frozen_owner import stopped, waiting_for_a_lock
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, links

OnStore = Callable[[Story], None]
FIVE_PAGES = Budget(max_pages=5)


async def beside(t: Tables) -> Tables:
    """The owner of another partition, whose host b.example.org has ten URLs; t's host a.example.com has ten, too."""
    claimed = await t.store.claim(OTHER, Term(1))
    other = Tables(t.store, t.at, t.crawl_id, claimed.fence)
    await t.found(*links("a.example.com", range(10)))
    await other.found(*links("b.example.org", range(10)), producer="w2")
    return other


def test_partitions_share_one_budget_and_use_it_up(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other = await beside(t)
        budgets = {t.crawl_id: FIVE_PAGES}
        first = await t.lease("a.example.com", 4, budgets=budgets)
        assert first is not None
        rest = await other.lease("b.example.org", 4, budgets=budgets)
        assert rest is not None
        assert len(rest.order) == 1, "what is out may become a page, wherever it is"
        assert await t.lease("a.example.com", 4, budgets=budgets) is None
        await t.settle(first, UrlState.FAILED)
        await other.settle(rest, UrlState.DONE, pages=1)
        last = await other.lease("b.example.org", 9, budgets=budgets)
        assert last is not None
        assert len(last.order) == 4, "what became no page is given back, to whoever asks"

    on_store(story)


def test_one_transaction_shares_out_what_is_left_among_its_hosts(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.example.com", range(3)), *links("c.example.com", range(3)))
        wanted = [("a.example.com", 3), ("c.example.com", 3)]
        rows = await t.lease_all(wanted, budgets={t.crawl_id: FIVE_PAGES})
        assert [len(row.order) for row in rows] == [3, 2]

    on_store(story)


def test_nothing_is_leased_once_the_bytes_are_spent_in_any_partition(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other = await beside(t)
        budgets = {t.crawl_id: Budget(max_bytes=1000)}
        changes = Changes()
        changes.counters[t.crawl_id]["bytes"] += 999
        await t.apply(changes)
        row = await other.lease("b.example.org", 2, budgets=budgets)
        assert row is not None
        assert len(row.order) == 2
        changes = Changes()
        changes.counters[t.crawl_id]["bytes"] += 1
        await t.apply(changes)
        assert await other.lease("b.example.org", 2, budgets=budgets) is None
        assert await t.lease("a.example.com", 2) is not None, "a crawl without a budget is not held back"

    on_store(story)


def test_owners_who_lease_at_once_do_it_one_after_the_other(on_postgres: Callable[..., None]) -> None:
    """The second counts what the first took, though that was not committed when it began."""

    async def story(t: Tables, url: str) -> None:
        other = await beside(t)
        host, fence, crawl_id = t.host_id("a.example.com"), t.fence, t.crawl_id
        taken: list[int] = []

        def lease(connection: Connection) -> None:
            rows = leasing.dispatch(
                connection, fence, 2, [asked(fence, crawl_id, host)], NOW_MS, {crawl_id: FIVE_PAGES}
            )
            taken.append(len(rows[0].order))

        with stopped(url, lease, lambda _: None) as owner:
            await owner.there()
            later = asyncio.create_task(other.lease("b.example.org", 4, budgets={crawl_id: FIVE_PAGES}))
            await waiting_for_a_lock(t)
            assert await owner.go_on() == "committed"
            row = await later
        assert taken == [4]
        assert row is not None
        assert len(row.order) == 1

    on_postgres(story)


def asked(fence: Fence, crawl_id: CrawlId, host: HostId) -> LeaseRequest:
    lease_id = LeaseId(numbered(1, PARTITION))
    return LeaseRequest(lease_id, crawl_id, Revision(1), host, "a.example.com", 0, "default", 1000, 4)
