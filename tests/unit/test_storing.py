"""When a broker that answers counts as one that stores nothing."""

from shared.adapters.nats.storage import SILENT_S, TRIED_S, StorageHealth
from shared.domain.ops.watermarks import OF_STORAGE, FillLevel, PressureState, Resource


def failing() -> StorageHealth:
    storing = StorageHealth()
    storing.record_failure("reports.1.outcome", 100.0)
    storing.record_failure("reports.2.discovery", 100.0 + SILENT_S)
    return storing


def test_one_stream_that_stored_nothing_for_long_is_enough() -> None:
    storing = StorageHealth()
    storing.record_failure("reports.1.outcome", 100.0)
    assert not storing.refuses(100.0 + SILENT_S)
    storing.record_failure("reports.2.discovery", 100.0 + SILENT_S)
    storing.record_working("visits.default.1")
    assert storing.refuses(100.0 + SILENT_S)


def test_it_is_over_when_something_was_stored_or_the_broker_is_another_one() -> None:
    storing = failing()
    storing.record_working("reports.7.outcome")
    assert not storing.refuses(100.0 + SILENT_S)
    storing = failing()
    storing.forget_failures()
    assert not storing.refuses(100.0 + SILENT_S)


def test_after_a_while_it_is_tried_again_and_one_failure_says_so_then() -> None:
    storing = failing()
    later = 100.0 + SILENT_S + TRIED_S
    assert storing.refuses(later - 1)
    assert not storing.refuses(later)
    storing.record_failure("reports.1.outcome", later + 1)
    assert storing.refuses(later + 1)


def test_who_is_held_by_it_is_told_what_to_do() -> None:
    shortages = PressureState()
    shortages.observe(Resource.NATS, FillLevel(0, 0, refused=True), OF_STORAGE)
    assert "restart one whose disk was full" in (shortages.reason or "")
    shortages.observe(Resource.NATS, FillLevel(0, 0), OF_STORAGE)
    assert shortages.reason is None
