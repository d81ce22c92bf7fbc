"""The store's promises about leases: the best first, nothing taken twice, grants counted, what waits comes back."""

from collections.abc import Callable

import pytest
from msgspec.structs import asdict, replace

from shared.adapters.sql.frontier import apply as applying
from shared.adapters.sql.frontier import leasing
from shared.domain.frontier.page_history import PageHistory
from shared.domain.frontier.states import LEVEL_MS, UrlState
from shared.domain.frontier.store_model import Changes, DiscoveredLink, FetchRow, HostChange, LeaseRow
from shared.domain.ids import Fingerprint, HostId, LeaseId
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, books, link, links

OnStore = Callable[..., None]

HOST = "a.example.com"
A = f"http://{HOST}/"


async def _leased(t: Tables, max_count: int = 500, host: str = HOST) -> LeaseRow:
    row = await t.lease(host, max_count)
    assert row is not None
    return row


def _urls(row: LeaseRow) -> list[str]:
    return [row.urls[fingerprint].url.removeprefix(A) for fingerprint in row.order]


def test_the_best_are_leased_first_by_depth_priority_and_age(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A + "deep", 2), link(A + "shallow", 0), link(A + "wanted", 2, priority=3))
        await t.found(link(A + "later", 0), now_ms=NOW_MS + LEVEL_MS + 1)
        await t.found(link(A + "middle", 1), now_ms=NOW_MS - 1)
        row = await _leased(t, 4)
        assert _urls(row) == ["wanted", "shallow", "middle", "later"]
        assert _urls(await _leased(t)) == ["deep"]

    on_store(story)


def test_nothing_is_leased_twice(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(10)), *links("b.example.com", range(2)))
        rows = await t.lease_all([(HOST, 4), (HOST, 4), (HOST, 4), (HOST, 4), ("b.example.com", 4)])
        assert [len(row.order) for row in rows] == [4, 4, 2, 2], "a queue that had nothing gives no row"
        taken = [url.url for row in rows for url in row.urls.values()]
        assert len(taken) == len(set(taken)) == 12
        assert await t.lease(HOST) is None
        assert t.value("SELECT count(*) FROM leases") == 4
        assert t.value("SELECT next_lease FROM partitions WHERE partition = ?", PARTITION) == 7

    on_store(story)


def test_a_lease_is_stored_as_it_is_returned(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(600), depth=1))
        row = await _leased(t, 500)
        (loaded,) = (await t.claim(2)).leases
        assert loaded == row
        assert len(loaded.order) == 500
        queue = await t.queue(HOST)
        assert (queue.queued, queue.leased) == (100, 500)

    on_store(story)


