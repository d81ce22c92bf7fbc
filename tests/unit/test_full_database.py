"""What the log hears of a full disk: that it began, once a minute that it lasts, and that it is over."""

from collections.abc import Mapping, Sequence

import structlog.testing

from shared.adapters.sql.engine.full_disk import FULL_S, FullDiskRefusals
from shared.domain.errors import ResourceFull

FULL = ResourceFull("the disk is full")


def reports() -> None:
    """One kind of transaction."""


def dispatch() -> None:
    """Another."""


def told(entries: Sequence[Mapping[str, object]]) -> list[object]:
    return [entry["event"] for entry in entries]


def test_a_full_disk_is_told_of_once_a_minute_however_many_try() -> None:
    refusals = FullDiskRefusals()
    with structlog.testing.capture_logs() as entries:
        for tenth in range(1_250):
            refusals.refused(reports, tenth / 10, FULL)
    assert [(entry["duration_s"], entry["refused"]) for entry in entries] == [(0.0, 1), (60.0, 601), (120.0, 1201)]
    assert told(entries) == ["database_writes.refused"] * 3


def test_pressure_ends_after_refused_writes_succeed_for_a_while() -> None:
    refusals = FullDiskRefusals()
    with structlog.testing.capture_logs() as entries:
        refusals.refused(reports, 0.0, FULL)
        refusals.refused(dispatch, 4.0, FULL)
        refusals.taken(reports, 20.0)
        assert told(entries) == ["database_writes.refused"], "what fits into its pages is taken by a full disk, too"
        refusals.taken(dispatch, 21.0)
        refusals.taken(dispatch, 22.0)
    assert told(entries) == ["database_writes.refused", "database_writes.resumed"]
    assert (entries[-1]["duration_s"], entries[-1]["refused"]) == (4.0, 2)


def test_one_that_takes_and_refuses_in_turns_is_one_full_disk() -> None:
    refusals = FullDiskRefusals()
    with structlog.testing.capture_logs() as entries:
        for second in range(30):
            refusals.refused(reports, float(second), FULL)
            refusals.taken(reports, second + 0.5)
        refusals.taken(dispatch, 29.0 + FULL_S)
        refusals.refused(reports, 100.0, FULL)
    assert told(entries) == ["database_writes.refused", "database_writes.resumed", "database_writes.refused"]
    assert entries[1]["duration_s"] == 29.0


def test_what_is_never_asked_for_again_does_not_keep_it_from_being_over() -> None:
    refusals = FullDiskRefusals()
    with structlog.testing.capture_logs() as entries:
        refusals.refused(reports, 0.0, FULL)
        refusals.taken(dispatch, 59.0)
        assert told(entries) == ["database_writes.refused"]
        refusals.taken(dispatch, 60.0)
        refusals.taken(reports, 61.0)
    assert told(entries) == ["database_writes.refused", "database_writes.resumed"]


def test_it_counts_as_full_for_a_while_after_the_last_refusal() -> None:
    refusals = FullDiskRefusals()
    assert not refusals.lately(0.0)
    refusals.refused(reports, 1.0, FULL)
    assert refusals.lately(1.0 + FULL_S - 0.1)
    assert not refusals.lately(1.0 + FULL_S)
