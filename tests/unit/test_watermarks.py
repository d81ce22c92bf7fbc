"""Watermarks: full is full until there is clearly room again, and nothing turns to and fro in between."""

from hypothesis import given
from hypothesis import strategies as st

from shared.domain.ops.watermarks import (
    OF_MEMORY,
    OF_STORAGE,
    FillLevel,
    PressureState,
    Resource,
    Watermarks,
    amount,
    is_full,
)

MIB = 1 << 20
SIZES = st.integers(1, 1 << 44)


@st.composite
def marks(draw: st.DrawFn) -> Watermarks:
    high = draw(st.floats(0.01, 1.0))
    return Watermarks(high, draw(st.floats(0.01, 1.0).map(lambda low: min(low, high))), draw(st.integers(0, 1 << 40)))


@given(marks(), SIZES)
def test_what_is_nearly_all_used_is_full_and_what_is_empty_has_room(marks: Watermarks, max_count: int) -> None:
    for was_full in (False, True):
        assert is_full(was_full, FillLevel(max_count, max_count), marks)
        assert not is_full(was_full, FillLevel(max_count - marks.goes_on_at(max_count), max_count), marks)


@given(marks(), SIZES, st.integers(0, 1 << 44))
def test_no_level_turns_it_both_ways(marks: Watermarks, max_count: int, used: int) -> None:
    """Whatever it was, one look settles it: a level at which it stops is none at which it goes on."""
    level = FillLevel(min(used, max_count), max_count)
    for was_full in (False, True):
        once = is_full(was_full, level, marks)
        assert is_full(once, level, marks) == once
    assert is_full(True, level, marks) >= is_full(False, level, marks), "what fills up never makes room"


@given(marks(), SIZES, st.lists(st.integers(0, 1 << 44), max_size=40))
def test_it_turns_only_when_a_whole_step_between_the_marks_was_made(
    marks: Watermarks, max_count: int, walk: list[int]
) -> None:
    full, turned_at = False, None
    for used in walk:
        level = FillLevel(min(used, max_count), max_count)
        before, full = full, is_full(full, level, marks)
        if before != full:
            if turned_at is not None:
                assert abs(turned_at - level.free) >= marks.goes_on_at(max_count) - marks.stops_at(max_count)
            turned_at = level.free


@given(SIZES)
def test_room_again_is_always_more_than_full(max_count: int) -> None:
    assert OF_STORAGE.stops_at(max_count) < OF_STORAGE.goes_on_at(max_count)
    assert OF_MEMORY.stops_at(max_count) == 0


def test_of_a_large_disk_the_headroom_is_enough() -> None:
    two_tib = 2 << 40
    assert OF_STORAGE.stops_at(two_tib) == 1 << 30
    assert OF_STORAGE.goes_on_at(two_tib) == 2 << 30
    assert OF_STORAGE.stops_at(30 * MIB) == round(1.5 * MIB), "of a small one a share"


def test_what_has_no_bound_is_never_full() -> None:
    assert not is_full(False, FillLevel(1 << 50, -1), OF_STORAGE)
    assert not is_full(True, FillLevel(1 << 50, 0), OF_STORAGE)


def observed(*looks: tuple[Resource, FillLevel]) -> list[tuple[bool, str | None]]:
    """Whether each look turned something, and what is said then."""
    shortages, said = PressureState(), []
    for place, level in looks:
        turned = shortages.observe(place, level, OF_MEMORY if place is Resource.MEMORY else OF_STORAGE)
        said.append((turned, shortages.reason))
    return said


def test_shortages_say_what_is_full_and_when_it_goes_on() -> None:
    disk, memory = Resource.DATABASE, Resource.MEMORY
    full = "the database has {} MiB free of 100.0 MiB; it goes on when 10.0 MiB are free"
    reached = "the process's memory is at 10.0 MiB, and its ceiling is 10.0 MiB; it goes on below 9.0 MiB"
    assert observed(
        (disk, FillLevel(50 * MIB, 100 * MIB)),
        (disk, FillLevel(96 * MIB, 100 * MIB)),
        (memory, FillLevel(10 * MIB, 10 * MIB)),
        (disk, FillLevel(92 * MIB, 100 * MIB)),
        (disk, FillLevel(90 * MIB, 100 * MIB)),
        (memory, FillLevel(9 * MIB, 10 * MIB)),
    ) == [
        (False, None),
        (True, full.format("4.0")),
        (True, f"{full.format('4.0')}; {reached}"),
        (False, f"{full.format('8.0')}; {reached}"),
        (True, reached),
        (True, None),
    ]


def test_amounts_are_for_people() -> None:
    assert [amount(size) for size in (0, 1023, 1024, 3 << 29)] == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]
