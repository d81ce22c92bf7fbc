"""Telling events never holds up or fails what they tell of; what happened is the difference of two looks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.events.diff import SeenMember, of_crawl, of_members
from api.events.publisher import EventPublisher
from api.events.reader import EventGap, LossReason, resume_position
from api.events.recorder import CrawlRate, CrawlRates
from shared.adapters.local.clock import SystemClock
from shared.domain.crawl.state import CANCELLED
from shared.domain.errors import Permanent, Transient, Unusable
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition, Revision
from shared.ports.events import EventsState
from shared.ports.overview import CrawlOverview
from shared.wire.events import Event, EventKind, decode_event
from tests.support.api.rest_api import AwayEvents

STATES = [state for state in CrawlState if state is not CrawlState.DELETED]
CRAWL = CrawlOverview(CrawlId(7), "docs", Revision(1), 1, CrawlState.RUNNING, None, 0)


class Kept(AwayEvents):
    """A stream that answers each publish as it is told to, and then keeps it; a real one cannot be made to fail so."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.kept: list[Event] = []
        self.ids: list[str] = []

    async def publish(self, subject: str, data: bytes, message_id: str) -> int:
        self.ids.append(message_id)
        if self.answers:
            raise self.answers.pop(0)
        self.kept.append(decode_event(data))
        return len(self.kept)

    def said(self) -> list[str]:
        return [event.action for event in self.kept]


async def published(telling: EventPublisher) -> None:
    """Let it publish until nothing waits."""
    publishing = asyncio.create_task(telling.run())
    await telling.finish(30.0)
    publishing.cancel()


def run_through(telling: EventPublisher) -> None:
    asyncio.run(published(telling))


def test_events_are_published_in_order_and_retried_under_one_id() -> None:
    events = Kept(Transient("away", retry_in=0.0), Transient("away", retry_in=0.0))
    telling = EventPublisher(events, SystemClock(), "m1")
    for n in range(3):
        telling.publish(EventKind.CRAWL, 7, f"a{n}", crawl="docs")
    run_through(telling)
    assert events.said() == ["a0", "a1", "a2"]
    assert events.ids[0] == events.ids[1] == events.ids[2], "so that it is stored once though an answer was lost"
    assert len(set(events.ids)) == 3
    assert (events.kept[0].about, events.kept[0].crawl, events.kept[0].member) == ("7", "docs", "m1")


def test_a_full_queue_drops_what_comes_counts_it_and_goes_on() -> None:
    events = Kept()
    telling = EventPublisher(events, SystemClock(), "m1", max_count=3)
    for n in range(5):
        telling.publish(EventKind.CRAWL, 7, f"a{n}")
    assert telling.dropped == 2

    async def story() -> None:
        await published(telling)
        assert events.said() == ["a0", "a1", "a2"]
        telling.publish(EventKind.CRAWL, 7, "later")
        await published(telling)

    asyncio.run(story())
    assert (events.said()[-1], telling.dropped) == ("later", 2)


def test_of_progress_only_the_newest_waits() -> None:
    events = Kept()
    telling = EventPublisher(events, SystemClock(), "m1", max_count=3)
    telling.publish(EventKind.CRAWL, 7, "paused")
    for n in range(100):
        telling.publish(EventKind.PROGRESS, 7, f"p{n}")
        telling.publish(EventKind.PROGRESS, 8, f"q{n}")
    assert telling.dropped == 0
    run_through(telling)
    assert events.said() == ["paused", "p99", "q99"]


@pytest.mark.parametrize("error", [Permanent("too large"), ValueError("no JSON")])
def test_an_event_that_can_never_be_stored_holds_up_no_other(error: Exception) -> None:
    events = Kept(error)
    telling = EventPublisher(events, SystemClock(), "m1")
    telling.alarm(Partition(3), "the stream is another one")
    telling.publish(EventKind.CRAWL, 7, "paused")
    run_through(telling)
    assert (events.said(), telling.dropped) == (["paused"], 1)


def test_a_broker_that_shuts_us_out_does_not_end_the_master_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.events.publisher._GIVEN_UP_S", 0.0)
    events = Kept(Unusable("revoked"))
    telling = EventPublisher(events, SystemClock(), "m1")
    telling.publish(EventKind.CRAWL, 7, "paused")
    run_through(telling)
    assert events.said() == ["paused"]


# --- happenings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, CrawlState.CREATED, ["created"]),
        (None, CrawlState.SEEDING, ["created", "started"]),
        (None, CrawlState.FINISHED, ["created", "started", "seeded", "finished"]),
        (CrawlState.SEEDING, CrawlState.FINISHED, ["seeded", "finished"]),
        (CrawlState.PAUSED, CrawlState.FINISHED, ["resumed", "finished"]),
        (None, CrawlState.RUNNING, ["created", "started", "seeded"]),
        (CrawlState.CREATED, CrawlState.SEEDING, ["started"]),
        (CrawlState.SEEDING, CrawlState.RUNNING, ["seeded"]),
        (CrawlState.RUNNING, CrawlState.PAUSED, ["paused"]),
        (CrawlState.PAUSED, CrawlState.RUNNING, ["resumed"]),
        (CrawlState.PAUSED, CrawlState.SEEDING, ["resumed"]),
        (CrawlState.RUNNING, CrawlState.FINISHED, ["finished"]),
        (CrawlState.FINISHED, CrawlState.RUNNING, ["started"]),
        (CrawlState.CREATED, CrawlState.PAUSED, ["started", "paused"]),
        (CrawlState.RUNNING, None, ["deleted"]),
        (None, None, []),
    ],
)
def test_what_became_of_a_crawl_is_told_with_what_must_have_been_between(
    before: CrawlState | None, after: CrawlState | None, told: list[str]
) -> None:
    was = None if before is None else replace(CRAWL, state=before)
    now = None if after is None else replace(CRAWL, state=after)
    assert of_crawl(was, now) == told


