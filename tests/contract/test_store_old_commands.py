"""Commands that are old, on every engine: forgotten once they are applied or given up, and kept while they are used."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Table, insert

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import schedule_effects, seed_set_commands
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.exclusions import ExclusionTerms
from shared.domain.ops.host_policies import HostLimits, HostPolicySpec
from shared.domain.ops.retention import DAY_MS, RetainedKind
from shared.domain.ops.seed_sets import command_id_of, part_of, set_spec
from shared.domain.reads.declared import Actor
from tests.support.database.retention_walk import walked
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables

OnStore = Callable[..., None]
OPERATOR = Actor("0" * 16, "operator", "r")


async def to_publish(t: Tables, table: Table, **values: Any) -> None:
    """Store that the leader still publishes a command."""
    assert isinstance(t.store, SqlStore)
    await t.store.executor.write(lambda c: c.execute(insert(table).values(**values)).close())


def test_half_applied_command_is_kept_while_the_leader_publishes_it(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        for name, partitions in (("done", 1), ("half", 2)):
            await catalog.ask(name, t.crawl_id, "retry_failed", "{}", partitions, actor=OPERATOR, now_ms=NOW_MS)
            await t.command("retry_failed", id=name)
        fired = {"schedule_id": 1, "due_ms": 1, "crawl": "crawl", "outcome": "fired", "detail": "", "at_ms": 1}
        await to_publish(t, schedule_effects, **fired, command="half")
        assert await walked(t, RetainedKind.COMMANDS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.COMMANDS) == [1]
        assert await catalog.command("done") is None
        half = await catalog.command("half")
        assert half is not None
        assert (half.applied, half.partitions) == (1, 2)
        assert t.rows("SELECT id FROM commands") == [("half",)], "what keeps it from being applied twice stays"

    on_store(story)


def test_command_whose_publication_was_given_up_is_forgotten_when_it_is_old(on_store: OnStore) -> None:
    """Only a broker that was away keeps it from its owners. The client asked again, and got another command."""

    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        for name in ("none", "half", "busy"):
            crawl_id = CrawlId(99) if name == "busy" else t.crawl_id
            await catalog.ask(name, crawl_id, "retry_failed", "{}", 2, actor=OPERATOR, now_ms=NOW_MS)
        await t.command("retry_failed", id="half")
        await t.accept(CommandRun("busy", CrawlId(99), "retry_failed", {}, PARTITION))
        assert await walked(t, RetainedKind.COMMANDS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.COMMANDS) == [2]
        assert t.rows("SELECT id FROM command_requests") == [("busy",)], "an owner has begun with it"
        assert t.rows("SELECT id FROM commands") == []

    on_store(story)


def test_commands_that_the_leader_still_publishes_are_kept(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        desired, catalog = SqlDesired(t.store.executor), SqlCatalog(t.store.executor)
        by: dict[str, Any] = {"actor": OPERATOR, "now_ms": NOW_MS}
        name = t.value("SELECT name FROM crawls WHERE crawl_id = ?", t.crawl_id)
        stored, _ = await desired.put_seed_set(
            name, "one", set_spec(["http://a.test/"], {}), 4, expected=None, new=True, **by
        )
        policy, _ = await desired.put_host_policy(
            "a.test", Partition(0), HostPolicySpec(delay_s=2.0), HostLimits(2000, 0, 0), expected=None, **by
        )
        excluded = await desired.add_exclusion("b.test", ExclusionTerms("asked by mail"), 4, **by)
        kept = {stored.command_id, policy.command_id, excluded.command_id}
        assert await walked(t, RetainedKind.COMMANDS) == [0]
        assert {row[0] for row in t.rows("SELECT id FROM command_requests")} == kept
        await desired.seed_set_commanded(stored.revision)
        await desired.host_policy_commanded(policy.revision)
        await desired.exclusion_commanded(excluded.exclusion_id, excluded.revision)
        assert await walked(t, RetainedKind.COMMANDS) == [3]
        assert await catalog.command(stored.command_id) is None

    on_store(story)


def test_parts_of_a_seed_set_command_go_with_the_command(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        whole = [command_id_of(n) for n in (1, 2, 12)]
        for name, partitions in zip(whole, (1, 2, 1), strict=True):
            await catalog.ask(name, t.crawl_id, "seed_set", "{}", partitions, actor=OPERATOR, now_ms=NOW_MS)
        for name in (whole[0], whole[1]):
            for left in (3, 2, 1):
                await t.command("seed_set", id=part_of(name, left), places=[])
        await t.command("seed_set", id=part_of(whole[2], 2), places=[])
        for revision in (2, 12):
            change = {"revision": revision, "crawl_id": t.crawl_id, "name": "one", "added": "[]", "removed": "[]"}
            await to_publish(t, seed_set_commands, **change)
        assert await walked(t, RetainedKind.COMMANDS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.COMMANDS) == [1]
        left_over = {part_of(whole[1], left) for left in (3, 2, 1)} | {part_of(whole[2], 2)}
        assert {row[0] for row in t.rows("SELECT id FROM commands")} == left_over, "these are not applied everywhere"

    on_store(story)
