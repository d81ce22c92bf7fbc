"""Rates, estimates and how they are written."""

import pytest

from cli.terminal.display_rates import DisplayRate, ProgressRates, amount, clock, rate
from cli.terminal.progress import plain_line
from shared.domain.crawl.spec import Budget
from shared.wire.messages import Progress


def told(pages: int, *, queued: int = 0, active_ms: int = 0, **counters: int) -> Progress:
    numbers = {"pages": pages, "done": pages, "queued": queued, **counters}
    return Progress(crawl=1, name="a", revision=1, state="running", counters=numbers, active_ms=active_ms)


def test_a_steady_rate_is_told_from_the_second_look_on() -> None:
    measured = DisplayRate()
    assert measured.per_s is None
    for second in range(60):
        measured.seen(20 * second, float(second))
        if second:
            assert measured.per_s == pytest.approx(20)


def test_a_rate_forgets_what_is_long_past() -> None:
    measured = DisplayRate()
    measured.seen(0, 0.0)
    measured.seen(1000, 1.0)
    for second in range(2, 62):
        measured.seen(1000, float(second))
    assert measured.per_s is not None
    assert measured.per_s < 1


def test_a_count_that_shrinks_begins_another_measurement() -> None:
    measured = DisplayRate()
    measured.seen(100, 0.0)
    measured.seen(5, 1.0)
    assert measured.per_s is None
    measured.seen(6, 2.0)
    assert measured.per_s == pytest.approx(1)


def test_pages_of_earlier_runs_do_not_count_in_the_average() -> None:
    resumed = ProgressRates(0.0, Budget())
    resumed.seen(told(1000, active_ms=100_000), 1.0)
    resumed.seen(told(1020), 10.0)
    assert resumed.average(10.0) == pytest.approx(2)
    begun = ProgressRates(0.0, Budget())
    begun.seen(told(10, active_ms=500), 1.0)
    begun.seen(told(20), 10.0)
    assert begun.average(10.0) == pytest.approx(2)


def test_the_nearest_end_is_the_estimate() -> None:
    pace = ProgressRates(0.0, Budget(max_pages=200))
    assert pace.left_s(told(0, queued=5)) is None
    for second in range(11):
        pace.seen(told(10 * second, queued=500), float(second))
    assert pace.left_s(told(100, queued=500)) == pytest.approx(10)
    assert pace.left_s(told(100, queued=50)) == pytest.approx(5)
    timed = ProgressRates(0.0, Budget(max_seconds=60))
    assert timed.left_s(told(0, active_ms=20_000)) == pytest.approx(40)


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.9, "0:07"), (754, "12:34"), (3723, "1:02:03"), (273_900, "3 d 04:05")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4_200_000, "4.2 MB"), (999_600, "1.0 MB"), (2.5e14, "250 TB")],
)
def test_amount(size: float, text: str) -> None:
    assert amount(size) == text


def test_rate_text() -> None:
    assert [rate(value) for value in (None, 0.0, 0.02, 3.14, 431.4)] == ["-", "0.0/s", "0.02/s", "3.1/s", "431/s"]


def test_a_plain_line_says_how_the_crawl_stands() -> None:
    pace = ProgressRates(0.0, Budget())
    progress = told(40, queued=60, leased=2, failed=3, bytes=123_456)
    pace.seen(told(0), 1.0)
    pace.seen(progress, 5.0)
    assert plain_line(progress, pace, 5.0) == (
        "0:05 running: 40 pages, 10.0/s (average 8.0/s), 123 kB, 60 queued, 2 in flight, 3 failed, about 0:05 left"
    )
