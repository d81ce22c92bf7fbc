"""Time zones, and conversions from local time to Unix time and back.

The zone data comes from the package tzdata. The data of an operating system may be older, and two masters would then
compute different times from the same schedule.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from shared.domain.errors import Permanent

UTC_NAME: Final = "UTC"
_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)


@lru_cache(1)
def zone_names() -> frozenset[str]:
    """Return the names of all IANA zones."""
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


@lru_cache(1_024)
def zone_of(name: str) -> ZoneInfo:
    """Return the zone of that name, one of `zone_names`. Raise Permanent if there is none."""
    if name not in zone_names():
        raise Permanent(f"this version knows no time zone {name!r}")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def wall_of(at_ms: int, zone: ZoneInfo) -> datetime:
    """Return the local time of the zone at `at_ms` (Unix ms), as a datetime without a time zone."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def time_of(wall: datetime, zone: ZoneInfo) -> int:
    """Return the Unix ms at which the local time of the zone is `wall`, a datetime without a time zone.

    If a local time occurs twice, return the first. If it is skipped, return the end of the gap.
    """
    at = _seconds(wall.replace(tzinfo=zone, fold=0))
    if wall_of(at * 1000, zone) == wall:
        return at * 1000
    # The gap: by the offset before it the time lies after its end, by the offset after it the time lies before.
    return _change(_seconds(wall.replace(tzinfo=zone, fold=1)), at, zone) * 1000


def offset_change(after_ms: int, until_ms: int, zone: ZoneInfo) -> int:
    """Return when the zone's offset changes after `after_ms` and up to `until_ms` (Unix ms).

    Return `until_ms` if the offset does not change, or if `until_ms` is not after `after_ms`. The times are at most
    some days apart, so the offset changes at most once between them.
    """
    early, late = after_ms // 1000, until_ms // 1000
    if late <= early or _offset(early, zone) == _offset(late, zone):
        return until_ms
    return _change(early, late, zone) * 1000


def _change(early: int, late: int, zone: ZoneInfo) -> int:
    """Return the first second with the offset of `late`. At the second `early` the offset is another."""
    after = _offset(late, zone)
    while late - early > 1:
        middle = (late + early) // 2
        if _offset(middle, zone) == after:
            late = middle
        else:
            early = middle
    return late


def _seconds(moment: datetime) -> int:
    return (moment.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _SECOND


def _offset(at_s: int, zone: ZoneInfo) -> timedelta:
    return wall_of(at_s * 1000, zone) - (_EPOCH + timedelta(seconds=at_s))
