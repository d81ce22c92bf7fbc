"""Seed sets on every engine: what is stored, and what the owners of URLs make of a change, whatever came before."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import Verb
from shared.domain.frontier import command_progress
from shared.domain.frontier.commands import SEED_WITHDRAWN
from shared.domain.frontier.states import OF_SET, CrawlState, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveredLink
from shared.domain.ids import CrawlId
from shared.domain.ops import seed_sets
from shared.domain.ops.seed_sets import SeedSetCommand, StoredSeedSet, set_spec
from shared.domain.reads.declared import Actor, PutOutcome
from shared.ports.catalog import Full, Missing, Stale
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, books, link

OPERATOR = Actor("0" * 16, "operator", "r")
HOST = "a.example.com"
PAGE = (4096, b"v" * 16)
PARTITIONS = 64
Story = Callable[[Tables, SqlDesired], Awaitable[None]]
OnSets = Callable[[Story], None]


@pytest.fixture
def on_sets(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> OnSets:
    """`on_sets(story)` runs the story on a new database."""

    def run(story: Story) -> None:
        async def whole() -> None:
            async with new_tables() as t:
                assert isinstance(t.store, SqlStore)
                await story(t, SqlDesired(t.store.executor))
                assert books(t.at) == []
                counters = await t.store.counters(t.crawl_id)
                assert (counters.url_drift(), counters.link_drift()) == (0, 0)

        asyncio.run(whole())

    return run


def url(path: object) -> str:
    return f"http://{HOST}/{path}"


def crawl_of(t: Tables) -> str:
    return str(t.value("SELECT name FROM crawls WHERE crawl_id = ?", t.crawl_id))


async def put(
    t: Tables,
    desired: SqlDesired,
    seeds: Sequence[Any],
    name: str = "one",
    expected: frozenset[str] | None = None,
    *,
    new: bool = False,
) -> tuple[StoredSeedSet, PutOutcome]:
    spec = set_spec(seeds, {})
    return await desired.put_seed_set(
        crawl_of(t), name, spec, PARTITIONS, expected=expected, new=new, actor=OPERATOR, now_ms=NOW_MS
    )


async def delete(t: Tables, desired: SqlDesired, name: str = "one") -> str:
    return await desired.delete_seed_set(crawl_of(t), name, PARTITIONS, expected=None, actor=OPERATOR, now_ms=NOW_MS)


def seed_of(at: str, priority: int = 0) -> DiscoveredLink:
    return replace(link(at, priority=priority), of_set=True)


def command_of(t: Tables, change: SeedSetCommand) -> CommandRun:
    places = [[link(at).host, link(at).fingerprint] for at in change.removed]
    return CommandRun(f"c{change.revision}", t.crawl_id, "seed_set", {"places": places}, PARTITION)


async def publish(t: Tables, desired: SqlDesired) -> list[SeedSetCommand]:
    """Do what the leader and the owner of all URLs do with the changes that wait. Return them."""
    changes = list(await desired.seed_set_commands(0))
    for change in changes:
        if change.added:
            seeds = [seed_of(seed.url, seed.priority) for seed in change.added]
            await t.found(*seeds, producer=seed_sets.producer_of(change.revision))
        await t.run(await t.accept(command_of(t, change)))
        await desired.seed_set_commanded(change.revision)
    return changes


def state(t: Tables, path: object) -> tuple[int, str | None, int, int | None]:
    row = t.url(link(url(path)))
    return row["state"], row["reason"], row["depth"], row["via_host"]


QUEUED = (UrlState.QUEUED, None, 0, None)
WITHDRAWN = (UrlState.EXCLUDED, SEED_WITHDRAWN, 0, None)


def test_set_is_stored_as_put_with_one_command_a_change(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        given = [url(1).upper().replace("HTTP", "hTTp"), {"url": url(2), "priority": 5, "labels": {"a": "é\u2028"}}]
        first, outcome = await put(t, desired, given)
        assert (json.loads(first.document), first.count, outcome) == (given, 2, PutOutcome.CREATED)
        assert await desired.seed_set(crawl_of(t), "one") == first
        assert await put(t, desired, given) == (first, PutOutcome.UNCHANGED), "nothing differs, so nothing changes"
        second, outcome = await put(t, desired, given[1:], expected=frozenset({first.tag}))
        assert (second.revision > first.revision, outcome) == (True, PutOutcome.REPLACED)
        with pytest.raises(Stale):
            await put(t, desired, given, expected=frozenset({first.tag}))
        with pytest.raises(Stale):
            await put(t, desired, given, new=True)
        with pytest.raises(Missing):
            await put(t, desired, given, "two", expected=frozenset({first.tag}))
        with pytest.raises(Missing):
            await desired.seed_set(crawl_of(t), "two")
        with pytest.raises(Missing):
            await desired.seed_sets("nobody", after="", max_count=1)
        changes = await desired.seed_set_commands(0)
        assert [(each.revision, len(each.added), len(each.removed)) for each in changes] == [
            (first.revision, 2, 0), (second.revision, 0, 1)
        ]  # fmt: skip
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        progress = await catalog.command(second.command_id)
        assert progress is not None
        assert (progress.kind, progress.partitions) == ("seed_set", 1)
        lines = await t.store.executor.read(lambda c: c.execute(select(audit_log).order_by(audit_log.c.id)).all())
        assert [line.action for line in lines] == [
            "command.seed_set", "seed_set.create", "command.seed_set", "seed_set.replace"
        ]  # fmt: skip
        assert (json.loads(lines[-1].before)["seeds"], json.loads(lines[-1].after)["seeds"]) == (2, 1)
        listed = await desired.seed_sets(crawl_of(t), after="", max_count=10)
        assert [(each.name, each.count, each.tag) for each in listed] == [("one", 1, second.tag)]
        await publish(t, desired)

    on_sets(story)


def test_url_that_leaves_every_set_is_withdrawn_and_others_stay(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(n) for n in range(6)])
        await put(t, desired, [url(1)], "two")
        await t.found(link(url(2)))
        await publish(t, desired)
        await t.found(link(url(3)))
        await t.found(link(url(4), 7, via=PAGE), link(url(4), 3, via=PAGE), link(url(4), 5, via=PAGE))
        assert [state(t, n) for n in range(6)] == [QUEUED] * 6
        await put(t, desired, [])
        (change,) = await publish(t, desired)
        assert len(change.removed) == 6
        linked = (UrlState.QUEUED, None, 3, PAGE[0])
        assert [state(t, n) for n in range(6)] == [WITHDRAWN, QUEUED, QUEUED, QUEUED, linked, WITHDRAWN]
        assert (await t.store.tallies(t.crawl_id))["excluded"] == {SEED_WITHDRAWN: 2}
        await delete(t, desired, "two")
        await publish(t, desired)
        assert state(t, 1) == WITHDRAWN
        assert t.rows("SELECT * FROM seed_links") == []
        assert t.rows("SELECT * FROM seed_set_urls") == []

    on_sets(story)


def test_withdrawn_url_comes_back_by_a_link_or_a_seed_as_what_it_is(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(n) for n in range(4)])
        await publish(t, desired)
        await put(t, desired, [])
        await publish(t, desired)
        await t.found(link(url(0), 4, via=PAGE), link(url(1)))
        assert (state(t, 0), state(t, 1)) == ((UrlState.QUEUED, None, 4, PAGE[0]), QUEUED)
        await t.found(replace(link(url(3), 4, via=PAGE), outside="outside_prefix"))
        assert state(t, 3) == WITHDRAWN, "a link out of scope brings nothing back"
        await put(t, desired, [url(n) for n in range(3)])
        await publish(t, desired)
        assert [state(t, n) for n in range(3)] == [QUEUED] * 3, "the link of 0 is nearer now: the set has it"
        await put(t, desired, [])
        await publish(t, desired)
        assert [state(t, n) for n in range(3)] == [(UrlState.QUEUED, None, 4, PAGE[0]), QUEUED, WITHDRAWN]

    on_sets(story)


def test_link_and_seed_of_a_set_in_one_batch_are_both_kept(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(n) for n in range(3)])
        (change,) = await desired.seed_set_commands(0)
        seeds = [seed_of(seed.url) for seed in change.added]
        await t.found(link(url(0), 2, via=PAGE), *seeds, link(url(1)), link(url(0), 1, via=PAGE))
        await t.run(await t.accept(command_of(t, change)))
        await desired.seed_set_commanded(change.revision)
        assert [state(t, n) for n in range(3)] == [QUEUED] * 3
        await put(t, desired, [])
        await publish(t, desired)
        assert [state(t, n) for n in range(3)] == [(UrlState.QUEUED, None, 1, PAGE[0]), QUEUED, WITHDRAWN]

    on_sets(story)


def test_command_that_comes_late_withdraws_nothing_that_a_set_has(on_sets: OnSets) -> None:
    """The set loses its URL and gets it back before the owner applies that. The seeds may come before the command."""

    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(1)])
        await publish(t, desired)
        await put(t, desired, [])
        await put(t, desired, [url(1)])
        left, back = await desired.seed_set_commands(0)
        await t.found(seed_of(url(1)), producer=seed_sets.producer_of(back.revision))
        await t.run(await t.accept(command_of(t, left)))
        assert state(t, 1) == QUEUED
        again = await t.found(seed_of(url(1)), producer=seed_sets.producer_of(back.revision), n=1)
        assert again.repeats == 1
        for change in (left, back):
            await desired.seed_set_commanded(change.revision)
        await put(t, desired, [])
        await publish(t, desired)
        repeated = await t.found(seed_of(url(1)), producer=seed_sets.producer_of(back.revision), n=1)
        assert (repeated.repeats, state(t, 1)) == (1, WITHDRAWN), "seeds that a deposed leader sends again are dropped"

    on_sets(story)


def test_leased_url_is_withdrawn_once_its_lease_ends_unfetched(
    on_sets: OnSets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_progress, "PLACES_A_CHUNK", 2)

    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(0)])
        await publish(t, desired)
        row = await t.lease(HOST)
        assert row is not None
        await put(t, desired, [url(n) for n in range(4)])
        await publish(t, desired)
        await put(t, desired, [])
        (change,) = await desired.seed_set_commands(0)
        run: CommandRun | None = await t.accepted(command_of(t, change))
        for _ in range(2):
            assert run is not None
            run = await t.chunk(run)
        assert run is not None
        assert sorted(state(t, n)[0] for n in range(4)) == [UrlState.LEASED, *[UrlState.EXCLUDED] * 3]
        assert set(await t.store.leased_seeds(run)) <= set(row.urls)
        while (rest := await t.store.run_command(t.fence, run, NOW_MS)) is not None and rest > run.after:
            t.fence, run = t.fence.next(), replace(run, after=rest)
        t.fence = t.fence.next()
        assert (rest, set(await t.store.leased_seeds(run))) == (run.after, set(row.urls)), "it stays where it is"
        await t.settle(row, UrlState.QUEUED)
        await t.run(run)
        assert [state(t, n) for n in range(4)] == [WITHDRAWN] * 4
        await desired.seed_set_commanded(change.revision)

    on_sets(story)


@pytest.mark.parametrize(
    ("end", "after"), [(UrlState.DONE, (UrlState.DONE, None)), (UrlState.FAILED, (UrlState.EXCLUDED, SEED_WITHDRAWN))]
)
def test_fetched_url_stays_and_failed_one_is_not_tried_again(
    on_sets: OnSets, end: UrlState, after: tuple[UrlState, str | None]
) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(1)])
        await publish(t, desired)
        row = await t.lease(HOST)
        assert row is not None
        await t.settle(row, end, reason="http_500" if end is UrlState.FAILED else None)
        if end is UrlState.FAILED:
            await t.apply(Changes(tallies=Counter({(t.crawl_id, "failed", "http_500"): 1})))
        await put(t, desired, [])
        await publish(t, desired)
        assert state(t, 1)[:2] == after
        await t.command("retry_failed", id="r")
        assert state(t, 1)[:2] == after
        assert "http_500" not in (await t.store.tallies(t.crawl_id)).get("failed", {}), "nothing counts as failed"

    on_sets(story)


def test_upload_while_leased_outlives_the_outcome(on_sets: OnSets) -> None:
    """The owner's memory of a leased URL has its flags of before."""

    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(1)])
        await publish(t, desired)
        row = await t.lease(HOST)
        assert row is not None
        await t.found(link(url(1)))
        await t.settle(row, UrlState.QUEUED)
        assert t.url(link(url(1)))["flags"] & OF_SET == 0
        await put(t, desired, [])
        await publish(t, desired)
        assert state(t, 1) == QUEUED

    on_sets(story)


