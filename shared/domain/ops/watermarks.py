"""High and low watermarks: when a resource counts as full, and when work may resume. No I/O.

Between the two marks the state does not change. A full resource stays full until clearly more is free, so that work
does not stop and resume in quick succession.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Resource(StrEnum):
    """A resource that may fill up.

    * DATABASE: the disk of a master's SQLite file, or the configured size of a PostgreSQL database.
    * NATS: the storage that NATS may use.
    * NATS_DISK: the disk of NATS's files, if a master can see it.
    * ARCHIVE: the disk of a worker's archive.
    * MEMORY: the memory of a process.
    """

    DATABASE = "database"
    NATS = "nats"
    NATS_DISK = "nats_disk"
    ARCHIVE = "archive"
    MEMORY = "memory"


_NAMES: Final[Mapping[Resource, str]] = {
    Resource.DATABASE: "the database",
    Resource.NATS: "NATS's storage",
    Resource.NATS_DISK: "the disk of NATS",
    Resource.ARCHIVE: "the archive's disk",
    Resource.MEMORY: "the process's memory",
}


class FillLevel(msgspec.Struct, frozen=True):
    """How full a resource is: `used` of `capacity` bytes. A capacity of 0 or less means that no limit is known.

    `refused`: the resource itself reports that it is full, whatever the numbers are. `claimed`: free bytes that are
    reserved for writes that may come at any moment. They do not count as free.
    """

    used: int
    capacity: int
    refused: bool = False
    claimed: int = 0

    @property
    def free(self) -> int:
        """The number of free bytes, without claimed ones. Negative if `used` and `claimed` exceed the capacity."""
        return self.capacity - self.used - self.claimed

    def claiming(self, more: int) -> "FillLevel":
        """Return this level with `more` bytes added to `claimed`, the bytes that are reserved for coming writes."""
        return replace(self, claimed=self.claimed + more)


class Pressure(msgspec.Struct, frozen=True, array_like=True):
    """A resource that is nearly full.

    `resource`: the value of a Resource. `detail`: a sentence on how full it is, and when work resumes.
    """

    resource: str
    detail: str


def reason_of(pressure: Iterable[Pressure]) -> str | None:
    """Return the details of all nearly full resources in one text, or None if there are none."""
    return "; ".join(each.detail for each in pressure) or None


class Watermarks(msgspec.Struct, frozen=True):
    """When a resource counts as full, and when as free again.

    `high` and `low` are shares of the capacity, 0 < `low` <= `high` <= 1. `headroom` is in bytes.

    - A resource is full if its free bytes are at most `1 - high` of the capacity and at most `headroom`.
    - Work resumes if its free bytes are at least `1 - low` of the capacity, or at least twice `headroom`.
    """

    high: float = 0.95
    low: float = 0.90
    headroom: int = 1 << 30

    def stops_at(self, capacity: int) -> int:
        """Return the number of free bytes at or below which a resource counts as full.

        `capacity`: how many bytes the resource can hold. For example, with the default watermarks a disk of 10 GiB
        is full when only 0.5 GiB is free.
        """
        return round(min((1.0 - self.high) * capacity, self.headroom))

    def goes_on_at(self, capacity: int) -> int:
        """Return the number of free bytes at which a full resource counts as free again, so that work resumes.

        The result is always greater than that of `stops_at`.

        `capacity`: how many bytes the resource can hold. For example, with the default watermarks a full disk of
        10 GiB is free again when 1 GiB is free.
        """
        return max(self.stops_at(capacity) + 1, round(min((1.0 - self.low) * capacity, 2 * self.headroom)))


OF_STORAGE: Final = Watermarks()
"""The default watermarks of storage."""

OF_MEMORY: Final = Watermarks(high=1.0, low=0.9, headroom=1 << 62)
"""The watermarks of memory: it is full at its limit, and free again if a tenth of the limit is free."""


def is_full(was_full: bool, level: FillLevel, marks: Watermarks) -> bool:
    """Return True if a resource counts as full. Without a known capacity it is full only if it refuses writes.

    `was_full`: the resource counted as full before. It then stays full until its free bytes reach
    `Watermarks.goes_on_at`.
    """
    if level.refused:
        return True
    if level.capacity <= 0:
        return False
    return level.free < marks.goes_on_at(level.capacity) if was_full else level.free <= marks.stops_at(level.capacity)


class PressureState:
    """The resources of a member that are full now, and the last level of each resource that was observed."""

    def __init__(self) -> None:
        self.levels: dict[Resource, FillLevel] = {}
        self._full: dict[Resource, str] = {}

    def __repr__(self) -> str:
        return f"<PressureState {', '.join(self._full) or 'none'}>"

    def observe(self, place: Resource, level: FillLevel, marks: Watermarks) -> bool:
        """Record the level of a resource. Return True if the resource has just become full, or free again."""
        was_full = place in self._full
        self.levels[place] = level
        if is_full(was_full, level, marks):
            self._full[place] = pressure_text(place, level, marks)
        else:
            self._full.pop(place, None)
        return was_full != (place in self._full)

    def full(self, place: Resource) -> bool:
        """Return True if the resource was full at its last level."""
        return place in self._full

    @property
    def pressure(self) -> tuple[Pressure, ...]:
        """The resources that are full now, in the order in which they became full."""
        return tuple(Pressure(place.value, detail) for place, detail in self._full.items())

    @property
    def reason(self) -> str | None:
        """A sentence on which resources are full, and when work resumes; None if none is full."""
        return reason_of(self.pressure)


def pressure_text(place: Resource, level: FillLevel, marks: Watermarks) -> str:
    """Return a sentence for operators: how full a resource is, and when work resumes."""
    if level.refused and place is Resource.NATS:
        return "NATS answers and stores nothing: see that most of its servers are up, restart one whose disk was full"
    if level.refused:
        return f"{_NAMES[place]} takes no more, as its disk is full; it goes on by itself when there is room"
    if place is Resource.MEMORY:
        return (
            f"{_NAMES[place]} is at {amount(level.used)}, and its ceiling is {amount(level.capacity)};"
            f" it goes on below {amount(level.capacity - marks.goes_on_at(level.capacity))}"
        )
    return (
        f"{_NAMES[place]} has {amount(max(0, level.capacity - level.used))} free of {amount(level.capacity)};"
        f" it goes on when {amount(level.claimed + marks.goes_on_at(level.capacity))} are free"
    )


def amount(size: int) -> str:
    """Return a number of bytes for people, such as `1.5 GiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"
