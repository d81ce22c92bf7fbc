"""How single values are shown to people. Pure: the current time is an argument."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

NONE: Final = "-"

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
_BIDI: Final = frozenset((*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF))
"""Characters that reorder or hide their neighbours."""


def printable(text: str) -> str:
    """Return the text on one line, with every character that could control a terminal escaped, such as `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def shown(value: object) -> str:
    """Return any JSON value as the text of a cell."""
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
    """Parse an ISO 8601 time; return None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def length(seconds: float) -> str:
    """Return seconds as `45s`, `12m`, `3h20m` or `4d7h`: at most two units, rounded down."""
    left = int(seconds)
    for place, (size, unit) in enumerate(_UNITS):
        if left >= size:
            whole, rest = divmod(left, size)
            smaller, letter = _UNITS[place + 1] if place + 1 < len(_UNITS) else (1, "s")
            return f"{whole}{unit}" + (f"{rest // smaller}{letter}" if rest >= smaller and whole < 10 else "")
    return f"{left}s"


@dataclass(frozen=True, slots=True)
class Now:
    """The current time, for relative times."""

    at: datetime

    def since(self, text: object) -> str:
        """Return how long ago the time was."""
        at = moment(text)
        return NONE if at is None else length(max(0.0, (self.at - at).total_seconds()))

    def until(self, text: object) -> str:
        """Return the time left until then, a dash if it is past."""
        at = moment(text)
        return NONE if at is None or at <= self.at else length((at - self.at).total_seconds())


def dated(text: object) -> str:
    """Return a time as `2026-11-20 17:45:21 UTC`, other values as `shown`."""
    at = moment(text)
    return shown(text) if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def picked(path: str) -> Callable[[Any, Now], str]:
    """Return a cell with the value at `path` (`fetch.status`) of a JSON object, a dash if it has none."""
    names = path.split(".")

    def cell(row: Any, now: Now) -> str:
        for name in names:
            row = row.get(name) if isinstance(row, dict) else None
        return shown(row)

    return cell


def leaves(body: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a JSON object that is not an object, with its path; skip nulls."""
    for name, value in body.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{below}{name}.")
        elif value is not None:
            yield f"{below}{name}", value


def _shown(character: str) -> str:
    if character.isprintable() and ord(character) not in _BIDI:
        return character
    return " " if character in "\t\n\r" else character.encode("unicode_escape").decode("ascii")