def test_a_taken_over_lease_holds_only_what_is_not_settled_yet(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        row = await _leased(t)
        done = LeaseRow(**asdict(row))
        done.urls = {row.order[1]: row.urls[row.order[1]]}
        await t.settle(done, UrlState.DONE)
        assert (await t.claim(2)).leases == (), "the lease was freed"
        assert t.value("SELECT count(*) FROM urls WHERE state = 2") == 2

    on_store(story, wrong=["lease 4099: 2 rows, 0 kept"])


def test_a_partly_settled_lease_keeps_its_order(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        row = await _leased(t)
        one = LeaseRow(**asdict(row))
        one.urls, one.lease_id = {row.order[1]: row.urls[row.order[1]]}, LeaseId(1)
        await t.settle(one, UrlState.DONE)
        (loaded,) = (await t.claim(2)).leases
        assert loaded.order == row.order
        assert list(loaded.urls) == [row.order[0], row.order[2]] or set(loaded.urls) == {row.order[0], row.order[2]}

    on_store(story)


def test_grants_and_expiries_are_counted_for_the_next_owner(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(2)), *links("b.example.com", range(2)))
        rows = await t.lease_all([(HOST, 5), ("b.example.com", 5)])
        for leases in ([rows[0].lease_id, rows[1].lease_id], [rows[0].lease_id]):
            await t.store.grant(t.fence, leases)
            t.fence = t.fence.next()
        await t.apply(Changes(expired={rows[0].lease_id: 1}))
        assert [(row.grants, row.expired) for row in (await t.claim(2)).leases] == [(2, 1), (1, 0)]

    on_store(story)


def test_what_waits_comes_back_when_it_is_due_and_not_before(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        for seconds in (5, 9, 12):
            await t.settle(await _leased(t, 1), UrlState.WAITING, due_ms=NOW_MS + seconds * 1000, reason="http_503")
        queue = await t.queue(HOST)
        assert (queue.waiting, queue.next_due_ms) == (3, NOW_MS + 5000)
        assert await t.promote(HOST, NOW_MS + 4999) == 0
        assert await t.promote(HOST, NOW_MS + 9000) == 2
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (2, 1, NOW_MS + 12_000)
        assert len((await _leased(t)).order) == 2
        assert await t.promote(HOST, NOW_MS + 12_000) == 1
        assert (await t.queue(HOST)).next_due_ms == 0

    on_store(story)


def test_attempts_count_towards_the_next_lease(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A))
        row = await _leased(t)
        assert row.urls[row.order[0]].attempt == 1
        await t.settle(row, UrlState.WAITING, due_ms=NOW_MS)
        await t.promote(HOST, NOW_MS)
        row = await _leased(t)
        assert row.urls[row.order[0]].attempt == 2

    on_store(story)


def test_queues_are_listed_least_recently_served_first(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        hosts = [f"h{i}.example.com" for i in range(5)]
        for i, host in enumerate(hosts):
            await t.found(*links(host, range(2)), now_ms=NOW_MS + i)
        await t.lease("h0.example.com", 1, now_ms=NOW_MS + 90)
        await t.lease("h3.example.com", 5, now_ms=NOW_MS + 50)
        rows = await t.store.queues_by_readiness(PARTITION, t.crawl_id, 10, soon_ms=NOW_MS)
        assert [row.host for row in rows] == [hosts[i] for i in (1, 2, 4, 0)]
        rows = await t.store.queues_by_readiness(PARTITION, t.crawl_id, 2, soon_ms=NOW_MS)
        assert [row.host for row in rows] == [hosts[1], hosts[2]]
        missing = await t.store.queue_rows([(t.crawl_id, HostId(99)), (t.crawl_id, t.host_id(hosts[3]))])
        assert [(row.host, row.queued, row.leased) for row in missing] == [(hosts[3], 0, 2)]

    on_store(story)


def test_queues_due_soon_are_listed_before_blocked_and_waiting_ones(on_store: OnStore) -> None:
    """However many hosts are blocked, those that are not find their place in an owner's memory."""

    async def story(t: Tables) -> None:
        for i, host in enumerate(("blocked.example.com", "waits.example.com", "free.example.com")):
            await t.found(*links(host, range(1)), now_ms=NOW_MS + i)
        blocked = t.host_id("blocked.example.com")
        await t.apply(
            Changes(hosts={blocked: HostChange(blocked, 0, 0, 1, 0, NOW_MS, None, NOW_MS + 9000, NOW_MS, None)})
        )
        await t.settle(await _leased(t, 1, "waits.example.com"), UrlState.WAITING, due_ms=NOW_MS + 5000)

        async def listed(soon_ms: int) -> list[str]:
            rows = await t.store.queues_by_readiness(PARTITION, t.crawl_id, 9, soon_ms=soon_ms)
            return [row.host.split(".")[0] for row in rows]

        assert await listed(NOW_MS) == ["free", "blocked", "waits"]
        assert await listed(NOW_MS + 5000) == ["waits", "free", "blocked"]
        assert await listed(NOW_MS + 9000) == ["blocked", "waits", "free"]

    on_store(story)


@pytest.mark.parametrize("state", [UrlState.FAILED, UrlState.EXCLUDED])
def test_giving_up_host_ends_queued_urls_and_leaves_leased_ones(on_store: OnStore, state: UrlState) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(6)), *links("b.example.com", range(2)))
        out = await _leased(t, 2)
        await t.settle(await _leased(t, 1), UrlState.WAITING, due_ms=NOW_MS + 1)
        await t.apply(Changes(give_up=[(t.crawl_id, t.host_id(HOST), state, "host_unreachable")]))
        assert t.rows("SELECT state, count(*) FROM urls GROUP BY 1 ORDER BY 1") == [(0, 2), (2, 2), (int(state), 4)]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.leased, queue.next_due_ms) == (0, 0, 2, 0)
        assert (await t.store.tallies(t.crawl_id)) == {state.name.lower(): {"host_unreachable": 4}}
        await t.settle(out, UrlState.DONE)

    on_store(story)


