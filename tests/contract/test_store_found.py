"""The store's promises about discoveries: nothing twice, least depth, producers' counts, hosts' numbers."""

from collections.abc import Callable

import pytest

from shared.domain.frontier.states import LEVEL_MS, CrawlState, UrlState
from shared.domain.frontier.store_model import DeadLetterRow, DiscoveredLink, DiscoveryTransaction, ProducerMark
from shared.domain.ids import MAX_PARTITIONS, CrawlId, Term, partition_of_id
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, link, links

OnStore = Callable[..., None]

A = "http://a.example.com/"


def test_a_new_url_is_queued_with_its_rank_and_its_source(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        found_link = link(A + "x", 2, priority=1, hops=1, via=(77, b"v" * 16))
        found = await t.found(found_link)
        assert (found.new, found.known, found.queues) == (1, 0, {(t.crawl_id, t.host_id("a.example.com")): 1})
        row = t.url(found_link)
        assert (row["state"], row["depth"], row["hops"], row["via_host"], row["via"]) == (0, 2, 1, 77, b"v" * 16)
        assert row["rank"] == NOW_MS + LEVEL_MS
        queue = await t.queue("a.example.com")
        assert (queue.queued, queue.waiting, queue.leased, queue.host) == (1, 0, 0, "a.example.com")

    on_store(story)


def test_a_seed_has_no_source(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(seed := link(A))
        assert (t.url(seed)["via_host"], t.url(seed)["via"]) == (None, None)

    on_store(story)


def test_a_url_met_twice_in_a_batch_or_again_later_is_known(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        found = await t.found(link(A, 3), link(A, 1, hops=2), link(A, 2))
        assert (found.new, found.known) == (1, 2)
        assert (t.url(link(A))["depth"], t.url(link(A))["hops"]) == (1, 2)
        found = await t.found(link(A, 5))
        assert (found.new, found.known, found.queues) == (0, 1, {})
        assert t.url(link(A))["depth"] == 1

    on_store(story)


@pytest.mark.parametrize("state", [UrlState.QUEUED, UrlState.WAITING, UrlState.FAILED, UrlState.EXCLUDED])
def test_the_least_depth_wins_and_moves_nothing_else(on_store: OnStore, state: UrlState) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A, 5))
        row = await t.lease("a.example.com")
        assert row is not None
        await t.settle(row, state, due_ms=NOW_MS + 9)
        found = await t.found(link(A, 2, via=(8, b"n" * 16)), max_depth=9)
        assert (found.queues, found.lowered) == ({}, [])
        after = t.url(link(A))
        assert (after["depth"], after["state"], after["via_host"]) == (2, state, 8)

    on_store(story)


@pytest.mark.parametrize(("max_depth", "depth", "again"), [(9, 2, True), (3, 3, False), (None, 2, False)])
def test_a_done_page_is_queued_again_when_its_links_come_within_the_limit(
    on_store: OnStore, max_depth: int | None, depth: int, *, again: bool
) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A, 5))
        row = await t.lease("a.example.com")
        assert row is not None
        await t.settle(row, UrlState.DONE)
        found = await t.found(link(A, depth), max_depth=max_depth, now_ms=NOW_MS + 7)
        after = t.url(link(A))
        assert after["depth"] == depth
        if again:
            assert (after["state"], after["reason"], after["attempts"]) == (UrlState.QUEUED, "depth", 0)
            assert after["rank"] == NOW_MS + 7 + depth * LEVEL_MS
            assert list(found.queues.values()) == [1]
        else:
            assert (after["state"], found.queues) == (UrlState.DONE, {})

    on_store(story)


def test_a_leased_url_that_comes_nearer_is_told_to_its_owner_and_to_the_next(on_store: OnStore) -> None:
    """The page is queued again when it ends, also when the owner that saw the nearer link has died meanwhile."""

    async def story(t: Tables) -> None:
        await t.found(link(A, 5))
        row = await t.lease("a.example.com")
        assert row is not None
        found = await t.found(link(A, 2), max_depth=9)
        assert found.lowered == [(row.lease_id, link(A).fingerprint, 2)]
        (lease,) = (await t.claim(2)).leases
        (url,) = lease.urls.values()
        assert url.least == 2
        assert url.depth > url.least, "it was sent with a greater depth, and only the row remembers"
        await t.settle(lease, UrlState.QUEUED)
        again = await t.lease("a.example.com")
        assert again is not None
        (url,) = again.urls.values()
        assert (url.depth, url.least) == (2, 2), "what is sent anew is sent with the least depth"

    on_store(story)


