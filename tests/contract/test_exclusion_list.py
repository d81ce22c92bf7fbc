"""The revision of the list of exclusions, on every engine: only a change raises it, and masters change it in turn."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.ops.exclusions import ExclusionTerms, StoredExclusion
from shared.domain.reads.declared import Actor, Repeatable
from shared.ports.catalog import Exists, Stale
from tests.support.database.store_tables import NOW_MS, Tables

OPERATOR = Actor("0" * 16, "operator", "r")
TERMS = ExclusionTerms("asked by mail", "webmaster@a.test", None, withdraw=False)
NewTables = Callable[[], AbstractAsyncContextManager[Tables]]


def desired_of(t: Tables) -> SqlDesired:
    assert isinstance(t.store, SqlStore)
    return SqlDesired(t.store.executor)


async def add(desired: SqlDesired, target: str, repeatable: Repeatable | None = None) -> StoredExclusion:
    return await desired.add_exclusion(target, TERMS, 4, actor=OPERATOR, now_ms=NOW_MS, repeatable=repeatable)


async def put(
    desired: SqlDesired, exclusion_id: int, reason: str, expected: frozenset[str] | None = None
) -> StoredExclusion:
    terms = ExclusionTerms(reason, TERMS.requested_by, None, withdraw=False)
    return await desired.put_exclusion(exclusion_id, terms, 4, expected=expected, actor=OPERATOR, now_ms=NOW_MS)


def test_exclusion_list_keeps_its_revision_if_nothing_changes(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            desired = desired_of(t)
            assert await desired.exclusions_revision() == 0
            request = Repeatable("key", b"d" * 32)
            made = await add(desired, "a.test", request)
            assert made.revision == await desired.exclusions_revision() == 1
            assert await add(desired, "a.test", request) == made
            assert await put(desired, made.exclusion_id, TERMS.reason) == made
            with pytest.raises(Exists):
                await add(desired, "a.test")
            with pytest.raises(Stale):
                await put(desired, made.exclusion_id, "another", frozenset({"none"}))
            assert await desired.exclusions_revision() == 1

            changed = await put(desired, made.exclusion_id, "another")
            assert changed.revision == await desired.exclusions_revision() == 2
            await desired.delete_exclusion(made.exclusion_id, expected=None, actor=OPERATOR, now_ms=NOW_MS)
            assert await desired.exclusions_revision() == 3

    asyncio.run(story())


def test_exclusion_changed_by_two_at_once_gets_two_revisions(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            desired = desired_of(t)
            made = await add(desired, "a.test")
            changed = await asyncio.gather(*(put(desired, made.exclusion_id, f"reason {n}") for n in range(6)))
            assert sorted(each.revision for each in changed) == list(range(2, 8))
            last = max(changed, key=lambda each: each.revision)
            assert await desired.exclusion(made.exclusion_id) == last
            again = await asyncio.gather(*(put(desired, made.exclusion_id, last.terms.reason) for _ in range(6)))
            assert again == [last] * 6
            assert await desired.exclusions_revision() == 7

    asyncio.run(story())
