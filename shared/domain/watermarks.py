"""High and low watermarks: when something that fills up is too full to go on with, and when there is room again. Pure.

Between the two nothing turns: what filled up counts as full until a clear step of room is there again, and what has
room does so until that is used up. So nobody stops and goes on in turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Place(StrEnum):
    """What may fill up: the disk of a master's SQLite file or the size told of a PostgreSQL database; what NATS may
    store; the disk of NATS's files, where a master sees it; the disk of a worker's archive; the memory of a process."""

    DATABASE = "database"
    NATS = "nats"
    NATS_DISK = "nats_disk"
    ARCHIVE = "archive"
    MEMORY = "memory"


_NAMES: Final[Mapping[Place, str]] = {
    Place.DATABASE: "the database",
    Place.NATS: "NATS's storage",
    Place.NATS_DISK: "the disk of NATS",
    Place.ARCHIVE: "the archive's disk",
    Place.MEMORY: "the process's memory",
}


@dataclass(frozen=True, slots=True)
class Level:
    """How full something is: bytes `used` of `most`. `refused`: it said itself that it takes no more, whatever the
    numbers are. `claimed`: bytes that are free and not to be counted as such, for they may be written any moment."""

    used: int
    most: int
    refused: bool = False
    claimed: int = 0

    @property
    def free(self) -> int:
        """Bytes; below 0 where more is used than may be."""
        return self.most - self.used - self.claimed

    def claiming(self, more: int) -> "Level":
        """The same with so many bytes claimed in addition."""
        return replace(self, claimed=self.claimed + more)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of what there is, 0 < `low` <= `high` <= 1; and `headroom`, bytes.

    Full is what has no more free than `1 - high` of it, or than `headroom` where that is less: of a large disk a share
    is more than anybody needs. There is room again at `1 - low`, or twice the headroom where that is less.
    """

    high: float = 0.95
    low: float = 0.90
    headroom: int = 1 << 30

    def stops_at(self, most: int) -> int:
        """With no more than so many bytes free it counts as full."""
        return round(min((1.0 - self.high) * most, self.headroom))

    def goes_on_at(self, most: int) -> int:
        """With at least so many bytes free there is room again; always more than `stops_at`."""
        return max(self.stops_at(most) + 1, round(min((1.0 - self.low) * most, 2 * self.headroom)))


OF_STORAGE: Final = Watermarks()
"""What holds while operators say nothing else."""

OF_MEMORY: Final = Watermarks(high=1.0, low=0.9, headroom=1 << 62)
"""Of a ceiling that is told: full at it, and room again a tenth below."""


def is_full(was_full: bool, level: Level, marks: Watermarks) -> bool:
    """Whether it counts as full now. What has no bound is full only by its own word."""
    if level.refused:
        return True
    if level.most <= 0:
        return False
    return level.free < marks.goes_on_at(level.most) if was_full else level.free <= marks.stops_at(level.most)


class Shortages:
    """What is full now, and how full everything was that was looked at."""

    def __init__(self) -> None:
        self.levels: dict[Place, Level] = {}
        self._said: dict[Place, str] = {}

    def __repr__(self) -> str:
        return f"<Shortages {', '.join(self._said) or 'none'}>"

    def observe(self, place: Place, level: Level, marks: Watermarks) -> bool:
        """Take note of a level; whether the place became full or has room again by it."""
        was_full = place in self._said
        self.levels[place] = level
        if is_full(was_full, level, marks):
            self._said[place] = told(place, level, marks)
        else:
            self._said.pop(place, None)
        return was_full != (place in self._said)

    def full(self, place: Place) -> bool:
        """Whether it is."""
        return place in self._said

    @property
    def reason(self) -> str | None:
        """What is full, and when it goes on, in words; None while there is room everywhere."""
        return "; ".join(self._said.values()) or None


def told(place: Place, level: Level, marks: Watermarks) -> str:
    """How full a place is, and when it has room again."""
    if level.refused and place is Place.NATS:
        return "NATS answers and stores nothing: see that most of its servers are up, restart one whose disk was full"
    if level.refused:
        return f"{_NAMES[place]} takes no more, as its disk is full; it goes on by itself when there is room"
    if place is Place.MEMORY:
        return (
            f"{_NAMES[place]} is at {amount(level.used)}, and its ceiling is {amount(level.most)};"
            f" it goes on below {amount(level.most - marks.goes_on_at(level.most))}"
        )
    return (
        f"{_NAMES[place]} has {amount(max(0, level.most - level.used))} free of {amount(level.most)};"
        f" it goes on when {amount(level.claimed + marks.goes_on_at(level.most))} are free"
    )


def amount(size: int) -> str:
    """Bytes for people."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"