def test_a_host_of_any_size_is_given_up_in_chunks(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction holds others up for as long as a host has URLs; broken off, what is left is queued as before."""
    monkeypatch.setattr(applying, "_GIVEN_UP_AT_ONCE", 4)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(8)), *links("b.example.com", range(3)))
        for due_s in (1, 2):
            await t.settle(await _leased(t, 1), UrlState.WAITING, due_ms=NOW_MS + due_s * 1000)
        ends = [(t.crawl_id, t.host_id(host), UrlState.FAILED, "host_unreachable") for host in (HOST, "b.example.com")]
        left = []
        unfinished = await t.apply(Changes(give_up=ends))
        while unfinished:
            queue = await t.queue(HOST)
            left.append((queue.queued, queue.waiting))
            assert books(t.at) == []
            unfinished = await t.apply(Changes(give_up=list(unfinished)))
        assert left == [(2, 2), (0, 0)]
        assert t.rows("SELECT state, count(*) FROM urls GROUP BY 1") == [(int(UrlState.FAILED), 11)]
        assert (await t.queue(HOST)).next_due_ms == 0
        assert (await t.store.tallies(t.crawl_id)) == {"failed": {"host_unreachable": 11}}

    on_store(story)


def test_what_is_due_at_once_comes_back_in_chunks_the_longest_due_first(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "_PROMOTED_AT_ONCE", 2)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        for seconds in (3, 1, 2):
            await t.settle(await _leased(t, 1), UrlState.WAITING, due_ms=NOW_MS + seconds * 1000)
        assert await t.promote(HOST, NOW_MS + 9000) == 2
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (2, 1, NOW_MS + 3000), "the rest stays due"
        assert await t.promote(HOST, NOW_MS + 9000) == 1
        assert await t.promote(HOST, NOW_MS + 9000) == 0

    on_store(story)


def _fetch(t: Tables, found: DiscoveredLink, at_ms: int, status: int, *, page: bool, segment: str | None) -> FetchRow:
    return FetchRow(
        crawl_id=t.crawl_id,
        host_id=t.host_id(found.host),
        fingerprint=Fingerprint(found.fingerprint),
        at_ms=at_ms,
        status=status,
        page=page,
        reason=None if page else f"http_{status}",
        segment=segment,
        offset=at_ms % 1000 if segment else None,
        length=10 if segment else None,
        title="T" if page else None,
    )


def test_a_page_keeps_its_record_when_a_later_fetch_brings_none(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(page := link(A))
        tries = [(1, 503, False, None), (2, 200, True, "s1"), (3, 500, False, None), (4, 200, True, "s2")]
        seen = []
        for at, status, stored, segment in tries:
            await t.apply(Changes(fetches=[_fetch(t, page, NOW_MS + at, status, page=stored, segment=segment)]))
            seen += t.rows('SELECT page, segment, "offset", title, status FROM fetches')
        assert seen == [
            (0, None, None, None, 503),
            (1, "s1", 2, "T", 200),
            (1, "s1", 2, "T", 200),
            (1, "s2", 4, "T", 200),
        ]
        history = t.value("SELECT history FROM fetches")
        assert history.split(";") == [f"{NOW_MS + 2} 200 -", f"{NOW_MS + 3} 500 http_500", f"{NOW_MS + 1} 503 http_503"]

    on_store(story)


def test_page_that_becomes_noindex_is_listed_no_more(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(page := link(A))
        await t.apply(Changes(fetches=[_fetch(t, page, NOW_MS, 200, page=True, segment="s1")]))
        hidden = replace(_fetch(t, page, NOW_MS + 1, 200, page=False, segment="s2"), reason="noindex")
        await t.apply(Changes(fetches=[hidden]))
        assert t.rows("SELECT page, segment, reason FROM fetches") == [(0, "s2", "noindex")]
        await t.apply(Changes(fetches=[_fetch(t, page, NOW_MS + 2, 200, page=True, segment="s3")]))
        assert t.rows("SELECT page, segment, reason FROM fetches") == [(1, "s3", None)]

    on_store(story)


def test_noindex_page_keeps_its_record_when_a_later_fetch_brings_none(on_store: OnStore) -> None:
    """A 503 that is retried took the digest, the validators and the number of the version of such a page."""

    async def story(t: Tables) -> None:
        await t.found(page := link(A))
        stored = replace(
            _fetch(t, page, NOW_MS, 200, page=False, segment="s1"), reason="noindex", digest=b"d" * 20, etag='"1"',
            recrawl=PageHistory(version=3).encoded(),
        )  # fmt: skip
        await t.apply(Changes(fetches=[stored]))
        for status in (503, 404):
            await t.apply(Changes(fetches=[_fetch(t, page, NOW_MS + 1, status, page=False, segment=None)]))
        [(digest, recrawl, *rest)] = t.rows("SELECT digest, recrawl, segment, reason, etag, status FROM fetches")
        assert (bytes(digest), bytes(recrawl)) == (stored.digest, stored.recrawl)
        assert rest == ["s1", "noindex", '"1"', 200]
        again = replace(_fetch(t, page, NOW_MS + 2, 200, page=False, segment="s2"), reason="unavailable_after")
        await t.apply(Changes(fetches=[again]))
        assert t.rows("SELECT segment, reason FROM fetches") == [("s2", "unavailable_after")]

    on_store(story)


def test_the_history_of_a_url_is_bounded(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(page := link(A))
        for at in range(60):
            await t.apply(Changes(fetches=[_fetch(t, page, NOW_MS + at, 404, page=False, segment=None)]))
        history = t.value("SELECT history FROM fetches")
        assert len(history) <= 512
        assert history.startswith(f"{NOW_MS + 58} 404")

    on_store(story)


def test_what_is_known_of_a_host_is_replaced_and_its_address_kept(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A))
        host_id = t.host_id(HOST)
        for ip, failures in (("192.0.2.1", 3), (None, 0)):
            change = HostChange(host_id, 2000, 150, failures, 1, NOW_MS, "dns", NOW_MS + 500, NOW_MS, ip)
            await t.apply(Changes(hosts={host_id: change}))
        assert t.rows("SELECT ip, failures, visited_at_ms FROM hosts") == [("192.0.2.1", 0, NOW_MS)]
        queue = await t.queue(HOST)
        assert (queue.crawl_delay_ms, queue.latency_ms, queue.failures, queue.unreachable) == (2000, 150, 0, 1)
        assert (queue.last_failure_ms, queue.blocked_until_ms) == (NOW_MS, NOW_MS + 500)

    on_store(story)
