"""What every body has in common: unknown fields are refused, times are ISO 8601 in UTC."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

T = TypeVar("T")

ONE_LINE: Final = r"^[^\x00-\x1f\x7f]*$"
"""The pattern of a text without control characters: no terminal and no log is to be given them, and no database keeps
NUL."""

ANYTHING: Final = r"^\*$"
VISIBLE: Final = r"^[!-~]+$"
RULE_NAME: Final = r"^[a-z0-9-]+$"
KEY_ID: Final = r"^[0-9a-f]{16}$"
MEMBER_ID: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"

MOMENT: Final = "a time as 2030-01-01T00:00:00Z"

_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}.*", re.ASCII)


class Model(BaseModel):
    """A body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Wanted(Model):
    """A body that is sent to us. Nothing in it is taken for another type than it has: "yes" is not true, true is no
    number."""

    model_config = ConfigDict(strict=True)


def _written_out(given: Any) -> Any:
    """Refuses numbers, which would be taken for seconds since 1970."""
    if not isinstance(given, str) or _MOMENT.fullmatch(given) is None:
        raise ValueError(f"expected {MOMENT}")
    return given


def _as_whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE: Final = BeforeValidator(_as_whole)
"""Of a whole number in a request, behind its bounds: 2.0 is one in JSON."""

Moment = Annotated[datetime, Strict(False), BeforeValidator(_written_out)]
"""A time in a request."""


class Listing(Model, Generic[T]):
    """One page of a list. The `Link` header has the address of the next."""

    items: list[T]
    next: str | None = Field(
        None, description="Where the next page begins: give it as `cursor`. Null at the end.", examples=["ImRvY3Mi"]
    )


def when(ms: int | None) -> datetime | None:
    """Unix milliseconds as a moment."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def moment_of(ms: int) -> datetime:
    """Unix milliseconds as a moment."""
    return datetime.fromtimestamp(ms / 1000, UTC)


_LATEST_MS: Final = 253_402_300_799_000


def ms_of(moment: datetime) -> int:
    """A moment with a time zone in Unix milliseconds; one that is in the year 10000 in UTC is the last that can be
    shown."""
    return min(int(moment.timestamp() * 1000), _LATEST_MS)
