"""What operators want of the members, on every engine: revisions of the hot configuration, and drains."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from sqlalchemy import insert, select

from shared.adapters.sql.catalog import desired as desired_module
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log, config_revisions
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.errors import Refused
from shared.domain.ops.config import AS_STARTED, Drains, HotConfig, MasterPart, MemberRole, StoredConfig, WorkerPart
from shared.domain.reads.declared import Actor
from shared.ports.catalog import Missing, Stale
from tests.support.database.store_tables import NOW_MS, Tables

OPERATOR = Actor("0" * 16, "operator", "r")
BUSY = HotConfig(log_level="debug", worker=WorkerPart(max_visits=8), pools={"eu": WorkerPart(report_s=0.5)})
Story = Callable[[SqlDesired, SqlStore], Awaitable[None]]


@pytest.fixture
def on_desired(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> Callable[[Story], None]:
    """`on_desired(story)` runs the story on a new database."""

    def run(story: Story) -> None:
        async def whole() -> None:
            async with new_tables() as t:
                assert isinstance(t.store, SqlStore)
                await story(SqlDesired(t.store.executor), t.store)

        asyncio.run(whole())

    return run


async def audited(store: SqlStore) -> list[tuple[str, str, str]]:
    """The lines of the audit log: who, what, to what."""
    query = select(audit_log.c.actor, audit_log.c.action, audit_log.c.target).order_by(audit_log.c.id)
    return [tuple(row) for row in await store.executor.read(lambda c: c.execute(query).all())]


def test_a_configuration_that_nobody_wrote_says_nothing(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, _: SqlStore) -> None:
        assert await desired.config() == StoredConfig(0, AS_STARTED)
        assert await desired.config_revisions(before=100, max_count=10) == []
        with pytest.raises(Missing):
            await desired.config_revision(0)

    on_desired(story)


def test_every_earlier_revision_is_kept_and_who_made_it(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, store: SqlStore) -> None:
        first, made = await desired.put_config(BUSY, expected=frozenset({"0"}), actor=OPERATOR, now_ms=NOW_MS)
        assert (first, made) == (StoredConfig(1, BUSY, NOW_MS, str(OPERATOR)), True)
        second, _ = await desired.put_config(AS_STARTED, expected=frozenset({"1"}), actor=OPERATOR, now_ms=NOW_MS + 5)
        assert await desired.config() == second == StoredConfig(2, AS_STARTED, NOW_MS + 5, str(OPERATOR))
        assert await desired.config_revision(1) == first
        assert await desired.config_revisions(before=9, max_count=10) == [second, first]
        assert await desired.config_revisions(before=2, max_count=1) == [first]
        assert await audited(store) == [
            (str(OPERATOR), "config.replace", "revision 1"),
            (str(OPERATOR), "config.replace", "revision 2"),
        ]

    on_desired(story)


def test_what_is_so_already_makes_no_revision(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, store: SqlStore) -> None:
        assert await desired.put_config(AS_STARTED, expected=None, actor=OPERATOR, now_ms=1) == (
            StoredConfig(0, AS_STARTED),
            False,
        )
        await desired.put_config(BUSY, expected=None, actor=OPERATOR, now_ms=1)
        _, made = await desired.put_config(BUSY, expected=frozenset({"1"}), actor=OPERATOR, now_ms=2)
        assert not made
        assert len(await audited(store)) == 1

    on_desired(story)


def test_of_many_who_change_the_same_revision_exactly_one_succeeds(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, store: SqlStore) -> None:
        wanted = [HotConfig(worker=WorkerPart(max_visits=n)) for n in range(1, 9)]
        answers = await asyncio.gather(
            *(desired.put_config(each, expected=frozenset({"0"}), actor=OPERATOR, now_ms=NOW_MS) for each in wanted),
            return_exceptions=True,
        )
        ((stored, made),) = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert made
        assert stored == await desired.config()
        assert [answer.current for answer in answers if isinstance(answer, Stale)] == ["1"] * 7

    on_desired(story)


def test_writes_without_a_version_are_all_revisions(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, _: SqlStore) -> None:
        wanted = [HotConfig(master=MasterPart(report_batch_size=n)) for n in range(1, 9)]
        answers = await asyncio.gather(
            *(desired.put_config(each, expected=None, actor=OPERATOR, now_ms=NOW_MS) for each in wanted)
        )
        assert sorted(stored.revision for stored, _ in answers) == list(range(1, 9))

    on_desired(story)


def test_a_document_of_a_newer_version_is_read_as_far_as_it_is_known(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, store: SqlStore) -> None:
        newer = '{"worker":{"max_visits":8,"appetite":"good"},"kitchen":{"oven":1}}'
        row = {"revision": 7, "document": newer, "changed_at_ms": 1, "changed_by": "a newer program"}
        await store.executor.write(lambda c: c.execute(insert(config_revisions).values(**row)).close())
        assert (await desired.config()).config == HotConfig(worker=WorkerPart(max_visits=8))

    on_desired(story)


def test_a_drain_is_kept_until_it_is_taken_back(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, store: SqlStore) -> None:
        assert await desired.drains() == Drains()
        assert await desired.drain(MemberRole.WORKER, "w2", actor=OPERATOR, now_ms=1)
        assert await desired.drain(MemberRole.WORKER, "w1", actor=OPERATOR, now_ms=1)
        assert await desired.drain(MemberRole.MASTER, "w1", actor=OPERATOR, now_ms=1), "masters have their own names"
        assert not await desired.drain(MemberRole.WORKER, "w1", actor=OPERATOR, now_ms=2), "again is harmless"
        assert await desired.drains() == Drains(masters=("w1",), workers=("w1", "w2"))
        assert await desired.undrain(MemberRole.WORKER, "w1", actor=OPERATOR, now_ms=3)
        assert not await desired.undrain(MemberRole.WORKER, "w1", actor=OPERATOR, now_ms=3)
        assert await desired.drains() == Drains(masters=("w1",), workers=("w2",))
        assert [(action, target) for _, action, target in await audited(store)] == [
            ("worker.drain", "w2"),
            ("worker.drain", "w1"),
            ("master.drain", "w1"),
            ("worker.undrain", "w1"),
        ]

    on_desired(story)


def test_old_drains_of_members_that_are_gone_are_forgotten_and_no_others(on_desired: Callable[[Story], None]) -> None:
    async def story(desired: SqlDesired, _: SqlStore) -> None:
        for at, name in ((1, "old"), (1, "living"), (9, "new")):
            await desired.drain(MemberRole.WORKER, name, actor=OPERATOR, now_ms=at)
        await desired.drain(MemberRole.MASTER, "living", actor=OPERATOR, now_ms=1)
        missing = Drains(masters=("living",), workers=("new", "old"))
        forgotten = await desired.forget_drains(missing, before_ms=5, now_ms=10)
        assert forgotten == Drains(masters=("living",), workers=("old",)), "a worker's life is no master's"
        assert await desired.drains() == Drains(workers=("living", "new"))

    on_desired(story)


def test_only_so_many_are_drained_as_one_record_carries(
    on_desired: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desired_module, "MAX_DRAINS", 2)

    async def story(desired: SqlDesired, _: SqlStore) -> None:
        for name in ("w1", "w2"):
            await desired.drain(MemberRole.WORKER, name, actor=OPERATOR, now_ms=1)
        with pytest.raises(Refused, match="undrain"):
            await desired.drain(MemberRole.WORKER, "w3", actor=OPERATOR, now_ms=1)
        assert not await desired.drain(MemberRole.WORKER, "w2", actor=OPERATOR, now_ms=1)

    on_desired(story)