def test_a_producers_message_counts_once(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.example.com", "ab"), refused=1, n=1)
        repeated = await t.found(*links("a.example.com", "ab"), refused=1, n=1)
        assert (repeated.repeats, repeated.new, repeated.known, repeated.refused) == (1, 0, 0, 0)
        counters = await t.store.counters(t.crawl_id)
        assert (counters.accepted, counters.new, counters.refused) == (3, 2, 1)

    on_store(story)


def test_a_repeat_inside_a_batch_counts_once(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        message = (ProducerMark(t.crawl_id, "w", 1, 1), (link(A),), 0)
        other = (ProducerMark(t.crawl_id, "v", 1, 1), (link(A + "v"),), 0)
        found = await t.found_batch(DiscoveryTransaction((message, other, message)))
        assert (found.new, found.known, found.repeats, found.gaps) == (2, 0, 1, 0)

    on_store(story)


def test_a_gap_is_counted_and_shows_in_the_identity_of_links(on_store: OnStore) -> None:
    """What a producer counted and nobody received cannot hide: accepted then exceeds new + known + refused."""

    async def story(t: Tables) -> None:
        await t.found(link(A + "1"), n=1)
        lost = DiscoveryTransaction(((ProducerMark(t.crawl_id, "w", 4, 10), (link(A + "4"),), 0),))
        found = await t.found_batch(lost)
        assert (found.gaps, found.new) == (1, 1)
        assert (await t.store.counters(t.crawl_id)).link_drift() == 8
        assert t.rows("SELECT n, total, gaps FROM producers") == [(4, 10, 1)]
        found = await t.found_batch(
            DiscoveryTransaction(((ProducerMark(t.crawl_id, "w", 5, 11), (link(A + "5"),), 0),))
        )
        assert found.gaps == 0

    on_store(story, wrong=["links 1/3: 3 rows, 11 kept"])


def test_links_of_a_deleted_or_unknown_crawl_change_nothing(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        gone, _ = await t.store.put_crawl("gone", "{}", NOW_MS)
        await t.store.set_state(gone.crawl_id, CrawlState.DELETED, None, NOW_MS)
        for crawl_id in (gone.crawl_id, CrawlId(404)):
            found = await t.found(link(A, crawl_id=crawl_id), crawl_id=crawl_id, producer=f"w{crawl_id}")
            assert (found.new, found.known, found.repeats, found.queues) == (0, 0, 0, {})
        assert [t.value(f"SELECT count(*) FROM {name}") for name in ("urls", "hosts", "producers")] == [0, 0, 0]
        assert t.position.discovery_seq == 2

    on_store(story)


def test_what_cannot_be_read_is_buried_with_the_position(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found_batch(
            DiscoveryTransaction((), (DeadLetterRow(None, "discovery", NOW_MS, "bad", payload=b"\xff"),)), at=41
        )
        assert t.rows("SELECT kind, evidence, payload FROM dead_letters") == [("discovery", "bad", b"\xff")]
        assert t.value("SELECT discovery_seq FROM partitions WHERE partition = ?", PARTITION) == 41

    on_store(story)


def test_hosts_keep_their_numbers_and_no_number_is_given_twice(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        first = await t.found(link("http://a.example.com/"), link("http://b.example.com/"))
        second = await t.found(link("http://b.example.com/2"), link("http://c.example.com/"))
        numbers = {name: number for number, name in (first.host_names | second.host_names).items()}
        assert sorted(numbers) == ["a.example.com", "b.example.com", "c.example.com"]
        assert {partition_of_id(number) for number in numbers.values()} == {PARTITION}
        assert len(set(numbers.values())) == 3
        assert min(numbers.values()) > MAX_PARTITIONS
        await t.claim(2)
        third = await t.found(link("http://d.example.com/"))
        (number,) = third.host_names
        assert number > max(numbers.values())

    on_store(story)


def test_a_batch_of_many_hosts_finds_those_it_knows(on_store: OnStore) -> None:
    """More hosts than one query names."""

    async def story(t: Tables) -> None:
        names = [f"h{i:04}.example.com" for i in range(1203)]
        await t.found(*(link(f"http://{name}/") for name in names[::2]))
        found = await t.found(*(link(f"http://{name}/") for name in names))
        assert (found.new, found.known) == (601, 602)
        assert t.rows("SELECT count(*), count(DISTINCT host_id), count(DISTINCT host) FROM hosts") == [(1203,) * 3]

    on_store(story)


def test_batches_of_several_crawls_are_kept_apart(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        there = link(A, 4, crawl_id=other.crawl_id)
        batch = DiscoveryTransaction(
            (
                (ProducerMark(t.crawl_id, "w", 1, 1), (link(A, 1),), 0),
                (ProducerMark(other.crawl_id, "w", 1, 2), (there,), 1),
            )
        )
        await t.found_batch(batch)
        assert t.rows("SELECT crawl_id, depth FROM urls ORDER BY 1") == [(t.crawl_id, 1), (other.crawl_id, 4)]
        counters = await t.store.counters(other.crawl_id)
        assert (counters.accepted, counters.new, counters.refused) == (2, 1, 1)

    on_store(story)


def test_two_partitions_allot_numbers_apart(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        there = await t.store.claim(OTHER, Term(1))
        other = Tables(t.store, t.at, t.crawl_id, there.fence)
        here: DiscoveredLink = link("http://a.example.com/")
        await t.found(here)
        await other.found(link("http://b.example.org/"), producer="v")
        assert [partition_of_id(t.host_id(host)) for host in ("a.example.com", "b.example.org")] == [PARTITION, OTHER]

    on_store(story)
