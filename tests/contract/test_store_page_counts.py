"""The counts of pages and sitemaps by rate: one that is fetched no more does not count, however it left the queue."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from shared.adapters.sql.engine import chunks
from shared.adapters.sql.frontier import apply
from shared.domain.crawl.spec import Scope
from shared.domain.frontier.page_history import PageHistory, decoded
from shared.domain.frontier.recrawl_pages import PAGES_WITH_SIGNS, RATES, SIGN_SHARE_SUM, SITEMAPS, counted
from shared.domain.frontier.revisits import RevisitRow
from shared.domain.frontier.states import COUNTED_AS_PAGE, REVISIT, UrlKind, UrlState, kind_flags
from shared.domain.frontier.store_model import Changes, FetchRow, QueueEnd, UrlChange
from shared.domain.ids import Fingerprint
from shared.domain.web.url import fingerprint
from tests.contract.test_store_exclude import excluded
from tests.contract.test_store_rescope import rescoped
from tests.contract.test_store_revisits import HOST, LATER_MS, pages
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import NOW_MS, Tables, books, link

OnStore = Callable[..., None]
RATE = 7 << 20
SITEMAP = replace(link(f"http://{HOST}/sitemap.xml", 0), kind=UrlKind.HOST_SITEMAP)


async def rated(t: Tables) -> None:
    """Let the crawl have three pages with rates, of which one is fetched by signs, and a sitemap. All wait."""
    row = await pages(t)
    histories = [PageHistory(checked_ms=NOW_MS, rate=RATE + n, sign_share=200 * (n == 2)) for n in range(3)]
    changes = Changes()
    for key, history in zip(row.order, histories, strict=True):
        changes.revisited.append(RevisitRow(row.crawl_id, row.host_id, key, history.encoded()))
        for kind, bucket, n in counted(history):
            changes.tallies[row.crawl_id, kind, str(bucket)] += n
    await t.apply(changes)
    await t.found(SITEMAP)
    leased = await t.lease(HOST)
    assert leased is not None
    place = (t.crawl_id, t.host_id(HOST), SITEMAP.fingerprint)
    history = PageHistory(checked_ms=NOW_MS, rate=RATE)
    changes = Changes(freed=[leased.lease_id])
    flags = kind_flags(UrlKind.HOST_SITEMAP) | REVISIT
    changes.urls.append(UrlChange(*place, UrlState.WAITING, LATER_MS, 0, flags, "new"))
    changes.fetches.append(FetchRow(*place, NOW_MS, 200, False, "sitemap", recrawl=history.encoded()))
    for kind, bucket, n in counted(history, page=False):
        changes.tallies[t.crawl_id, kind, str(bucket)] += n
    queue, counters = changes.queue(*place[:2]), changes.counters[t.crawl_id]
    queue.leased, queue.waiting = -1, 1
    counters["leased"], counters["queued"], counters["revisits"] = -1, 1, 1
    await t.apply(changes)


async def totals(t: Tables) -> dict[str, int]:
    """The sum of each kind of count, which must be what the stored histories say."""
    stored = await t.store.page_counts(t.crawl_id, t.fence.partition)
    told: dict[str, Counter[int]] = {kind: Counter() for kind in stored}
    query = (
        "SELECT u.flags, f.recrawl, f.at_ms FROM fetches f JOIN urls u ON u.crawl_id = f.crawl_id"
        " AND u.host_id = f.host_id AND u.fingerprint = f.fingerprint"
    )
    for flags, recrawl, at_ms in t.rows(query):
        history = decoded(None if recrawl is None else bytes(recrawl), at_ms)
        for kind, bucket, n in counted(history, page=bool(flags & COUNTED_AS_PAGE)):
            told[kind][bucket] += n
    assert stored == told
    assert t.rows("SELECT kind, key, n FROM crawl_tallies WHERE n < 0") == []
    return {kind: sum(numbers.values()) for kind, numbers in stored.items()}


async def by_exclusion(t: Tables) -> None:
    await excluded(t, HOST)


async def by_scope(t: Tables) -> None:
    found = text("UPDATE urls SET via_host = host_id WHERE depth > 0")  # on a page: no scope excludes a seed
    await executor_of(t).write(lambda c: c.execute(found).close())
    await rescoped(t, Scope(max_depth=0))


async def by_name(t: Tables) -> None:
    urls = [f"http://{HOST}/{n}" for n in range(3)] + [SITEMAP.url]
    await t.command("delete_seeds", id="d", all=False, places=[(HOST, fingerprint(url)) for url in urls])


async def by_replacement(t: Tables) -> None:
    await t.command("delete_seeds", id="d", all=True, places=[])


async def by_host(t: Tables) -> None:
    ends: Sequence[QueueEnd] = [(t.crawl_id, t.host_id(HOST), UrlState.FAILED, "host_unreachable")]
    while ends:
        ends = await t.apply(Changes(give_up=list(ends)))


@pytest.mark.parametrize("rows_a_chunk", [2, 500])
@pytest.mark.parametrize("end", [by_exclusion, by_scope, by_name, by_replacement, by_host])
def test_pages_and_sitemaps_that_leave_the_queue_do_not_count(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch, end: Callable[[Tables], Awaitable[None]], rows_a_chunk: int
) -> None:
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", rows_a_chunk)
    monkeypatch.setattr(apply, "_GIVEN_UP_AT_ONCE", rows_a_chunk)

    async def story(t: Tables) -> None:
        await rated(t)
        assert await totals(t) == {RATES: 3, SIGN_SHARE_SUM: 200, PAGES_WITH_SIGNS: 1, SITEMAPS: 1}
        await end(t)
        assert t.rows("SELECT count(*) FROM urls WHERE state IN (0, 1)") == [(0,)]
        assert await totals(t) == {RATES: 0, SIGN_SHARE_SUM: 0, PAGES_WITH_SIGNS: 0, SITEMAPS: 0}
        assert books(t.at) == []

    on_store(story)


def test_page_that_stays_in_the_queue_counts_on(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await rated(t)
        gone = Fingerprint(fingerprint(f"http://{HOST}/1"))
        await t.command("delete_seeds", id="d", all=False, places=[(HOST, gone)])
        left = await totals(t)
        assert (left[RATES], left[SITEMAPS]) == (2, 1)
        await excluded(t, "b.example.com")
        assert await totals(t) == left

    on_store(story)