@pytest.mark.parametrize("every", [False, True])
def test_deletion_of_seeds_leaves_those_of_a_set_to_the_set(on_sets: OnSets, every: bool) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(t, desired, [url(1), url(2)])
        await t.found(link(url(1)), link(url(3)))
        await publish(t, desired)
        places = [] if every else [[HOST, link(url(n)).fingerprint] for n in (1, 2, 3)]
        await t.command("delete_seeds", id="d", all=every, places=places)
        assert [state(t, n)[0] for n in (1, 2, 3)] == [UrlState.QUEUED, UrlState.QUEUED, UrlState.EXCLUDED]
        await put(t, desired, [])
        await publish(t, desired)
        assert [state(t, n) for n in (1, 2)] == [WITHDRAWN] * 2, "the upload of 1 was taken back"

    on_sets(story)


def test_sets_and_seeds_are_bounded(on_sets: OnSets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.adapters.sql.catalog.seed_sets.MAX_SEED_SETS", 2)

    async def story(t: Tables, desired: SqlDesired) -> None:
        for name in ("one", "two"):
            await put(t, desired, [url(name)], name)
        with pytest.raises(Full):
            await put(t, desired, [url(3)], "three")
        await put(t, desired, [url(3)], "two")
        await delete(t, desired)
        await put(t, desired, [url(3)], "three")
        await publish(t, desired)
        assert (state(t, "one"), state(t, "two"), state(t, 3)) == (WITHDRAWN, WITHDRAWN, QUEUED)

    on_sets(story)


def test_unpublished_change_keeps_the_crawl_from_finishing(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        async def finished() -> bool:
            row = (await t.store.crawl_rows([t.crawl_id]))[0]
            counted = t.value("SELECT coalesce(sum(version), 0) FROM crawl_counters WHERE crawl_id = ?", t.crawl_id)
            return await t.store.advance_crawl(
                t.crawl_id, row.revision, row.state, CrawlState.FINISHED, "complete", NOW_MS, counted
            )

        await put(t, desired, [url(1)])
        assert not await finished()
        (change,) = await desired.seed_set_commands(0)
        await desired.seed_set_commanded(change.revision)
        assert await finished()

    on_sets(story)


def test_reset_moves_the_sets_and_sends_their_seeds_again(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        assert isinstance(t.store, SqlStore)
        await t.store.open_cluster(PARTITIONS, "com\n", NOW_MS)
        catalog, name = SqlCatalog(t.store.executor), crawl_of(t)
        first, _ = await put(t, desired, [url(1), url(1), url(2)])
        await publish(t, desired)
        unsent, _ = await put(t, desired, [url(9)], "two")
        _, made = await catalog.turn(name, Verb.RESET, expected=None, actor=OPERATOR, now_ms=NOW_MS)
        changes = await desired.seed_set_commands(0)
        sent = [(each.name, each.crawl_id, [seed.url for seed in each.added]) for each in changes]
        assert sent == [("one", made.crawl_id, [url(1), url(2)]), ("two", made.crawl_id, [url(9)])]
        after = await desired.seed_set(name, "one")
        assert (after.document, after.command_id) == (first.document, f"seed-set-{changes[0].revision}")
        assert after.revision > first.revision
        assert await catalog.command(unsent.command_id) is None, "no leader publishes it any more"
        assert await catalog.command(first.command_id) is not None
        for change in changes:
            await desired.seed_set_commanded(change.revision)

    on_sets(story)


def test_deleted_crawl_publishes_nothing_and_its_sets_are_collected(on_sets: OnSets) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        assert isinstance(t.store, SqlStore)
        catalog, name = SqlCatalog(t.store.executor), crawl_of(t)
        sets = [await put(t, desired, [url(each)], each) for each in ("one", "two")]
        await catalog.turn(name, Verb.DELETE, expected=None, actor=OPERATOR, now_ms=NOW_MS)
        assert await desired.seed_set_commands(0) == []
        with pytest.raises(Missing):
            await desired.seed_set(name, "one")
        ends = [await t.store.collected(CrawlId(t.crawl_id), NOW_MS) for _ in range(3)]
        assert ends == [False, False, True]
        for table in ("seed_sets", "seed_set_urls", "seed_set_commands"):
            assert t.value(f"SELECT count(*) FROM {table}") == 0, table
        assert [await catalog.command(stored.command_id) for stored, _ in sets] == [None, None]

    on_sets(story)
