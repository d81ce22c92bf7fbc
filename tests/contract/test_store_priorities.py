"""Priorities by rule, from the message of a worker to the shard: what matches is leased first, on each engine."""

from collections.abc import Callable

from api.frontier.discoveries import gather, with_priorities
from shared.domain.crawl.priority_rules import PriorityRule, compiled_priority
from shared.domain.frontier.states import LEVEL_MS, UrlState
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.url import partition_of
from shared.ports.broker import Delivered
from shared.wire.messages import Discoveries, Link, Origin, encode
from tests.support.database.store_tables import NOW_MS, Tables, link

OnStore = Callable[..., None]

HOST = "a.example.com"
A = f"http://{HOST}/"
RULES = (PriorityRule(match="/news/", value=10), PriorityRule(match="/(news|old)/", value=-5))
PARTITIONS = 8


async def _found(
    t: Tables, *links: Link, n: int = 1, rules: tuple[PriorityRule, ...] = RULES, max_depth: int | None = None
) -> None:
    """Apply a message as the owner of the host's partition does."""
    message = Discoveries(t.crawl_id, 1, "w", n, n * len(links), [Origin(77, b"v" * 16, list(links))])
    partition = Partition(partition_of(HOST, PARTITIONS))
    batch = gather([Delivered(n, NOW_MS * 1_000_000, encode(message))], partition, PARTITIONS)
    await t.found_batch(with_priorities(batch, {t.crawl_id: compiled_priority(rules)}), max_depth=max_depth)


async def _leased(t: Tables, max_count: int = 500) -> list[tuple[str, int]]:
    row = await t.lease(HOST, max_count)
    assert row is not None
    return [(row.urls[key].url.removeprefix(A), row.urls[key].priority) for key in row.order]


def test_urls_of_a_host_are_leased_by_the_priority_of_their_rule(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await _found(t, *(Link(A + path, 1) for path in ("old/1", "x", "news/1", "old/2", "y", "news/2")))
        taken = await _leased(t, 2)
        assert sorted(taken) == [("news/1", 10), ("news/2", 10)]
        rest = await _leased(t)
        assert sorted(rest[:2]) == [("x", 0), ("y", 0)]
        assert sorted(rest[2:]) == [("old/1", -5), ("old/2", -5)]

    on_store(story)


def test_deeper_url_with_priority_goes_first_and_a_seed_keeps_its_own(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await _found(t, Link(A + "x", 1), Link(A + "news/deep", 9), Link(A + "news/seed", 0, 0, -20))
        assert await _leased(t) == [("news/deep", 10), ("x", 0), ("news/seed", -20)]

    on_store(story)


def test_changed_rules_apply_to_urls_found_after_them(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await _found(t, Link(A + "news/1", 1), Link(A + "x", 1))
        none: tuple[PriorityRule, ...] = (PriorityRule(match="/x", value=50),)
        await _found(t, Link(A + "news/1", 1), Link(A + "x2", 1), n=2, rules=none)
        assert await _leased(t) == [("x2", 50), ("news/1", 10), ("x", 0)]

    on_store(story)


def test_page_queued_again_for_its_depth_has_the_present_priority(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A + "news/1", 5), producer="earlier")
        row = await t.lease(HOST)
        assert row is not None
        await t.settle(row, UrlState.DONE)
        await _found(t, Link(A + "news/1", 1), Link(A + "x", 1), max_depth=9)
        (fingerprint,) = row.order
        state, priority, rank = t.rows("SELECT state, priority, rank FROM urls WHERE fingerprint = ?", fingerprint)[0]
        assert (state, priority, rank) == (int(UrlState.QUEUED), 10, NOW_MS + (1 - 10) * LEVEL_MS)

    on_store(story)


def test_crawl_without_rules_keeps_its_batch_as_it_is() -> None:
    message = Discoveries(1, 1, "w", 1, 1, [Origin(77, b"v" * 16, [Link(A + "news/1", 1)])])
    batch = gather([Delivered(1, 1, encode(message))], Partition(partition_of(HOST, PARTITIONS)), PARTITIONS)
    assert with_priorities(batch, {}) is batch
    other = with_priorities(batch, {CrawlId(2): compiled_priority(RULES)})
    assert other.messages[0][1][0].priority == 0
