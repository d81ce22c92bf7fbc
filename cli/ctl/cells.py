"""Converts single values to the text that people see. No function reads the clock: the current time is an argument."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cli.terminal.printable import printable

NONE: Final = "-"

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


def shown(value: object) -> str:
    """Return any JSON value as the text of a table cell. None and an empty text, list or object become a dash.

    Text that may control a terminal is escaped, as in `printable`.
    """
    if value in (None, "", [], {}):
        return NONE
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list():
            return ",".join(map(shown, value))
        case dict():
            return ",".join(f"{name}={shown(inner)}" for name, inner in value.items())
        case _:
            return printable(str(value))


def moment(text: object) -> datetime | None:
    """Return the time that an ISO 8601 text states, in UTC if it has no zone. Return None for any other value."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def length(seconds: float) -> str:
    """Return a duration as `45s`, `12m`, `3h20m` or `4d7h`, rounded down.

    If the number of the greater unit is 10 or more, the smaller unit is left out: 12 hours and 20 minutes is `12h`. If
    the smaller unit is 0, it is left out, too: `3h`.
    """
    left = int(seconds)
    for place, (size, unit) in enumerate(_UNITS):
        if left >= size:
            whole, rest = divmod(left, size)
            smaller, letter = _UNITS[place + 1] if place + 1 < len(_UNITS) else (1, "s")
            return f"{whole}{unit}" + (f"{rest // smaller}{letter}" if rest >= smaller and whole < 10 else "")
    return f"{left}s"


@dataclass(frozen=True, slots=True)
class Now:
    """Shows times relative to `at`, the current time."""

    at: datetime

    def since(self, text: object) -> str:
        """Return how long ago this ISO 8601 time was, as `3h20m`.

        Return `0s` for a future time, a dash for any other value.
        """
        at = moment(text)
        return NONE if at is None else length(max(0.0, (self.at - at).total_seconds()))

    def until(self, text: object) -> str:
        """Return how long it is until this ISO 8601 time, as `3h20m`.

        Return a dash for a past time and for any other value.
        """
        at = moment(text)
        return NONE if at is None or at <= self.at else length((at - self.at).total_seconds())


def dated(text: object) -> str:
    """Return an ISO 8601 time as `2026-11-20 17:45:21 UTC`. Format any other value as `shown` does."""
    at = moment(text)
    return shown(text) if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def picked(path: str) -> Callable[[Any, Now], str]:
    """Return a cell function `(row, now)`, which returns the text of the row's value at `path`, such as `fetch.status`.

    The text is a dash if the row has no such value.
    """
    names = path.split(".")

    def cell(row: Any, now: Now) -> str:
        for name in names:
            row = row.get(name) if isinstance(row, dict) else None
        return shown(row)

    return cell


def leaves(body: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a pair (dotted path, value) for each value in a JSON object and its nested objects. Skip nulls.

    `below` is put before each path.
    """
    for name, value in body.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{below}{name}.")
        elif value is not None:
            yield f"{below}{name}", value
