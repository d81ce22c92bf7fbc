"""Schedules that a later version wrote, on every engine: they delay no other, and an operator can replace them."""

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from api.leader import schedule_runner
from api.leader.schedule_runner import LEAST_S, ScheduleRunner
from shared.domain.crawl.state import Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.schedules.spec import Overlap, ScheduleSpec
from shared.domain.schedules.stored import StoredSchedule, UnreadableSchedule
from shared.ports.catalog import Exists, Stale
from shared.ports.schedules import ScheduleUnreadable
from tests.support.database.schedule_stage import EVERY, MINUTE, NOW, OPERATOR, PARTITIONS, TERM
from tests.support.database.schedule_stage import ScheduleStage as Stage
from tests.support.manual_clock import ManualClock

Story = Callable[[Stage], Awaitable[None]]
LATER = '{"verb":"start","crawl":"a","every_s":60,"overlap":"replace"}'
"""A spec with an `overlap` that this version does not know."""


class AfterFiring(ManualClock):
    """A clock whose time of day is shortly after the first due time."""

    def unix_ms(self) -> int:
        return NOW + MINUTE + 1_000


async def written_later(stage: Stage, name: str) -> None:
    """Write the schedule as a later version would."""
    query = text("UPDATE schedules SET spec = :spec WHERE name = :name")
    await stage.run.write(lambda c: c.execute(query, {"spec": LATER, "name": name}))


async def queued(stage: Stage, *names: str) -> None:
    """Let a schedule of each name queue a start of the running crawl of that name. Then end the crawls' runs."""
    for name in names:
        await stage.crawl(name, start=True)
        spec = ScheduleSpec(Verb.START, crawl=name, every_s=60, overlap=Overlap.QUEUE)
        assert await stage.fire(await stage.declared(spec, name), NOW + MINUTE) is not None
        await stage.catalog.turn(name, Verb.CANCEL, expected=None, actor=OPERATOR, now_ms=NOW)


@pytest.mark.parametrize(
    "change", ["UPDATE schedules SET spec = :spec WHERE name = 'a'", "UPDATE schedule_firings SET verb = :verb"]
)
def test_queued_effect_of_unreadable_schedule_writes_nothing(
    on_schedules: Callable[[Story], None], change: str
) -> None:
    async def story(stage: Stage) -> None:
        await queued(stage, "a")
        values = {"spec": LATER} if ":spec" in change else {"verb": "archive"}
        await stage.run.write(lambda c: c.execute(text(change), values))
        waiting = await stage.schedules.queued(10)
        with pytest.raises(ScheduleUnreadable):
            await stage.schedules.fire_queued(TERM, waiting[0], NOW + 2 * MINUTE, PARTITIONS)
        assert await stage.schedules.queued(10) == waiting
        assert (await stage.state("a"), await stage.verbs()) == (CrawlState.FINISHED, [])

    on_schedules(story)


def test_queued_effect_of_unreadable_schedule_delays_no_other(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await queued(stage, "a", "b")
        await written_later(stage, "a")
        noted = list[str]()
        runner = ScheduleRunner(
            stage.schedules, AfterFiring(), PARTITIONS, lambda: TERM, lambda: None, lambda: None,
            lambda name, firing, waited: noted.append(name),
        )  # fmt: skip
        with capture_logs() as logs:
            for _ in range(2):
                await runner.attempt()
        assert noted == ["b"]
        assert (await stage.state("a"), await stage.state("b")) == (CrawlState.FINISHED, CrawlState.SEEDING)
        [refused] = [line for line in logs if line["event"] == "schedule.refused"]
        assert "the schedule 'a' cannot be used: its spec cannot be read" in refused["error"]

    on_schedules(story)


@pytest.mark.parametrize("queues", [False, True], ids=["due", "queued"])
def test_more_unreadable_schedules_than_round_reads_delay_no_other(
    on_schedules: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, queues: bool
) -> None:
    """Each round read the same ones, which never move, so all other schedules stopped."""
    monkeypatch.setattr(schedule_runner, "AT_ONCE", 2)

    async def story(stage: Stage) -> None:
        names = ["a", "b", "c", "d", "e"]
        if queues:
            await queued(stage, *names)
        else:
            for name in names:
                await stage.crawl(name)
                await stage.declared(ScheduleSpec(Verb.START, crawl=name, every_s=60), name)
        for name in names[:4]:
            await written_later(stage, name)
        noted = list[str]()
        runner = ScheduleRunner(
            stage.schedules, AfterFiring(), PARTITIONS, lambda: TERM, lambda: None, lambda: None,
            lambda name, firing, waited: noted.append(name),
        )  # fmt: skip
        pauses = [await runner.attempt() for _ in range(3)]
        assert noted == ["e"]
        assert pauses == [LEAST_S, LEAST_S, pauses[2]], "further ones are read soon"
        await written_later(stage, "e")
        await stage.run.write(lambda c: c.execute(text("UPDATE schedules SET spec = :spec WHERE name = 'b'"), {
            "spec": '{"verb":"start","crawl":"b","every_s":60,"overlap":"queue"}'}))  # fmt: skip
        for _ in range(3):
            await runner.attempt()
        assert noted == ["e", "b"], "the next rounds begin with the first ones again"

    on_schedules(story)


def test_unreadable_schedule_is_listed_with_the_reason(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        for name in ("a", "b", "c"):
            await stage.declared(ScheduleSpec(Verb.START, crawl="x", every_s=60), name)
        await written_later(stage, "b")
        found = await stage.schedules.listing(after="", max_count=10)
        assert [each.name for each in found] == ["a", "b", "c"]
        unread = found[1]
        assert isinstance(unread, UnreadableSchedule)
        assert "its spec cannot be read: Invalid enum value 'replace'" in unread.reason
        assert (unread.crawl, unread.paused, unread.fires_ms, unread.last_ms) == ("x", False, NOW + MINUTE, 0)
        assert isinstance(found[2], StoredSchedule)

    on_schedules(story)


def test_unreadable_schedule_is_named_by_get_and_pause(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.declared()
        await written_later(stage, "nightly")
        requests: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: stage.schedules.schedule("nightly"),
            lambda: stage.schedules.pause("nightly", paused=True, expected=None, actor=OPERATOR, now_ms=NOW),
        )
        for asked in requests:
            with pytest.raises(ScheduleUnreadable, match="'nightly' cannot be used: its spec cannot be read"):
                await asked()
        with pytest.raises(Exists):
            await stage.declared()

    on_schedules(story)


def test_unreadable_schedule_is_replaced_by_a_put(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        stored = await stage.declared()
        await written_later(stage, "nightly")

        async def put(tag: str) -> None:
            made, created = await stage.schedules.put(
                "nightly", EVERY, paused=False, expected=frozenset([tag]), actor=OPERATOR, now_ms=NOW + MINUTE
            )
            assert (created, made.spec, made.version, made.due_ms) == (False, EVERY, 2, NOW + 2 * MINUTE)

        with pytest.raises(Stale):
            await put("0-0")
        await put(stored.tag)
        query = text('SELECT "before", "after" FROM audit_log WHERE action = \'schedule.replace\'')
        [(before, after)] = await stage.run.read(lambda c: c.execute(query).all())
        assert '"overlap":"replace"' in before
        assert '"overlap"' not in after

    on_schedules(story)


def test_unreadable_schedule_is_deleted(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.declared()
        await written_later(stage, "nightly")
        await stage.schedules.delete("nightly", expected=None, actor=OPERATOR, now_ms=NOW)
        assert await stage.schedules.listing(after="", max_count=10) == []

    on_schedules(story)
