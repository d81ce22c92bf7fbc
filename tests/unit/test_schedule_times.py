"""Due times over real zones: what daylight saving leaves out or repeats, windows, jitter, and what never comes."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.state import Verb
from shared.domain.schedules.spec import ScheduleSpec, Window, problems_of
from shared.domain.schedules.times import due_times, fires_at, never_due, next_due
from shared.domain.schedules.zones import wall_of, zone_of

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "UTC")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def spec(**fields: object) -> ScheduleSpec:
    return ScheduleSpec(Verb.START, crawl="docs", **fields)  # type: ignore[arg-type]


def shown(found: list[int]) -> list[str]:
    return [datetime.fromtimestamp(each / 1000, UTC).strftime("%m-%d %H:%M") for each in found]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "due"),
    [
        # The clock goes from 02:00 to 03:00: 02:30 does not exist.
        ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00", ["03-28 01:00", "03-29 00:30"]),
        ("30 2 * * *", "America/New_York", "2027-03-13T12:00", ["03-14 07:00", "03-15 06:30"]),
        # By half an hour, from 02:00 to 02:30.
        ("15 2 * * *", "Australia/Lord_Howe", "2027-10-01T20:00", ["10-02 15:30", "10-03 15:15"]),
        # After Ramadan, from 02:00 to 03:00.
        ("30 2 * * *", "Africa/Casablanca", "2025-04-05T12:00", ["04-06 02:00", "04-07 01:30"]),
        # A whole day was left out: its time is due with the next day's, once.
        ("0 0 * * *", "Pacific/Apia", "2011-12-29T00:00", ["12-29 10:00", "12-30 10:00", "12-31 10:00"]),
        # All times of the gap are due together, once.
        ("*/20 * * * *", "Europe/Berlin", "2027-03-28T00:30", ["03-28 00:40", "03-28 01:00", "03-28 01:20"]),
        # The clock goes from 03:00 back to 02:00: 02:30 comes twice.
        ("30 2 * * *", "Europe/Berlin", "2027-10-30T12:00", ["10-31 00:30", "11-01 01:30"]),
        ("30 1 * * *", "America/New_York", "2027-11-06T12:00", ["11-07 05:30", "11-08 06:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-02T20:00", ["04-03 14:45", "04-04 15:15"]),
        ("30 2 * * *", "Africa/Casablanca", "2025-02-22T12:00", ["02-23 01:30", "02-24 02:30"]),
        ("*/20 * * * *", "Europe/Berlin", "2027-10-31T00:20", ["10-31 00:40", "10-31 02:00", "10-31 02:20"]),
    ],
)
def test_due_times_around_a_clock_change_are_each_due_once(cron: str, zone: str, after: str, due: list[str]) -> None:
    assert shown(due_times(spec(cron=cron, zone=zone), ms(after), len(due))) == due


@given(zone=st.sampled_from(ZONES), day=st.integers(0, 20_000), hour=st.integers(0, 23), minute=st.integers(0, 59))
def test_daily_schedule_is_due_once_for_each_day(zone: str, day: int, hour: int, minute: int) -> None:
    """Over fifty years of real zone data: as many due times as days, except where a zone left out whole days."""
    daily = spec(cron=f"{minute} {hour} * * *", zone=zone)
    start = day * 86_400_000
    found = due_times(daily, start, 40)
    assert found == sorted(set(found))
    assert found[0] > start
    for due in found:
        wall = wall_of(due, zone_of(zone))
        late = wall - wall.replace(hour=hour, minute=minute, second=0)
        assert timedelta(0) <= late <= timedelta(hours=1) or zone == "Pacific/Apia", (wall, hour, minute)
    assert found == [each for start in (found[0] - 1, *found[:-1]) if (each := next_due(daily, start)) is not None]


@given(
    every=st.integers(60, 200_000),
    after=st.integers(0, 4_000_000_000_000),
    zone=st.sampled_from(ZONES),
    window=st.booleans(),
)
def test_interval_is_due_at_its_multiples_within_its_window(every: int, after: int, zone: str, window: bool) -> None:
    hours = Window("22:00", "06:00") if window else None
    interval = spec(every_s=every, zone=zone, window=hours)
    due = next_due(interval, after)
    assert due is not None
    assert due > after
    assert due % (every * 1000) == 0
    wall = wall_of(due, zone_of(zone))
    assert not window or wall.hour >= 22 or wall.hour < 6
    if not window:
        assert due - after <= every * 1000


def test_interval_with_a_window_goes_on_in_the_repeated_hour() -> None:
    """The clock goes from 03:00 back to 02:00. The window is open twice in the repeated hour."""
    quarters = spec(every_s=900, zone="Europe/Berlin", window=Window("02:15", "02:45"))
    assert shown(due_times(quarters, ms("2026-10-24T12:00"), 5)) == [
        *("10-25 00:15", "10-25 00:30", "10-25 01:15", "10-25 01:30", "10-26 01:15"),
    ]


@given(
    every_s=st.integers(60, 9_000),
    window=st.lists(st.integers(0, 287), min_size=2, max_size=2, unique=True),
    around=st.sampled_from(
        [
            *(("Europe/Berlin", "2026-10-25T01:00"), ("Europe/Berlin", "2027-03-28T01:00")),
            *(("Australia/Lord_Howe", "2027-04-03T15:00"), ("Australia/Lord_Howe", "2027-10-02T15:30")),
            *(("America/Havana", "2026-11-01T05:00"), ("Pacific/Apia", "2011-12-30T10:00")),
        ]
    ),
    hours_before=st.integers(0, 40),
)
def test_interval_is_due_at_every_multiple_in_its_window(
    every_s: int, window: list[int], around: tuple[str, str], hours_before: int
) -> None:
    start, end = (f"{each // 12:02}:{each % 12 * 5:02}" for each in window)
    zone, change = around
    after = ms(change) - hours_before * 3_600_000
    until = ms(change) + 30 * 3_600_000
    step = every_s * 1000
    expected = []
    for due in range((after // step + 1) * step, until, step):
        clock = wall_of(due, zone_of(zone)).strftime("%H:%M")
        if start <= clock < end if start < end else clock >= start or clock < end:
            expected.append(due)
    interval = spec(every_s=every_s, zone=zone, window=Window(start, end))
    found = [each for each in due_times(interval, after, len(expected) + 1) if each < until]
    assert found == expected


def test_window_leaves_out_the_times_outside_it() -> None:
    hourly = spec(cron="0 * * * *", zone="Europe/Berlin", window=Window("22:00", "01:00"))
    assert shown(due_times(hourly, ms("2027-01-01T00:00"), 4)) == [
        *("01-01 21:00", "01-01 22:00", "01-01 23:00", "01-02 21:00"),
    ]


@given(schedule=st.integers(1, 1_000), due=st.integers(0, 10**13), jitter=st.integers(0, 86_400))
def test_jitter_depends_on_schedule_and_due_time_alone(schedule: int, due: int, jitter: int) -> None:
    at = fires_at(spec(cron="0 0 * * *", jitter_s=jitter), schedule, due)
    assert due <= at <= due + jitter * 1000
    assert at == fires_at(spec(every_s=90_000, jitter_s=jitter), schedule, due)


def test_jitter_spreads_the_schedules_of_one_due_time() -> None:
    delays = {fires_at(spec(cron="0 0 * * *", jitter_s=600), schedule, 0) for schedule in range(100)}
    assert len(delays) > 90


@pytest.mark.parametrize(
    ("fields", "path", "message", "hint"),
    [
        ({"cron": "* * * * * *"}, "cron", "6 fields", "seconds"),
        ({"cron": "0 0 30 2 *"}, "cron", "day-of-month", "such as"),
        ({"cron": "61 0 * * *"}, "cron", "minute", "such as"),
        ({"cron": "every night"}, "cron", "expected 5 fields, got 2", "such as"),
        ({"cron": "0 0 * * *", "every_s": 60}, "cron", "not both", "one of both"),
        ({}, "cron", "not both", "one of both"),
        ({"cron": "0 0 * * *", "zone": "Europe/Berln"}, "zone", "'Europe/Berln'", "Europe/Berlin"),
        ({"cron": "0 0 * * *", "zone": "../../etc/passwd"}, "zone", "no IANA time zone", "such as"),
        ({"cron": "0 0 * * *", "window": Window("02:00", "02:00")}, "window.end", "equal", "another"),
        ({"every_s": 60, "jitter_s": 60}, "jitter_s", "not less", "shorter"),
        ({"cron": "0 12 * * *", "window": Window("22:00", "02:00")}, "window", "none of", "widen"),
        ({"cron": "0 0 */30 2 MON#5"}, "cron", "matches no date", "check"),
    ],
)
def test_declaration_that_cannot_fire_names_field_and_remedy(
    fields: dict[str, object], path: str, message: str, hint: str
) -> None:
    found = [*problems_of(spec(**fields))]
    if not found:
        found = [each for each in [never_due(spec(**fields), 0)] if each is not None]
    assert [each.path for each in found] == [path]
    assert message in found[0].message
    assert hint in found[0].hint


def test_selector_and_crawl_exclude_each_other() -> None:
    both = ScheduleSpec(Verb.START, crawl="docs", selector={"team": "search"}, every_s=60)
    neither = ScheduleSpec(Verb.CANCEL, every_s=60)
    assert [each.path for each in problems_of(both)] == ["crawl"]
    assert [each.path for each in problems_of(neither)] == ["crawl", "verb"]
