"""Host policies on every engine: what is stored, and what the owner of a host loads after the command."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from sqlalchemy import select

from shared.adapters.sql.catalog import host_policies as policies
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.politeness import FOREVER_MS
from shared.domain.frontier.store_model import QueueRow
from shared.domain.ops.host_policies import (
    HostBlock,
    HostLimits,
    HostPolicyCommand,
    HostPolicySpec,
    StoredHostPolicy,
    limits_of,
)
from shared.domain.reads.declared import Actor, PutOutcome
from shared.ports.catalog import Full, Missing, Stale
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link, links

OPERATOR = Actor("0" * 16, "operator", "r")
HOST = "a.example.com"
SLOW = HostPolicySpec(delay_s=7.0, slots=2)
SHUT = HostPolicySpec(delay_s=0.25, block=HostBlock(reason="by mail", until="2030-01-01T00:00:00+01:00"))
UNTIL_MS = 1_893_452_400_000
Story = Callable[[Tables, SqlDesired], Awaitable[None]]


@pytest.fixture
def on_policies(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> Callable[[Story], None]:
    """`on_policies(story)` runs the story on a new database."""

    def run(story: Story) -> None:
        async def whole() -> None:
            async with new_tables() as t:
                assert isinstance(t.store, SqlStore)
                await story(t, SqlDesired(t.store.executor))

        asyncio.run(whole())

    return run


async def put(
    desired: SqlDesired, spec: HostPolicySpec, host: str = HOST, expected: frozenset[str] | None = None
) -> tuple[StoredHostPolicy, PutOutcome]:
    until_ms = UNTIL_MS if spec.block is not None and spec.block.until is not None else None
    return await desired.put_host_policy(
        host, PARTITION, spec, limits_of(spec, until_ms), expected=expected, actor=OPERATOR, now_ms=NOW_MS
    )


async def delete(desired: SqlDesired, host: str = HOST, expected: frozenset[str] | None = None) -> str:
    return await desired.delete_host_policy(host, expected=expected, actor=OPERATOR, now_ms=NOW_MS)


def loaded(queue: QueueRow) -> HostLimits:
    return HostLimits(queue.operator_delay_ms, queue.operator_blocked_until_ms, queue.operator_slots)


def test_policy_is_stored_as_put_with_one_command_a_change(on_policies: Callable[[Story], None]) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        first, outcome = await put(desired, SHUT)
        assert (first.spec, outcome, first.limits) == (SHUT, PutOutcome.CREATED, HostLimits(250, UNTIL_MS, 0))
        assert await desired.host_policy(HOST) == first
        assert await put(desired, SHUT) == (first, PutOutcome.UNCHANGED), "nothing differs, so nothing changes"
        second, outcome = await put(desired, SLOW, expected=frozenset({first.tag}))
        assert (second.spec, outcome, second.revision > first.revision) == (SLOW, PutOutcome.REPLACED, True)
        with pytest.raises(Stale):
            await put(desired, SHUT, expected=frozenset({first.tag}))
        with pytest.raises(Missing):
            await put(desired, SHUT, "b.example.com", expected=frozenset({first.tag}))
        with pytest.raises(Stale):
            await delete(desired, expected=frozenset({first.tag}))
        deleted = await delete(desired, expected=frozenset({second.tag}))
        with pytest.raises(Missing):
            await delete(desired)
        waiting = await desired.host_policy_commands(0)
        ids = [f"host-policy-{each.revision}" for each in waiting]
        assert ids == [first.command_id, second.command_id, deleted]
        assert [(each.host, each.partition) for each in waiting] == [(HOST, PARTITION)] * 3
        assert await desired.host_policy_commands(waiting[1].revision) == [waiting[2]]
        for each in waiting:
            await desired.host_policy_commanded(each.revision)
        assert await desired.host_policy_commands(0) == []
        assert isinstance(t.store, SqlStore)
        query = select(audit_log.c.action).where(audit_log.c.target == HOST).order_by(audit_log.c.id)
        actions = await t.store.executor.read(lambda c: c.execute(query).scalars().all())
        assert actions == ["host_policy.create", "host_policy.replace", "host_policy.delete"]
        again, _ = await put(desired, SLOW)
        assert again.revision > waiting[-1].revision, "a revision is never used again"

    on_policies(story)


def test_command_applies_the_policy_that_is_stored_then(on_policies: Callable[[Story], None]) -> None:
    """A command says nothing of the policy. So one that comes late, or twice, restores no earlier policy."""

    async def story(t: Tables, desired: SqlDesired) -> None:
        await t.found(*links(HOST, range(2)), *links("b.example.com", range(2)))
        await put(desired, SHUT)
        await put(desired, SLOW)
        await t.command("host_policy", id="first", host=HOST)
        assert loaded(await t.queue(HOST)) == HostLimits(7000, 0, 2)
        assert loaded(await t.queue("b.example.com")) == HostLimits()
        await put(desired, HostPolicySpec(block=HostBlock(reason="for good")))
        await t.command("host_policy", id="second", host=HOST)
        assert loaded(await t.queue(HOST)) == HostLimits(0, FOREVER_MS, 0)
        assert (await t.queue(HOST)).blocked_until_ms == 0, "the host's own back-off is apart"
        view = await SqlCatalog(t.store.executor).host(HOST, None)  # type: ignore[attr-defined]
        assert view is not None
        assert (view.held_until_ms, view.policy_reason) == (FOREVER_MS, "for good")
        await delete(desired)
        await t.command("host_policy", id="third", host=HOST)
        assert loaded(await t.queue(HOST)) == HostLimits()
        await t.command("host_policy", id="unknown", host="unknown.example.com")

    on_policies(story)


def test_new_host_has_the_policy_that_was_put_before(on_policies: Callable[[Story], None]) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        await put(desired, SHUT)
        await t.command("host_policy", id="early", host=HOST)
        assert t.rows("SELECT count(*) FROM hosts") == [(0,)]
        await t.found(link(f"http://{HOST}/1"), *(link(f"http://h{n}.test/") for n in range(700)))
        assert loaded(await t.queue(HOST)) == HostLimits(250, UNTIL_MS, 0)
        changed = t.rows("SELECT host FROM hosts WHERE operator_delay_ms + operator_blocked_until_ms > 0")
        assert changed == [(HOST,)]

    on_policies(story)


def test_policies_are_listed_by_host_up_to_their_limit(
    on_policies: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        monkeypatch.setattr(policies, "MAX_HOST_POLICIES", 3)
        for host in ("c.test", "a.test", "b.test"):
            await put(desired, SLOW, host)
        assert [each.host for each in await desired.host_policies(after="", max_count=2)] == ["a.test", "b.test"]
        assert [each.host for each in await desired.host_policies(after="b.test", max_count=2)] == ["c.test"]
        with pytest.raises(Full, match="3 host policies"):
            await put(desired, SLOW, "d.test")
        await put(desired, SHUT, "a.test")
        await delete(desired, "b.test")
        await put(desired, SLOW, "d.test")

    on_policies(story)


def test_commands_that_wait_are_read_in_parts(on_policies: Callable[[Story], None]) -> None:
    async def story(t: Tables, desired: SqlDesired) -> None:
        for number in range(policies.AT_ONCE + 5):
            await put(desired, HostPolicySpec(delay_s=float(number)))
        first = await desired.host_policy_commands(0)
        rest = await desired.host_policy_commands(first[-1].revision)
        assert (len(first), len(rest)) == (policies.AT_ONCE, 5)
        assert all(isinstance(each, HostPolicyCommand) for each in rest)

    on_policies(story)
