"""Schedules on every engine: one transaction fires a due time with its effect, under the leader's fence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from shared.adapters.sql.catalog import access, firings
from shared.domain.crawl.state import Verb
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import Term
from shared.domain.schedules.history import FiringOutcome, HistoryChange
from shared.domain.schedules.spec import Overlap, ScheduleSpec
from shared.domain.schedules.stored import HISTORY, MAX_SELECTED, StoredSchedule
from shared.ports.catalog import Full, Missing, Stale
from tests.support.database.schedule_stage import EVERY, MINUTE, NOW, OPERATOR, PARTITIONS, TERM
from tests.support.database.schedule_stage import ScheduleStage as Stage

LATER = Term(6)
Story = Callable[[Stage], Awaitable[None]]


def test_firing_applies_the_verb_and_moves_on_in_one_transaction(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()
        assert stored.due_ms == NOW + MINUTE
        assert await stage.schedules.due(NOW, 10) == []
        assert await stage.schedules.due(NOW + MINUTE, 10) == [stored]
        fired = await stage.fire(stored, NOW + MINUTE)
        assert fired is not None
        assert [each.outcome for each in fired.firings] == [FiringOutcome.FIRED]
        assert await stage.state() is CrawlState.SEEDING
        after = await stage.schedules.schedule("nightly")
        assert (after.due_ms, after.last_ms, after.version) == (NOW + 2 * MINUTE, NOW + MINUTE, stored.version)
        assert await stage.schedules.next_fires_ms() == NOW + 2 * MINUTE
        history = await stage.schedules.history(stored.schedule_id, before_ms=2**62, max_count=10)
        assert history == fired.firings
        assert await stage.verbs() == [("crawl.start", f"{stored.schedule_id}-{NOW + MINUTE}")]

    on_schedules(story)


def test_firing_decided_on_an_old_row_changes_nothing(on_schedules: Callable[[Story], None]) -> None:
    """A leader that repeats a transaction whose answer was lost, and an operator who was faster."""

    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()
        assert await stage.fire(stored, NOW + MINUTE) is not None
        assert await stage.fire(stored, NOW + MINUTE) is None
        now = await stage.schedules.schedule("nightly")
        await stage.schedules.pause("nightly", paused=True, expected=None, actor=OPERATOR, now_ms=NOW)
        assert await stage.fire(now, NOW + 2 * MINUTE) is None
        assert (len(await stage.verbs()), await stage.lines()) == (1, 1)

    on_schedules(story)


def test_deposed_leader_changes_no_row(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()
        await stage.schedules.claim(LATER)
        with pytest.raises(OwnershipLost):
            await stage.schedules.claim(TERM)
        with pytest.raises(OwnershipLost):
            await stage.fire(stored, NOW + MINUTE)
        assert await stage.schedules.schedule("nightly") == stored
        assert (await stage.state(), await stage.lines()) == (CrawlState.CREATED, 0)
        assert await stage.fire(stored, NOW + MINUTE, LATER) is not None

    on_schedules(story)


def test_two_leaders_that_race_fire_a_due_time_once(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        reset = ScheduleSpec(Verb.RESET, crawl="news", every_s=60)
        stored = await stage.declared(reset)

        async def lead(term: Term) -> HistoryChange | None:
            try:
                await stage.schedules.claim(term)
                return await stage.fire(stored, NOW + MINUTE, term)
            except OwnershipLost:
                return None

        results = await asyncio.gather(*(lead(Term(10 + each % 3)) for each in range(6)))
        assert len([each for each in results if each is not None]) == 1
        assert (len(await stage.verbs()), await stage.lines()) == (1, 1)

    on_schedules(story)


@pytest.mark.parametrize("at", ["record", "_trim", "write_lines", "history_line"])
def test_transaction_that_fails_between_two_steps_leaves_nothing(
    on_schedules: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()

        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(access if at == "record" else firings, at, broken)
            with pytest.raises(ZeroDivisionError):
                await stage.fire(stored, NOW + MINUTE)
        assert await stage.schedules.schedule("nightly") == stored
        assert (await stage.state(), await stage.lines(), await stage.verbs()) == (CrawlState.CREATED, 0, [])
        assert await stage.fire(stored, NOW + MINUTE) is not None

    on_schedules(story)


def test_queued_firing_waits_for_the_end_of_the_run(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl(start=True)
        stored = await stage.declared(ScheduleSpec(Verb.START, crawl="news", every_s=60, overlap=Overlap.QUEUE))
        outcomes = []
        for minute in (1, 2):
            fired = await stage.fire(await stage.schedules.schedule("nightly"), NOW + minute * MINUTE)
            assert fired is not None
            outcomes.append(fired.firings[0].outcome)
        assert outcomes == [FiringOutcome.QUEUED, FiringOutcome.SKIPPED]
        assert await stage.schedules.queued(10) == []
        await stage.catalog.turn("news", Verb.CANCEL, expected=None, actor=OPERATOR, now_ms=NOW)
        [waiting] = await stage.schedules.queued(10)
        with pytest.raises(OwnershipLost):
            await stage.schedules.fire_queued(Term(4), waiting, NOW, PARTITIONS)
        made = await stage.schedules.fire_queued(TERM, waiting, NOW + 3 * MINUTE, PARTITIONS)
        assert made is not None
        assert made.firings[0].outcome is FiringOutcome.FIRED
        assert await stage.schedules.fire_queued(TERM, waiting, NOW + 3 * MINUTE, PARTITIONS) is None
        assert (await stage.state(), len(await stage.verbs())) == (CrawlState.SEEDING, 1)
        assert await stage.schedules.queued(10) == []
        history = await stage.schedules.history(stored.schedule_id, before_ms=2**62, max_count=10)
        assert [each.outcome for each in history] == [FiringOutcome.SKIPPED, FiringOutcome.FIRED]

    on_schedules(story)


def test_selector_fires_for_every_crawl_with_the_labels(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        for name in ("a", "b"):
            await stage.crawl(name, team="search")
        await stage.crawl("c", team="other")
        await stage.crawl("d", start=True, team="search")
        stored = await stage.declared(ScheduleSpec(Verb.START, selector={"team": "search"}, every_s=60))
        fired = await stage.fire(stored, NOW + MINUTE)
        assert fired is not None
        effects = [(each.crawl, each.outcome) for each in fired.firings[0].effects]
        assert effects == [("a", FiringOutcome.FIRED), ("b", FiringOutcome.FIRED), ("d", FiringOutcome.SKIPPED)]
        assert (await stage.state("a"), await stage.state("c")) == (CrawlState.SEEDING, CrawlState.CREATED)
        for number in range(MAX_SELECTED - 2):
            await stage.crawl(f"e{number}", team="search")
        again = await stage.fire(await stage.schedules.schedule("nightly"), NOW + 2 * MINUTE)
        assert again is not None
        assert again.firings[0].outcome is FiringOutcome.REFUSED
        assert "narrow it" in again.firings[0].detail

    on_schedules(story)


def test_schedule_of_a_deleted_crawl_is_refused_with_the_reason(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()
        await stage.catalog.turn("news", Verb.DELETE, expected=None, actor=OPERATOR, now_ms=NOW)
        fired = await stage.fire(stored, NOW + MINUTE)
        assert fired is not None
        [effect] = fired.firings[0].effects
        assert (effect.outcome, effect.detail) == (FiringOutcome.REFUSED, "there is no crawl 'news'")

    on_schedules(story)


def test_retry_leaves_a_command_until_it_is_published(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl(start=True)
        stored = await stage.declared(ScheduleSpec(Verb.RETRY_FAILED, crawl="news", every_s=60))
        assert await stage.fire(stored, NOW + MINUTE) is not None
        [command] = await stage.schedules.commands(None, 10)
        progress = await stage.catalog.command(command.command)
        assert progress is not None
        assert (progress.kind, progress.partitions) == ("retry_failed", PARTITIONS)
        await stage.schedules.commanded(command)
        assert await stage.schedules.commands(None, 10) == []

    on_schedules(story)


def test_commands_are_read_on_from_a_place(on_schedules: Callable[[Story], None]) -> None:
    """Firings of two schedules, of which one has two crawls: no command is read twice, and none is left out."""

    async def story(stage: Stage) -> None:
        for name in ("a", "b"):
            await stage.crawl(name, start=True, team="search")
        first = await stage.declared(ScheduleSpec(Verb.RETRY_FAILED, selector={"team": "search"}, every_s=60))
        second = await stage.declared(ScheduleSpec(Verb.RETRY_FAILED, crawl="a", every_s=60), "again")
        assert await stage.fire(second, NOW + MINUTE) is not None
        assert await stage.fire(first, NOW + MINUTE) is not None
        assert await stage.fire(await stage.schedules.schedule("nightly"), NOW + 2 * MINUTE) is not None
        whole = await stage.schedules.commands(None, 10)
        places = [(first.schedule_id, NOW + at * MINUTE, crawl) for at in (1, 2) for crawl in ("a", "b")]
        assert [each.place for each in whole] == [*places, (second.schedule_id, NOW + MINUTE, "a")]
        for at, command in enumerate(whole):
            assert await stage.schedules.commands(command.place, 2) == whole[at + 1 : at + 3]

    on_schedules(story)


def test_changed_times_begin_after_now_and_the_last_due_time(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()
        await stage.fire(stored, NOW + MINUTE)
        keep = {"paused": False, "expected": None, "actor": OPERATOR}
        same_times = ScheduleSpec(Verb.RESET, crawl="news", every_s=60)
        made, created = await stage.schedules.put("nightly", same_times, now_ms=NOW + 9 * MINUTE, **keep)  # type: ignore[arg-type]
        assert (made.due_ms, made.version, created) == (NOW + 2 * MINUTE, 2, False)
        # The clock stepped back by a minute: the due time that was handled does not come again.
        faster = ScheduleSpec(Verb.RESET, crawl="news", every_s=60, jitter_s=1)
        made, _ = await stage.schedules.put("nightly", faster, now_ms=NOW, **keep)  # type: ignore[arg-type]
        assert made.due_ms == NOW + 2 * MINUTE
        paused = await stage.schedules.pause("nightly", paused=True, expected=None, actor=OPERATOR, now_ms=NOW)
        assert await stage.schedules.due(NOW + 99 * MINUTE, 10) == []
        assert paused.version == 4
        resumed = await stage.schedules.pause(
            "nightly", paused=False, expected=frozenset({paused.tag}), actor=OPERATOR, now_ms=NOW + 60 * MINUTE
        )
        assert resumed.due_ms == NOW + 61 * MINUTE
        with pytest.raises(Stale):
            await stage.schedules.delete("nightly", expected=frozenset({paused.tag}), actor=OPERATOR, now_ms=NOW)
        await stage.schedules.delete("nightly", expected=None, actor=OPERATOR, now_ms=NOW)
        assert await stage.lines() == 0
        with pytest.raises(Missing):
            await stage.schedules.schedule("nightly")

    on_schedules(story)


def test_history_keeps_the_newest_lines(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl()
        stored = await stage.declared()
        for minute in range(1, HISTORY + 6):
            stored = await stage.schedules.schedule("nightly")
            await stage.fire(stored, NOW + minute * MINUTE)
        assert await stage.lines() == HISTORY
        newest = await stage.schedules.history(stored.schedule_id, before_ms=2**62, max_count=2)
        older = await stage.schedules.history(stored.schedule_id, before_ms=newest[-1].due_ms, max_count=1)
        times = [each.due_ms for each in (*newest, *older)]
        assert times == [NOW + (HISTORY + 5 - back) * MINUTE for back in range(3)]

    on_schedules(story)


def test_history_keeps_what_waits_for_the_end_of_a_run(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl(start=True)
        await stage.declared(replace(EVERY, overlap=Overlap.QUEUE))
        for minute in range(1, HISTORY + 6):
            await stage.fire(await stage.schedules.schedule("nightly"), NOW + minute * MINUTE)
        assert await stage.lines() == HISTORY + 1
        await stage.catalog.turn("news", Verb.CANCEL, expected=None, actor=OPERATOR, now_ms=NOW)
        waiting = await stage.schedules.queued(10)
        assert [each.due_ms for each in waiting] == [NOW + MINUTE], "the first firing still waits"

    on_schedules(story)


def test_command_of_a_deleted_schedule_is_still_published(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl(start=True)
        stored = await stage.declared(replace(EVERY, verb=Verb.RETRY_FAILED))
        assert await stage.fire(stored, NOW + MINUTE) is not None
        await stage.schedules.delete("nightly", expected=None, actor=OPERATOR, now_ms=NOW)
        (command,) = await stage.schedules.commands(None, 10)
        await stage.schedules.commanded(command)
        assert await stage.schedules.commands(None, 10) == []
        left = await stage.run.read(lambda c: c.execute(text("SELECT count(*) FROM schedule_effects")).scalar())
        assert left == 0

    on_schedules(story)


def test_schedule_beyond_the_limit_is_refused(
    on_schedules: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        await stage.declared()
        with pytest.raises(Full, match="as many as there may be"):
            await stage.declared(name="weekly")

    monkeypatch.setattr("shared.adapters.sql.catalog.schedules.MAX_SCHEDULES", 1)
    on_schedules(story)


def test_concurrent_creations_keep_the_limit_of_schedules(
    on_schedules: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        puts = (put(stage, name) for name in ("p", "q", "q", "q"))
        creates = (stage.declared(name=f"c-{n}") for n in range(6))
        answers = await asyncio.gather(*puts, *creates, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert {type(each) for each in refused} == {Full}, answers
        assert len(await stage.schedules.listing(after="", max_count=10)) == 1

    monkeypatch.setattr("shared.adapters.sql.catalog.schedules.MAX_SCHEDULES", 1)
    on_schedules(story)


def test_concurrent_puts_of_a_new_schedule_create_it_once(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        answers = await asyncio.gather(*(put(stage, "nightly") for _ in range(8)))
        assert sum(created for _, created in answers) == 1
        assert len({stored.schedule_id for stored, _ in answers}) == 1

    on_schedules(story)


async def put(stage: Stage, name: str) -> tuple[StoredSchedule, bool]:
    return await stage.schedules.put(name, EVERY, paused=False, expected=None, actor=OPERATOR, now_ms=NOW)
