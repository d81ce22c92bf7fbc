"""The store's promises about clusters, crawls, claims and the fence."""

from collections.abc import Awaitable, Callable

import pytest

from shared.domain.errors import OwnershipLost, Permanent
from shared.domain.frontier.states import CrawlState, Fence, Position, UrlState
from shared.domain.frontier.store_model import (
    Changes,
    CommandRun,
    Counters,
    DeadLetterRow,
    DiscoveryTransaction,
    LeaseRequest,
)
from shared.domain.ids import CrawlId, Fingerprint, LeaseId, Partition, Revision, Term
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, SUFFIXES, Tables, link, links

OnStore = Callable[..., None]


def test_partitions_and_suffixes_are_fixed_by_the_first_call_ever(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert await t.store.open_cluster(64, "net\n", NOW_MS + 1) == (8, SUFFIXES)

    on_store(story)


def test_a_crawl_gets_a_revision_only_when_its_spec_differs(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        first, changed = await t.store.put_crawl("docs", "{}", NOW_MS + 5)
        assert (first.revision, changed, first.created_at_ms) == (Revision(1), False, NOW_MS)
        await t.store.set_state(first.crawl_id, CrawlState.RUNNING, None, NOW_MS)
        await t.store.set_state(first.crawl_id, CrawlState.FINISHED, "complete", NOW_MS + 9)
        second, changed = await t.store.put_crawl("docs", '{"a":1}', NOW_MS + 10)
        assert (second.crawl_id, second.revision, changed) == (first.crawl_id, Revision(2), True)
        assert (second.state, second.finished_reason, second.finished_at_ms) == (CrawlState.SEEDING, None, None)
        assert t.rows("SELECT revision, spec FROM crawl_revisions ORDER BY 1") == [(1, "{}"), (2, '{"a":1}')]

    on_store(story)


def test_ids_of_deleted_crawls_are_never_used_again(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        await t.store.set_state(other.crawl_id, CrawlState.DELETED, None, NOW_MS)
        again, changed = await t.store.put_crawl("other", "{}", NOW_MS)
        assert changed
        assert again.crawl_id > other.crawl_id
        assert again.revision == 1
        assert [row.crawl_id for row in await t.store.worked_on()] == [t.crawl_id, again.crawl_id]
        deleted = await t.store.crawl(other.crawl_id)
        assert deleted is not None
        assert deleted.state is CrawlState.DELETED
        assert await t.store.crawl(CrawlId(99)) is None

    on_store(story)


def test_the_first_start_and_the_last_finish_are_dated(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        for at, state in (
            (1, CrawlState.RUNNING),
            (2, CrawlState.PAUSED),
            (3, CrawlState.RUNNING),
            (4, CrawlState.FINISHED),
        ):
            await t.store.set_state(t.crawl_id, state, "complete" if at == 4 else None, NOW_MS + at)
        await t.store.add_active_time(t.crawl_id, 1500)
        await t.store.add_active_time(t.crawl_id, 500)
        row = await t.store.crawl(t.crawl_id)
        assert row is not None
        assert (row.started_at_ms, row.finished_at_ms, row.finished_reason) == (NOW_MS + 1, NOW_MS + 4, "complete")
        assert row.active_ms == 2000

    on_store(story)


def test_counters_and_tallies_are_sums_over_partitions(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert await t.store.counters(t.crawl_id) == Counters()
        await t.found(*links("a.example.com", range(3)), refused=2)
        there = await t.store.claim(OTHER, Term(1))
        other = Tables(t.store, t.at, t.crawl_id, there.fence)
        await other.found(*links("b.example.org", range(4)), producer="w2")
        for tables, n in ((t, 2), (other, 5)):
            changes = Changes()
            changes.tallies[t.crawl_id, "status", "200"] += n
            changes.tallies[t.crawl_id, "failed", "x" * 80] += 1
            changes.counters[t.crawl_id]["stale"] += n
            await tables.apply(changes)
        counters = await t.store.counters(t.crawl_id)
        assert (counters.discovered, counters.queued, counters.accepted, counters.refused) == (7, 7, 9, 2)
        assert (counters.new, counters.stale, counters.version) == (7, 7, 4)
        assert counters.url_drift() == counters.link_drift() == 0
        assert await t.store.tallies(t.crawl_id) == {"failed": {"x" * 64: 2}, "status": {"200": 7}}

    on_store(story)


@pytest.mark.parametrize("term", [0, 1])
def test_an_equal_or_older_term_cannot_claim(on_store: OnStore, term: int) -> None:
    async def story(t: Tables) -> None:
        with pytest.raises(OwnershipLost):
            await t.store.claim(PARTITION, Term(term))
        assert await t.store.still_owner(t.fence)

    on_store(story)


def test_a_claim_finds_what_the_last_owner_committed(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link("http://a.example.com/1"), link("http://a.example.com/2", 3))
        row = await t.lease("a.example.com")
        assert row is not None
        await t.store.grant(t.fence, [row.lease_id])
        old = t.fence.next()
        claimed = await t.claim(7)
        assert claimed.position == Position(discovery_seq=1, discovery_ns=NOW_MS * 1_000_000)
        assert (claimed.next_host, claimed.next_lease) == (2, 2)
        (lease,) = claimed.leases
        assert (lease.lease_id, lease.grants, lease.order, lease.host) == (row.lease_id, 1, row.order, "a.example.com")
        assert lease.urls == row.urls
        assert not await t.store.still_owner(old)
        assert await t.store.newest_term() == 7
        with pytest.raises(OwnershipLost):
            await t.store.reload(PARTITION, Term(1))
        again = await t.store.reload(PARTITION, Term(7))
        assert again.fence == claimed.fence.next(), "no transaction begun before can commit any more"
        assert again.leases == claimed.leases

    on_store(story)


def _refused(t: Tables, fence: Fence) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every owner's write, under a fence that must refuse it."""
    moved = Position(1, 99, 99, 99, 99)
    found = DiscoveryTransaction((), (DeadLetterRow(None, "discovery", NOW_MS, "x"),))
    run = CommandRun("c", t.crawl_id, "retry_failed", {}, PARTITION)
    host = t.host_id("a.example.com")
    request = LeaseRequest(LeaseId(3), t.crawl_id, Revision(1), host, "a.example.com", 0, "default", 0, 5)
    letters = Changes(dead_letters=[DeadLetterRow(None, "url", NOW_MS, "x")])
    return {
        "apply": lambda: t.store.apply(fence, moved, letters),
        "apply_found": lambda: t.store.apply_found(fence, moved, found, next_host=77, max_depth={}, now_ms=NOW_MS),
        "accept_command": lambda: t.store.accept_command(fence, moved, run, NOW_MS),
        "run_command": lambda: t.store.run_command(fence, run, NOW_MS),
        "dispatch": lambda: t.store.dispatch(fence, 77, [request], NOW_MS),
        "grant": lambda: t.store.grant(fence, [LeaseId(4099)]),
        "promote": lambda: t.store.promote(fence, t.crawl_id, host, NOW_MS + 10_000),
    }


TABLES = (
    "partitions", "urls", "queues", "hosts", "leases", "dead_letters", "commands", "commands_in_progress",
    "crawl_counters", "producers",
)  # fmt: skip


@pytest.mark.parametrize("wrong", ["older term", "newer term", "passed version", "coming version", "another partition"])
def test_the_fence_refuses_every_write_and_nothing_of_it_is_written(on_store: OnStore, wrong: str) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.example.com", range(9)))
        out = await t.lease("a.example.com", 2)
        waits = await t.lease("a.example.com", 1)
        assert out is not None
        assert waits is not None
        await t.settle(waits, UrlState.WAITING, due_ms=NOW_MS + 1)
        fence = {
            "older term": Fence(PARTITION, Term(0), t.fence.version),
            "newer term": Fence(PARTITION, Term(2), t.fence.version),
            "passed version": Fence(PARTITION, Term(1), t.fence.version - 1),
            "coming version": t.fence.next(),
            "another partition": Fence(Partition(6), Term(1), t.fence.version),
        }[wrong]
        before = {name: t.rows(f"SELECT * FROM {name}") for name in TABLES}
        for name, write in _refused(t, fence).items():
            with pytest.raises(OwnershipLost):
                await write()
            assert {table: t.rows(f"SELECT * FROM {table}") for table in TABLES} == before, name

    on_store(story)


def test_rows_the_database_cannot_take_are_permanent_and_leave_nothing(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        letters = [
            DeadLetterRow(t.crawl_id, "url", NOW_MS, "kept only together"),
            DeadLetterRow(None, "url", 2**70, "x"),
        ]
        with pytest.raises(Permanent):
            await t.apply(Changes(dead_letters=letters))
        assert t.value("SELECT count(*) FROM dead_letters") == 0
        await t.bury(DeadLetterRow(t.crawl_id, "url", NOW_MS, "five grants", url="http://a/", payload=b"\x00\xff"))
        assert t.rows("SELECT partition, crawl_id, kind, at_ms, url, evidence, payload FROM dead_letters") == [
            (PARTITION, t.crawl_id, "url", NOW_MS, "http://a/", "five grants", b"\x00\xff")
        ]

    on_store(story)


def test_a_change_of_a_url_nobody_knows_changes_no_row(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link("http://a.example.com/"))
        changes = Changes(freed=[LeaseId(12345)], expired={LeaseId(12345): 2})
        changes.queue(CrawlId(9), t.host_id("a.example.com")).queued = 5
        await t.apply(changes)
        assert await t.store.queue_rows([(CrawlId(9), t.host_id("a.example.com"))]) == []
        assert t.value("SELECT count(*) FROM urls WHERE fingerprint = ?", Fingerprint(bytes(16))) == 0

    on_store(story)
