"""What every body has in common: unknown fields are refused, times are ISO 8601 in UTC."""

from datetime import UTC, datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Model(BaseModel):
    """A body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Listing(Model, Generic[T]):
    """One page of a list. The `Link` header has the address of the next."""

    items: list[T]
    next: str | None = Field(None, description="Where the next page begins: give it as `cursor`. Null at the end.")


def when(ms: int | None) -> datetime | None:
    """Unix milliseconds as a moment."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def moment_of(ms: int) -> datetime:
    """Unix milliseconds as a moment."""
    return datetime.fromtimestamp(ms / 1000, UTC)