@pytest.mark.parametrize("before", [None, CrawlState.CREATED, CrawlState.SEEDING, CrawlState.PAUSED])
def test_a_crawl_that_was_cancelled_went_through_nothing_else(before: CrawlState | None) -> None:
    was = None if before is None else replace(CRAWL, state=before)
    now = replace(CRAWL, state=CrawlState.FINISHED, finished_reason=CANCELLED)
    assert of_crawl(was, now)[-2:] == (["created", "finished"] if before is None else ["finished"])


def test_a_new_revision_is_told_once_and_so_are_labels() -> None:
    renewed = replace(CRAWL, revision=Revision(2), version=2, state=CrawlState.SEEDING)
    assert of_crawl(CRAWL, renewed) == ["updated"], "that its seeds are published again is part of it"
    assert of_crawl(CRAWL, replace(CRAWL, version=2)) == ["updated"]
    assert of_crawl(CRAWL, replace(CRAWL, version=3, state=CrawlState.PAUSED)) == ["paused"]


@given(st.sampled_from([None, *STATES]), st.sampled_from(STATES), st.integers(0, 2), st.integers(0, 3))
def test_every_difference_is_told_and_no_likeness_is(
    before: CrawlState | None, after: CrawlState, revisions: int, versions: int
) -> None:
    was = None if before is None else replace(CRAWL, state=before)
    now = replace(CRAWL, state=after, revision=Revision(1 + revisions), version=1 + revisions + versions)
    assert bool(of_crawl(was, now)) == (was != now)
    assert of_crawl(now, now) == []


def test_members_come_go_return_as_others_and_drain() -> None:
    one, other = SeenMember(1, False), SeenMember(2, False)
    assert of_members({}, {"a": one}) == [("a", "joined")]
    assert of_members({"a": one}, {"a": one}) == []
    assert of_members({"a": one, "b": one}, {"b": other, "c": one}) == [("a", "left"), ("b", "joined"), ("c", "joined")]
    assert of_members({"a": one}, {"a": SeenMember(1, True)}) == [("a", "drain_started")]
    assert of_members({"a": SeenMember(1, True)}, {"a": one}) == [("a", "drain_cancelled")]


# --- pace -------------------------------------------------------------------------------------------------------------


def paced(*samples: tuple[float, int]) -> CrawlRates:
    pace = CrawlRates()
    for at_s, pages in samples:
        pace.sample(at_s, pages, pages * 1_000)
    return pace


def test_a_rate_is_the_growth_over_its_window_and_not_over_what_was_before() -> None:
    pace = paced(*((float(s), 100 * s) for s in range(61)), *((float(s), 6_000) for s in range(61, 71)))
    assert pace.over(10) == CrawlRate(10.0, 0.0, 0.0)
    assert pace.over(60) == CrawlRate(60.0, round(5_000 / 60, 2), round(5_000_000 / 60, 1))


def test_a_rate_soon_after_the_start_is_over_what_was_seen() -> None:
    assert paced((0.0, 5)).over(10) is None
    assert paced((0.0, 0), (2.0, 30)).over(10) == CrawlRate(2.0, 15.0, 15_000.0)


def test_rate_after_a_rest_counts_the_rest_within_its_window() -> None:
    pace = paced((0.0, 0), (1.0, 10))
    pace.sample(300.0, 40, 40_000, since_s=299.0)
    assert pace.over(10) == CrawlRate(10.0, 3.0, 3_000.0)
    assert pace.over(60) == CrawlRate(60.0, 0.5, 500.0)


def test_counters_that_fall_are_no_negative_rate() -> None:
    assert paced((0.0, 50), (1.0, 0)).over(10) == CrawlRate(1.0, 0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0.01, 30), st.integers(0, 1_000)), min_size=1, max_size=300))
def test_a_pace_keeps_no_more_than_its_longest_window_needs(steps: Sequence[tuple[float, int]]) -> None:
    pace, now, pages = CrawlRates(), 0.0, 0
    kept: list[tuple[float, int]] = []
    for step, grown in steps:
        now, pages = now + step, pages + grown
        pace.sample(now, pages, 0)
        kept.append((now, pages))
    rate = pace.over(60)
    begin = [sample for sample in kept if sample[0] <= now - 60][-1:] or kept[:1]
    if len(kept) > 1:
        assert rate is not None
        assert rate.pages_per_s == round((pages - begin[0][1]) / (now - begin[0][0]), 2)
    assert len(pace._samples) <= 2 + sum(at > now - 60 for at, _ in kept)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "position", "gap"),
    [
        (None, 20, None),
        (0, 9, None),
        (15, 15, None),
        (20, 20, None),
        (9, 9, None),
        (8, 9, EventGap(LossReason.EXPIRED, 8, 10)),
        (21, 9, EventGap(LossReason.REPLACED, 21, 10)),
    ],
)
def test_a_reader_goes_on_behind_what_he_saw_and_hears_of_what_he_missed(
    after: int | None, position: int, gap: EventGap | None
) -> None:
    assert resume_position(EventsState(1, first=10, last=20), after) == (position, gap)


def test_in_an_empty_stream_there_is_nothing_to_miss() -> None:
    empty = EventsState(1, first=10, last=9)
    assert resume_position(empty, None) == resume_position(empty, 9) == resume_position(empty, 0) == (9, None)
    assert resume_position(empty, 5) == (9, EventGap(LossReason.EXPIRED, 5, 10))
